#!/bin/sh
# SPDX-License-Identifier: MIT
# shellcheck disable=SC3045  # the guest's shell has `read -t`
# scripts/demo --criu and --hip, inside the guest: a process on emulated GPUs beneath AMD's own driver is dumped by the real
# criu, gone, and restored by the real criu; said in plain words. Where the guest has AMD's runtime, the process is a HIP
# program, and it is dumped in the middle of a kernel. Exit status 0 only when everything was there again.
images=/mnt/images talk=/run/demo
mkdir -p "$images" "$talk"

fail() {
  echo "NOT as it should be: $*"
  for log in "$images"/*.log; do
    [ -e "$log" ] && grep -E 'amdgpu_plugin: |Error ' "$log" | tail -n 20
  done
  exit 1
}
gpus() {
  stock-gpus "$1" >/run/load.log 2>&1 || fail "the GPUs do not come or go: $(cat /run/load.log)"
}
# A line of the process.
hear() {
  answer=
  read -r -t 300 answer <&4 || fail "the process does not answer"
  case $answer in ok* | ready*) ;; *) fail "the process says: $answer" ;; esac
}
ask() {
  echo "$1" >&3
  hear
}
# What the process is, and what it can be asked for before the dump and after the restore.
if command -v hip-jobs >/dev/null; then
  number=1 shaders="page tables, copy engines, scheduler, interrupts and shaders"
  begin() {
    setsid hip-jobs "$talk" 3>&- 4>&- >/dev/null 2>&1 &
    pid=$!
    echo "1. A HIP program starts: AMD's runtime compiles its kernels, which takes a while here."
    hear
    ask "prepare persistent"
    ask launch
    echo "   A kernel of it runs on the GPU, compiled by AMD's compiler. It does not end before the program says so."
  }
  go_on() {
    ask finish
    echo "   The kernel went on where it was, was told to end, and all its numbers are right: $answer"
    ask "prepare reduction"
    ask launch
    ask finish
    echo "   Another kernel has run since: $answer"
  }
else
  number=2 shaders="page tables, copy engines, scheduler and interrupts"
  begin() {
    gpu-subject --control "$talk" --gpus 2 --vram 24M --gtt 4M --empty-context --run-queues 3>&- 4>&- &
    hear
    pid=$(echo "$answer" | sed -n 's/.*pid=\([0-9]*\).*/\1/p')
    echo "1. A process works on them ($answer)."
    ask check
    echo "   It has looked at every byte of its GPU memory: $answer"
  }
  go_on() {
    ask check
    echo "   It has looked at every byte again: $answer"
    ask queue-progress
    case $answer in *" runs "*) echo "   Its queues go on: $answer" ;; *) fail "$answer" ;; esac
    ask work
    echo "   It allocates, computes and frees again: $answer"
  }
fi

gpus "$number"
empty=$(cat /sys/class/drm/renderD*/device/mem_info_vram_used | tr '\n' ' ')
system=$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)
echo "This is AMD's own driver, amdgpu of Linux $(uname -r), and the real $(criu --version | sed -n 's/Version:/criu/p'), both as $system ships them."
echo "Beneath the driver: $number emulated MI210, whose $shaders work."
echo "The whole computer is emulated, too, so the rates below say nothing about a real one."
for node in /sys/class/kfd/kfd/topology/nodes/*; do
  minor=$(sed -n 's/drm_render_minor //p' "$node/properties")
  [ "$(cat "$node/gpu_id")" = 0 ] || echo "  GPU $(cat "$node/gpu_id")  $(cat "$node/name")  /dev/dri/renderD$minor"
done

mkfifo "$talk/in" "$talk/out"
exec 3<>"$talk/in" 4<>"$talk/out"
echo
begin

echo
echo "2. criu dump: the process is written to disk and ended."
criu dump --tree "$pid" --images-dir "$images" -v4 --log-file dump.log ||
  fail "criu dump ended with $?"
wait "$pid" 2>/dev/null
[ -e "/proc/$pid" ] && fail "process $pid is still there"
grep -o 'amdgpu_plugin: .*' "$images/dump.log" | grep -E 'GB/s|MB/s' | sed 's/^amdgpu_plugin: /   /'
echo "   $(du -sm "$images" | cut -f 1) MiB of images; process $pid is no more."

echo
echo "3. The GPUs are empty again, as the driver tells."
in_use=$(cat /sys/class/drm/renderD*/device/mem_info_vram_used | tr '\n' ' ')
[ "$in_use" = "$empty" ] || fail "VRAM in use is $in_use, was $empty"
echo "   VRAM in use, in bytes: $in_use, as before the process."

echo
echo "4. criu restore: the process comes back from the images."
criu restore --restore-detached --images-dir "$images" -v4 --log-file restore.log ||
  fail "criu restore ended with $?"
[ -e "/proc/$pid" ] || fail "process $pid is not there"
grep -o 'amdgpu_plugin: .*' "$images/restore.log" | grep -E 'GB/s|MB/s' | sed 's/^amdgpu_plugin: /   /'
go_on
ask quit
echo
echo "Everything was there again: GPU memory, queues, maps. The process worked on and ended by itself."
