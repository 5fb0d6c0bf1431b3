# SPDX-License-Identifier: MIT
# bash completion of sluice(1)
_sluice() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} options=--json
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "check plan show verify map diff flatten predump unpause --help --version" -- "$word")
    return
  fi
  case $previous in
    --dir | --sysfs | --parent | --images-dir | --prev-images-dir) mapfile -t COMPREPLY < <(compgen -d -- "$word"); return ;;
    --gpu-map) return ;;
    --machine) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    --pid) mapfile -t COMPREPLY < <(cd /proc && compgen -G "$word[0-9]*"); return ;;
  esac
  case ${COMP_WORDS[1]} in
    check) options+=" --dir --pid --parent --machine --report" ;;
    show) options+=" --bos --stats" ;;
    map) options+=" --sysfs --gpu-map" ;;
    diff) options+=" --bos" ;;
    predump) options+=" --images-dir --prev-images-dir --replace" ;;
  esac
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options --help" -- "$word")
  elif [[ ${COMP_WORDS[1]} == predump || ${COMP_WORDS[1]} == unpause ]]; then
    mapfile -t COMPREPLY < <(cd /proc && compgen -G "$word[0-9]*")
  elif [[ ${COMP_WORDS[1]} == plan ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  elif [[ ${COMP_WORDS[1]} != check ]]; then
    mapfile -t COMPREPLY < <(compgen -d -- "$word")
  fi
}
complete -o filenames -F _sluice sluice
