# SPDX-License-Identifier: MIT
"""Programs on libraries that only a suite's root has, compiled there."""
import hashlib
import shutil
import subprocess

import roots


def build_client(root, source, work):
    """A C program on AMD's runtime."""
    work.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, work / "client.c")
    script = "gcc -O2 -Wall -o /build/client /build/client.c -lhsa-runtime64"
    done = subprocess.run(roots.enter(root, [(work, "/build")], script), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, f"gcc {source.name}", done.stdout)
    return work / "client"


def build_hip(root, source, isa, work):
    """A program on HIP, and the headers beside it, compiled by this root's hipcc for one instruction set. Kept for the next
    time: a minute of compiling."""
    work.mkdir(parents=True, exist_ok=True)
    program, stamp = work / "hip-jobs", work / "stamp"
    sources = [source, *sorted(source.parent.glob("hip_*.h"))]
    contents = (path.read_bytes() for path in (*sources, root / ".sluice-root"))
    recipe = hashlib.sha256(b"".join([isa.encode(), *contents])).hexdigest()
    if program.exists() and stamp.exists() and stamp.read_text(encoding="ascii") == recipe:
        return program
    stamp.unlink(missing_ok=True)
    for path in sources:
        shutil.copy2(path, work / path.name)
    script = f"hipcc --offload-arch={isa} -std=c++17 -O2 -o /build/hip-jobs /build/{source.name}"
    done = subprocess.run(roots.enter(root, [(work, "/build")], script), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, f"hipcc {source.name}", done.stdout)
    stamp.write_text(recipe, encoding="ascii")
    return program
