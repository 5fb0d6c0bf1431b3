# SPDX-License-Identifier: MIT
# Sourced by the scripts beside it: --help prints the comment at the script's head, without building or installing anything.

head_comment() {
  sed -n '3,${/^#/!q; s/^# \{0,1\}//; p;}' "$0"
}

# help_if_asked ARGUMENT…: prints the help and ends the script if --help or -h is among them.
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

# For unknown arguments.
wrong_usage() {
  head_comment >&2
  exit 2
}
