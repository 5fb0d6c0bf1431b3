# SPDX-License-Identifier: MIT
"""The table of suites: which Debian, with which criu and kernel, makes a guest. A new suite is one line here.

A host of CRIU with 15 hooks is proven by the look-alike (tests/lookalike) until a Debian ships one: then it gets a line, too.
"""
import dataclasses

# What every root has: criu, a kernel, the guest's own userland, and what builds the clients. Nothing of this project.
PACKAGES = (
    "criu", "busybox-static", "iproute2", "kmod", "libdrm-amdgpu1", "libprotobuf-c1",
    "gcc", "libc6-dev", "make", "linux-image-amd64", "linux-headers-amd64",
)

# Container runtimes. A container has file systems of its own in memory: criu saves them with GNU's tar and gzip. crun asks
# for criu through libcriu, which it loads by name when it needs it; only with CRIU 4.2 does it hand criu a configuration
# file (docs/user/containers.md).
RUNC, RUNC_FILES = ("runc",), ("usr/sbin/runc", "usr/bin/tar", "usr/bin/gzip")
CRUN, CRUN_FILES = ("crun", "libcriu2"), ("usr/bin/crun", "usr/lib/x86_64-linux-gnu/libcriu.so.2")

# Container engines, and what they call. criu locks a container's network with iptables.
ENGINES = ("podman", "conmon", "netavark", "catatonit", "containerd", "iptables")
PODMAN_FILES = (
    "usr/bin/podman", "usr/bin/conmon", "usr/lib/podman/netavark", "etc/containers/policy.json",
    "usr/share/containers/containers.conf", "usr/share/containers/seccomp.json",
    "usr/bin/catatonit", "usr/sbin/iptables-restore", "usr/sbin/ip6tables-restore", "usr/lib/x86_64-linux-gnu/xtables/libxt_mark.so",
    "usr/lib/x86_64-linux-gnu/xtables/libxt_standard.so",
)
CONTAINERD_FILES = ("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr")
PODMAN_MODULES = ("overlay", "nft_compat", "xt_mark")
# Scenarios of engines. Every run has the first of Podman, in trixie's guest, which is there anyway; OF_ENGINES are the other ones,
# in a guest of their own.
PODMAN, OF_ENGINES = "*Podman*", "*OfEngines/*:Containerd.*:Cri.*:Docker.*"
# Jobs on HIP, in guests with AMD's whole runtime and its compiler.
OF_HIP = "*OfHip*"
# What only a card of several dies shows, in a guest of its own. With --draw it also has one of so many of its Debian's scenarios.
OF_DIES = "Partitions.*:*/HiddenPartitions.*:WholeCards.*"
OF_MI300X, SHARE_ON_MI300X = f"{OF_DIES}:OneProcessTwoGpus.WithEverything*", 24
# More of the same, and slow: scripts/vm --more.
MORE = "More*/*"
# Long ones of which one criu and one kernel show enough, and the suite that has them ("": none); the others with --more.
ONCE = {
    "Large.TenThousandBosComeBackWhole": "",
    "Repeated.TwentyDumpsInARowLeaveTheProcessRunning": "",
    "CheckFiles.WhatNoCriuDumpsIsRefused": "trixie",
    "DumpThatFails.ItsParentGoesInTheLastMoment": "bookworm",
    "CheckFiles.HarmlessNeighboursRaiseNothing": "bookworm",
    "Large.ABoLargerThanFreeMemoryComesBackWhole": "trixie",
    "Large.ABoWithHolesComesBackWhole": "bookworm",
    "KilledCriu.IsMadeUpForByTheNextDump": "bookworm",
    "KilledCriu.WhileTheGpuCopiesLeavesAProcessThatUnpauseMakesWholeAgain": "trixie",
    "DumpThatFails.AnImageIsLargerThanAFileMayBe": "trixie",
    "DumpThatFails.QuotaOfTheDiskIsUsedUp": "bookworm",
    "DumpThatFails.DiskIsFull": "trixie",
    "RestoreThatFails.CorruptBlockIsNamed": "bookworm",
    "RestoreThatFails.PagesFileIsMissing": "trixie",
    "By/RestoredAtOnce.EachLandsOnTheGpuThatItsOwnMapNames/runc": "trixie",
    "By/RestoredAtOnce.WithoutMapsTheyDoNotChooseTheSameGpu/runc": "trixie",
}


