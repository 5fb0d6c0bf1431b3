# SPDX-License-Identifier: MIT
"""QEMU, of one Debian whatever the machine is: out of a root of its own, run where it lies by that root's loader.

So every machine has the same emulator, and one that speaks vfio-user, as the emulated cards do (tests/card): QEMU has it
since 10.1, Debian 13's own is 10.0, and the backports for Debian 13 have a newer one. It is not slower: a boot of trixie with
three scenarios took 21 seconds of processor time with 11.1.3, and 23 with 10.0.
"""
import roots

SUITE, PACKAGES = "trixie", ("qemu-system-x86",)


def words(folder, say):
    """What starts it, before its own options. Makes its root where there is none. Raises roots.Unavailable."""
    usr = roots.make(folder, "qemu", SUITE, PACKAGES, say, backports=True) / "usr"
    firmware = [word for name in ("qemu", "seabios") for word in ("-L", str(usr / "share" / name))]
    return [str(usr / "lib64/ld-linux-x86-64.so.2"), "--library-path", str(usr / "lib/x86_64-linux-gnu"),
            str(usr / "bin/qemu-system-x86_64"), *firmware]
