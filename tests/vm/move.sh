#!/bin/sh
# SPDX-License-Identifier: MIT
# shellcheck disable=SC3045  # the guest's shell has `read -t`
# scripts/demo --move, inside each of its two guests: a container of Podman with GPUs of AMD's own driver. In the first one a
# checkpoint of it goes into an archive; in the second, where the archive is in /in, it comes back from that, on other GPUs. Said in
# plain words. Exit status 0 only when everything was there again.
dmesg -n 1     # what the kernel notes is not for this screen
data=/mnt/data talk=/run/demo
mkdir -p "$data" "$talk"
mkfifo "$talk/in" "$talk/out"
exec 3<>"$talk/in" 4<>"$talk/out"

fail() {
  echo "NOT as it should be: $*"
  for log in /mnt/podman/overlay-containers/*/userdata/dump.log /mnt/podman/overlay-containers/*/userdata/restore.log; do
    [ -e "$log" ] && grep -E 'amdgpu_plugin: |Error ' "$log" | tail -n 20
  done
  exit 1
}
# This machine has these cards, in this order.
machine() {
  stock-gpus 0 >/run/load.log 2>&1 || fail "the driver does not load: $(cat /run/load.log)"
  for card; do
    echo "$card" >/sys/bus/pci/drivers/amdgpu/bind || fail "card $card is not bound"
  done
  for node in /sys/class/kfd/kfd/topology/nodes/*; do
    [ "$(cat "$node/gpu_id")" = 0 ] && continue
    minor=$(sed -n 's/drm_render_minor //p' "$node/properties")
    vram=$(($(sed -n 's/size_in_bytes //p' "$node/mem_banks/0/properties") >> 20))
    echo "   GPU $(cat "$node/gpu_id")  $(cat "$node/name")  $vram MiB  /dev/dri/renderD$minor"
  done
}
podman() {
  command podman --root /mnt/podman --runroot /run/podman --cgroup-manager cgroupfs "$@"
}
shown() {
  echo "   # podman $*"
  podman "$@" >/run/podman.log 2>&1 || fail "podman $1 $2: $(cat /run/podman.log)"
}
# One line to the job, one line back.
ask() {
  echo "$1" >&3
  answer=
  read -r -t 120 answer <&4 || fail "the job does not answer to \"$1\""
}
looked_at() {
  ask check
  case $answer in ok*) echo "   The job has looked at every byte of its GPU memory: $answer" ;; *) fail "$answer" ;; esac
}
works() {
  ask queue-progress
  case $answer in *" runs "*) echo "   Its queues run: $answer" ;; *) fail "$answer" ;; esac
}
if [ ! -e /in/job.tar ]; then
  echo
  echo "1. The first machine: AMD's own driver, amdgpu of Linux $(uname -r), on two emulated MI210s."
  machine 0000:01:00.0 0000:02:00.0
  # The image of the job: its program, and what that loads.
  root=/mnt/job-root program=/usr/lib/sluice/gpu-subject
  for file in $program $(LD_TRACE_LOADED_OBJECTS=1 $program | grep -o '/[^ ]*'); do
    mkdir -p "$root${file%/*}" && cp "$file" "$root$file" || fail "no root for the job's image"
  done
  mkdir -p $root/control $root/tmp
  tar -C $root -cf /mnt/job-root.tar . || fail "no image of the job"
  podman import --quiet /mnt/job-root.tar localhost/job:1 >/run/podman.log 2>&1 || fail "podman import: $(cat /run/podman.log)"
  kfd=$(stat -c %t /dev/kfd)
  echo
  echo "2. A job runs in a container of $(podman --version), with runc."
  shown run --detach --name job --runtime runc --network none \
    --volume /dev/kfd:/dev/kfd:dev --volume /dev/dri:/dev/dri:dev \
    --device-cgroup-rule "c 226:* rw" --device-cgroup-rule "c $((0x$kfd)):0 rw" --volume $talk:/control \
    localhost/job:1 $program --control /control --gpus 2 --vram 24M --gtt 4M --empty-context --run-queues
  answer=
  read -r -t 120 answer <&4 || fail "the job does not start"
  case $answer in ready*) ;; *) fail "the job says: $answer" ;; esac
  looked_at
  works
  echo
  echo "3. Its checkpoint goes into an archive, and the container ends."
  shown container checkpoint --export $data/job.tar --compress none job
  sluice verify $data/job.tar >/run/verify.log 2>&1 || fail "sluice verify: $(cat /run/verify.log)"
  echo "   $(tail -n 1 /run/verify.log)"
  shown rm job
  podman save --quiet --output $data/image.tar localhost/job:1 >/run/podman.log 2>&1 || fail "podman save: $(cat /run/podman.log)"
  cp $data/job.tar $data/image.tar /out/ || fail "the archive does not get out"
  echo "   $(du -m $data/job.tar | cut -f 1) MiB are carried to the second machine, and the container's image. The first one is switched off."
  exit 0
fi

echo
echo "4. The second machine has one GPU more, a smaller one, in the first place: all numbers are other ones."
machine 0000:00:10.0 0000:03:00.0 0000:04:00.0
shown load --input /in/image.tar
echo "   sluice map says which GPUs will do:"
sluice map /in/job.tar 2>&1 | sed 's/^/   /'
echo
echo "5. The job comes back from the archive."
shown container restore --import /in/job.tar
looked_at
works
ask work
case $answer in ok*) echo "   It allocates, computes and frees again: $answer" ;; *) fail "$answer" ;; esac
ask quit
case $answer in ok*) ;; *) fail "$answer" ;; esac
podman rm --force --time 0 job >/dev/null 2>&1
echo
echo "Everything was there again, on other GPUs: GPU memory, queues, maps. The job worked on and ended by itself."
