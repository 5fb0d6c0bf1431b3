# SPDX-License-Identifier: MIT
"""The table of suites: which Debian, with which criu and kernel, makes a guest. A new suite is one line here.

A host of CRIU with 15 hooks is proven by the look-alike (tests/lookalike) until a Debian ships one: then it gets a line, too.
"""
import dataclasses

# What every root has: criu, what builds the module and the guest's own userland. Nothing of this project.
PACKAGES = (
    "criu", "busybox-static", "iproute2", "kmod", "libdrm-amdgpu1", "libprotobuf-c1",
    "gcc", "libc6-dev", "make", "linux-image-amd64", "linux-headers-amd64",
)

# Container runtimes. A container has file systems of its own in memory: criu saves them with GNU's tar and gzip. crun asks
# for criu through libcriu, which it loads by name when it needs it; only with CRIU 4.2 does it hand criu a configuration
# file (docs/containers.md).
RUNC, RUNC_FILES = ("runc",), ("usr/sbin/runc", "usr/bin/tar", "usr/bin/gzip")
CRUN, CRUN_FILES = ("crun", "libcriu2"), ("usr/bin/crun", "usr/lib/x86_64-linux-gnu/libcriu.so.2")


@dataclasses.dataclass(frozen=True)
class Suite:
    name: str        # Debian's name of it
    criu: str        # version, as far as it is known beforehand
    kernel: str      # the same
    hooks: int       # how many hooks that criu has
    decides: bool    # whether a failure fails scripts/test without --strict
    packages: tuple = ()     # more than PACKAGES, and what has another name in each suite
    programs: tuple = ()     # files of those packages that go into the guest
    client: str = ""         # C source on AMD's runtime, compiled in this root


SUITES = {suite.name: suite for suite in (
    Suite("bookworm", "3.17.1", "6.1", 10, True, ("libarchive13",)),
    Suite("trixie", "4.1.1", "6.12", 12, True, ("libarchive13t64", *RUNC), RUNC_FILES),
    # Still moving. It has Debian's ROCm runtime, which runs on the virtual GPUs as a client that nobody here wrote.
    Suite("forky", "4.2.1", "7.2", 13, False,
          ("libarchive13t64", "rocminfo", "libhsa-runtime-dev", *RUNC, *CRUN),
          ("usr/bin/rocminfo", *RUNC_FILES, *CRUN_FILES), "tests/vm/client/hsa_client.c"),
)}
