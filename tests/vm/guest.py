# SPDX-License-Identifier: MIT
"""One boot of a guest in QEMU: what it runs, what it said, and how it ended. Its GPUs: cards.py.

Emulation on one thread (`-accel tcg,thread=single`, one CPU): with more, about one boot in thirty ended in a kernel
oops that is not ours. A guest that panics ends QEMU with status 0, so only the debug-exit port's own codes count.

Its clock is the HPET: on a busy machine kernels measure the TSC's rate wrongly, and their clock then runs several times too fast,
and with it every limit of the guest. The scheduler's clock, which the watchdog of stuck CPUs reads, is the TSC all the same, and
is held to the HPET where the TSC counts as unstable.

The processor has neither ERMS nor what only processors with it have (FSRM, FZRM, FSRS), so that kernel and libc copy and clear memory by
words: emulated, `rep movsb` moves one byte in the time of eight. Nor has it LA57, a fifth level of page tables to walk.

What kmalloc() gave is poisoned when it is freed (slub_debug), so that a driver which still uses it dies of that. It costs nothing
that could be measured. Grace periods of RCU are expedited (37 seconds for 39).
"""
import dataclasses
import pathlib
import re
import subprocess

import cards
import image
import roots

PASSED, FAILED = (3 << 1) | 1, (1 << 1) | 1     # QEMU's exit status for what guest-init writes to the debug-exit port
DEBUG_EXIT = 0x501
CPU = "max,-erms,-fsrm,-fzrm,-fsrs,-la57"
SHARING_MIB = 512       # mkfs.xfs refuses less than 300
KERNEL_LINE = ("console=ttyS0 rdinit=/init panic=-1 oops=panic mitigations=off nokaslr tsc=unstable clocksource=hpet "
               "no_timer_check log_buf_len=4M quiet sysrq_always_enabled slub_debug=P,kmalloc-* "
               "rcupdate.rcu_expedited=1")
COPYING_OUT = 120        # seconds beyond the program's own limit: boot, copying out, the end
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\x00]")


@dataclasses.dataclass
class Boot:
    """How a boot ended: `code` is QEMU's exit status (None: it hung and was killed), `serial` all that it printed."""
    code: int
    serial: pathlib.Path
    out: pathlib.Path


class Guest:
    """The files of one suite's guest in `work`; owns the disks, which `remove_disks` deletes. `emulator`: what starts QEMU;
    `card`: the program that is a GPU; `model`: which GPU; `trace`: whether the cards write down what they do."""

    def __init__(self, suite, root, work, emulator, card, model, trace=False):
        self.suite, self.work, self.emulator, self.trace = suite, work, emulator, trace
        self.card, self.model = card, model
        self.version, self.vmlinuz = roots.kernel(root)
        self.shared = work / "in"
        self.disk, self.sharing_disk, self.out = work / "images.img", work / "sharing.img", None

    def prepare(self):
        """Before a boot: empty disks for images, empty folders for what goes in and for what comes out."""
        self.out = self.work / "out"
        for folder in (self.out, self.shared):
            roots.remove(folder)
            folder.mkdir(parents=True)
        self.disk.unlink(missing_ok=True)
        image.make_filesystem(self.disk, self.suite.images_mib, options=("-O", "quota", "-E", "quotatype=usrquota"))
        self.sharing_disk.unlink(missing_ok=True)
        image.make_sharing_filesystem(self.sharing_disk, SHARING_MIB)

    def command(self, run, seconds, gpus):
        """The words that start QEMU. `gpus`: its options for the cards."""
        line = f"{KERNEL_LINE} guest.run={run} guest.suite={self.suite.name} guest.seconds={seconds}"
        if self.suite.systemd:
            line += " guest.init=systemd systemd.show_status=0 systemd.log_target=null systemd.default_standard_output=null"
        def drive(file):
            return f"if=virtio,format=raw,cache=unsafe,file={file}"
        sharing = ["-drive", drive(self.sharing_disk)] if self.sharing_disk.exists() else []
        def share(folder, tag):
            return f"local,path={folder},mount_tag={tag},security_model=none"
        return [*self.emulator, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                "-machine", "q35,memory-backend=ram", "-m", self.suite.memory,
                "-object", f"memory-backend-memfd,id=ram,size={self.suite.memory},share=on",
                "-accel", "tcg,thread=single", "-cpu", CPU, "-smp", "1", *gpus,
                "-serial", "mon:stdio" if run == "shell" else "stdio",
                "-kernel", str(self.vmlinuz), "-initrd", str(self.work / "initrd.cpio"), "-append", line,
                "-device", f"isa-debug-exit,iobase={DEBUG_EXIT:#x},iosize=2",
                "-drive", drive(self.work / "root.img"), "-drive", drive(self.disk), *sharing,
                "-virtfs", share(self.out, "out"), "-virtfs", share(self.shared, "in")]

    def boot(self, run, seconds, heard):
        """Runs the guest to its end. `heard(line)` is called for every line of the console as it comes."""
        serial = self.work / f"{self.out.name}.serial.log"
        limit = ["timeout", "--foreground", "--kill-after=5", str(seconds + COPYING_OUT)]
        with cards.plugged_in(self.card, self.model, self.work, self.trace) as gpus, open(serial, "w", encoding="utf-8") as log, \
                subprocess.Popen([*limit, *self.command(run, seconds, gpus)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, errors="replace", bufsize=1) as qemu:
            for line in qemu.stdout:
                line = CONTROL.sub("", line.rstrip("\n"))
                log.write(line + "\n")
                log.flush()
                heard(line)
        return Boot(None if qemu.returncode in (124, 137) else qemu.returncode, serial, self.out)

    def shell(self):
        """The guest's console on this terminal. Returns QEMU's exit status."""
        with cards.plugged_in(self.card, self.model, self.work, self.trace) as gpus:
            return subprocess.run(self.command("shell", 0, gpus), check=False).returncode

    def remove_disks(self):
        for name in ("root.img", "images.img", "sharing.img", "initrd.cpio"):
            (self.work / name).unlink(missing_ok=True)
        for trace in self.work.glob("card-*.trace"):
            trace.unlink()