@dataclasses.dataclass(frozen=True)
class Suite:
    name: str        # Debian's name of it
    criu: str        # version, as far as it is known beforehand
    kernel: str      # the same
    hooks: int       # how many hooks that criu has
    decides: bool    # whether a failure fails scripts/test without --strict
    packages: tuple = ()     # more than PACKAGES, and what has another name in each suite
    programs: tuple = ()     # files of those packages that go into the guest, with "*" in place of versions
    client: str = ""         # C source on AMD's runtime, compiled in this root
    debian: str = ""         # the Debian, where the suite is not called like it
    root: str = ""           # name of its root, where it is not the Debian's
    modules: tuple = ()      # kernel modules, more than all guests load
    scenarios: str = f"*-{PODMAN}:{OF_ENGINES}:{OF_HIP}"     # those that it runs, as GoogleTest's filter
    folders: tuple = ()      # of its packages, with all that is in them
    hip: str = ""            # HIP source, compiled by this root's hipcc
    memory: str = "1G"       # shared with the cards, whose engines reach all of it
    disk_mib: int = 1024     # of its userland
    images_mib: int = 1024   # of the disk for images
    systemd: bool = False    # pid 1 is systemd, which starts guest-init
    named_only: bool = False     # scripts/vm without names leaves it out
    card: str = "mi210"      # what its GPUs are
    foreign: bool = False    # whether it restores what the other suites' guests dumped

    def __post_init__(self):
        """Suites of one Debian have one root, with the packages of all, unless they name one."""
        object.__setattr__(self, "debian", self.debian or self.name)
        object.__setattr__(self, "root", self.root or self.debian)


HIP = ("hipcc", "libamdhip64-dev", "librocprim-dev", "libhsa-runtime-dev", "rocminfo")
TRIXIE = ("libarchive13t64", *RUNC, *CRUN, *ENGINES, *HIP)
SYSTEMD = ("dbus", "docker.io", "docker-cli")
SYSTEMD_FILES = ("usr/lib/systemd/systemd", "usr/lib/systemd/systemd-executor", "usr/bin/dbus-daemon",
                 *(f"usr/lib/systemd/system/{unit}" for unit in ("dbus.service", "dbus.socket", "basic.target", "sysinit.target",
                                                                 "sockets.target")))
SYSTEMD_FOLDERS = ("usr/share/dbus-1",)
PYTHON_FILES = ("usr/bin/python3", "usr/lib/python3/dist-packages/grpc/_cython/*.so")
PYTHON_FOLDERS = ("usr/lib/python3.*", "usr/lib/python3/dist-packages")
HIP_GUEST = {"hip": "tests/vm/client/hip_jobs.hip", "memory": "3G", "disk_mib": 2048, "images_mib": 3072, "scenarios": OF_HIP}
DOCKER_FILES = ("usr/sbin/dockerd", "usr/sbin/docker-proxy", "usr/bin/docker", "usr/sbin/iptables", *CONTAINERD_FILES)


