# SPDX-License-Identifier: MIT
# Sourced by the scripts beside it: what --help prints is the comment at the head of the script, at once and with nothing
# built, installed or made.

head_comment() {
  sed -n '3,${/^#/!q; s/^# \{0,1\}//; p;}' "$0"
}

# help_if_asked ARGUMENT…: ends the script when --help or -h is among them.
help_if_asked() {
  local argument
  for argument; do
    case $argument in
      -h | --help)
        head_comment
        exit 0
        ;;
    esac
  done
}

# For arguments that the script does not know.
wrong_usage() {
  head_comment >&2
  exit 2
}
