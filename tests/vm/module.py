# SPDX-License-Identifier: MIT
"""The virtual amdgpu as a kernel module, built with a root's own compiler against its own kernel's headers."""
import hashlib
import shutil
import subprocess

import roots

SOURCES = (".c", ".h", ".S")
NAMES = ("Kbuild", "Makefile")


def refresh(source, copy):
    """Makes `copy` hold `source`'s files of the module, with their times: what did not change is not compiled again."""
    wanted = set()
    for path in source.rglob("*"):
        if path.is_file() and (path.suffix in SOURCES or path.name in NAMES):
            target = copy / path.relative_to(source)
            wanted.add(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() or target.stat().st_mtime_ns != path.stat().st_mtime_ns:
                shutil.copy2(path, target)
    for path in copy.rglob("*"):
        if (path.suffix in SOURCES or path.name in NAMES) and path not in wanted and ".mod.c" not in path.name:
            path.unlink()


def build(root, checkout, work):
    """The module for `root`. Raises CalledProcessError with make's output."""
    source = checkout / "tests" / "vamdgpu"
    work.mkdir(parents=True, exist_ok=True)
    for folder in ("kernel", "model", "packets"):
        refresh(source / folder, work / folder)
    for header in source.glob("*.h"):
        shutil.copy2(header, work / header.name)
    version, _ = roots.kernel(root)
    script = ("rm -f /build/kernel/*.ko\n"
              f"make -s -C /lib/modules/{version}/build M=/build/kernel modules\nstrip -g /build/kernel/*.ko")
    done = subprocess.run(roots.enter(root, [(work, "/build")], script), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    (work / "make.log").write_text(done.stdout, encoding="utf-8")
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, "make modules", done.stdout)
    return next((work / "kernel").glob("*.ko"))


def load_order(root, names):
    """Files (outside) of kernel modules and what they depend on, in the order in which they load."""
    version, _ = roots.kernel(root)
    script = f'for module in {" ".join(names)}; do modprobe -S {version} --show-depends "$module"; done'
    order = []
    for line in roots.output(root, script).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "insmod" and words[1] not in order:
            order.append(words[1])
    return [roots.resolve(root, path) for path in order]


def dependencies(root, work):
    """Names of the kernel modules that the module built in `work` wants loaded first."""
    listed = roots.output(root, "modinfo -F depends /build/kernel/*.ko", [(work, "/build")])
    return [name for name in listed.strip().split(",") if name]


def build_client(root, source, work):
    """A C program on a library that only this root has, compiled there."""
    work.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, work / "client.c")
    script = "gcc -O2 -Wall -o /build/client /build/client.c -lhsa-runtime64"
    done = subprocess.run(roots.enter(root, [(work, "/build")], script), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, f"gcc {source.name}", done.stdout)
    return work / "client"


def build_hip(root, source, work):
    """A program on HIP, and the headers beside it, compiled by this root's hipcc for the emulated card. Kept for the next
    time: a minute of compiling."""
    work.mkdir(parents=True, exist_ok=True)
    program, stamp = work / "hip-jobs", work / "stamp"
    sources = [source, *sorted(source.parent.glob("hip_*.h"))]
    recipe = hashlib.sha256(b"".join(path.read_bytes() for path in (*sources, root / ".sluice-root"))).hexdigest()
    if program.exists() and stamp.exists() and stamp.read_text(encoding="ascii") == recipe:
        return program
    stamp.unlink(missing_ok=True)
    for path in sources:
        shutil.copy2(path, work / path.name)
    script = f"hipcc --offload-arch=gfx90a -std=c++17 -O2 -o /build/hip-jobs /build/{source.name}"
    done = subprocess.run(roots.enter(root, [(work, "/build")], script), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, f"hipcc {source.name}", done.stdout)
    stamp.write_text(recipe, encoding="ascii")
    return program