SUITES = {suite.name: suite for suite in (
    Suite("bookworm", "3.17.1", "6.1", 10, True, ("libarchive13",), foreign=True),
    Suite("trixie", "4.1.1", "6.12", 12, True, TRIXIE, (*RUNC_FILES, *CRUN_FILES, *PODMAN_FILES), modules=PODMAN_MODULES,
          scenarios=f"*-{OF_ENGINES}:{OF_HIP}", foreign=True),
    Suite("mi300x", "4.1.1", "6.12", 12, True, TRIXIE, (*RUNC_FILES, *CRUN_FILES, *PODMAN_FILES), debian="trixie",
          modules=PODMAN_MODULES, card="mi300x", scenarios=OF_MI300X, foreign=True),
    Suite("engines", "4.1.1", "6.12", 12, True, TRIXIE, (*RUNC_FILES, *CRUN_FILES, *PODMAN_FILES, *CONTAINERD_FILES),
          debian="trixie", modules=PODMAN_MODULES, scenarios=f"By/OciRuntime.*:{PODMAN}:Containerd.*"),
    Suite("systemd", "4.1.1", "6.12", 12, True, (*TRIXIE, *SYSTEMD),
          (*RUNC_FILES, *CRUN_FILES, *PODMAN_FILES, *DOCKER_FILES, *SYSTEMD_FILES), debian="trixie", root="systemd",
          modules=PODMAN_MODULES, scenarios="By/OciRuntime.*:*/PodmanArchive.*:Docker.*", folders=SYSTEMD_FOLDERS, systemd=True, named_only=True),
    # Its crun is built without CRIU.
    Suite("bookworm-engines", "3.17.1", "6.1", 10, True, ("libarchive13", *RUNC, *ENGINES, "docker.io"),
          (*RUNC_FILES, *PODMAN_FILES, *DOCKER_FILES), debian="bookworm", root="bookworm-engines", modules=PODMAN_MODULES,
          scenarios=f"By/OciRuntime.*:{PODMAN}:Containerd.*:Docker.*", named_only=True),
    # Its Docker starts nothing from a checkpoint (docs/user/containers.md).
    Suite("forky-engines", "4.2.1", "7.2", 13, False, ("libarchive13t64", *RUNC, *CRUN, *ENGINES, "python3-grpcio"),
          (*RUNC_FILES, *CRUN_FILES, *PODMAN_FILES, *CONTAINERD_FILES, *PYTHON_FILES), debian="forky", root="forky-engines",
          modules=PODMAN_MODULES, scenarios=f"{PODMAN}:Containerd.*:Cri.*", folders=PYTHON_FOLDERS, named_only=True),
    # Still moving. It has Debian's ROCm runtime, which runs on the virtual GPUs as a client that nobody here wrote.
    Suite("forky", "4.2.1", "7.2", 13, False,
          ("libarchive13t64", "rocminfo", "libhsa-runtime-dev", *RUNC, *CRUN),
          ("usr/bin/rocminfo", *RUNC_FILES, *CRUN_FILES), "tests/vm/client/hsa_client.c", foreign=True),
    Suite("hip", "4.1.1", "6.12", 12, True, TRIXIE,
          ("usr/lib/x86_64-linux-gnu/libamdhip64.so.5*", "usr/lib/x86_64-linux-gnu/libamd_comgr.so.2*"),
          debian="trixie", **HIP_GUEST),
    Suite("bookworm-hip", "3.17.1", "6.1", 10, True, ("libarchive13", *HIP),
          ("usr/lib/x86_64-linux-gnu/libamdhip64.so.5*", "usr/lib/x86_64-linux-gnu/libamd_comgr.so.2*"),
          debian="bookworm", root="bookworm-hip", named_only=True, **HIP_GUEST),
    Suite("forky-hip", "4.2.1", "7.2", 13, False, ("libarchive13t64", *HIP),
          ("usr/lib/x86_64-linux-gnu/libamdhip64.so.6*", "usr/lib/x86_64-linux-gnu/libamd_comgr.so.3*",
           "usr/lib/x86_64-linux-gnu/libhiprtc*.so.6*"),
          debian="forky", root="forky-hip", named_only=True, **HIP_GUEST),
)}
# Those that scripts/vm runs when no names are given.
EVERY = {name: suite for name, suite in SUITES.items() if not suite.named_only}
