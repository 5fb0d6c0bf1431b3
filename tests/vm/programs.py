# SPDX-License-Identifier: MIT
"""What of this project runs in the guests, and how the meson build makes it.

The same files go into every guest, so they are built for the oldest glibc among them: on the machine itself when its
glibc is no newer than bookworm's, else in a bookworm root with a compiler.
"""
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess

import roots

OLDEST_SUITE, OLDEST_GLIBC = "bookworm", (2, 36)
# Target of the meson build → where the guest has it.
PLACES = {
    "amdgpu_plugin": "usr/lib/sluice/amdgpu_plugin.so",
    "other_plugin": "usr/lib/sluice/other_plugin.so",
    "gpu-subject": "usr/lib/sluice/gpu-subject",
    "obstacle-subject": "usr/lib/sluice/obstacle-subject",
    "test-streamer": "usr/lib/sluice/test-streamer",
    "vm-scenarios": "usr/lib/sluice/vm-scenarios",
    "sluice": "usr/lib/sluice/sluice",
}
# What runs on this machine: the emulated GPU, and what writes the files that its driver asks for.
HERE = CARD, CARD_FILES = "amdgpu-card", "amdgpu-card-files"
# Those that the Debian package brings, where it has them.
PACKAGED = {
    "usr/lib/criu/amdgpu_plugin.so": PLACES["amdgpu_plugin"],
    "usr/bin/sluice": PLACES["sluice"],
}


class Failed(Exception):
    """The build failed: its output's end."""


def run(words):
    done = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise Failed("\n".join(done.stdout.splitlines()[-40:]))
    return done.stdout


def glibc_is_old_enough():
    return tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")[:2]) <= OLDEST_GLIBC


@dataclasses.dataclass
class Programs:
    """`guest`: {place in the guest: file}. `here`: {target: file} of what runs on this machine."""
    guest: dict
    here: dict


def sorted_out(targets, folder):
    """Programs, of what `meson introspect --targets` says. `folder`: from the name of a file there to the file."""
    files = {target["name"]: folder(target["filename"][0]) for target in targets if target["name"] in (*PLACES, *HERE)}
    return Programs({PLACES[name]: file for name, file in files.items() if name in PLACES},
                    {name: file for name, file in files.items() if name in HERE})


def built_here(checkout, build, required, say):
    """From the machine's own build folder; builds just these targets. What does not build is left out where not all is
    `required`."""
    if not (build / "build.ninja").exists():
        run(["meson", "setup", str(build), str(checkout)])
    listed = json.loads(run(["meson", "introspect", "--targets", str(build)]))
    programs = sorted_out(listed, pathlib.Path)
    ninja = ["ninja", "-C", str(build)]
    run([*ninja, *(os.path.relpath(file, build) for file in programs.here.values())])
    try:
        run([*ninja, *(os.path.relpath(file, build) for file in programs.guest.values())])
    except Failed:
        if required:
            raise
        for place, file in list(programs.guest.items()):
            words = [*ninja, os.path.relpath(file, build)]
            if subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode:
                say(f"does not build: {file.name}")
                del programs.guest[place]
    return programs


def built_in_root(checkout, build, folder, say):
    """The same from a build folder of its own (`build`/vm/programs), with compiler and libraries of the oldest suite."""
    packages = run([str(checkout / "scripts" / "setup"), "--print"]).split()
    root = roots.make(folder, "compiler", OLDEST_SUITE, packages, say)
    inside = build / "vm" / "programs"
    inside.mkdir(parents=True, exist_ok=True)
    names = " ".join((*PLACES, *HERE))
    script = ('cd /build; [ -e build.ninja ] || meson setup . /src >&2\n'
              'meson introspect --targets > targets.json\n'
              f'ninja >&2 $(python3 -c \'import json, sys; [print(t["filename"][0][len("/build/"):]) for t in '
              f'json.load(open("targets.json")) if t["name"] in sys.argv[1:]]\' {names})')
    run(roots.enter(root, [(checkout, "/src"), (inside, "/build")], script))
    listed = json.loads((inside / "targets.json").read_text(encoding="utf-8"))
    return sorted_out(listed, lambda name: inside / name[len("/build/"):])


def collect(checkout, build, folder, required, say):
    say("the guests' programs")
    if glibc_is_old_enough():
        return built_here(checkout, build, required, say)
    say(f"this machine's glibc is newer than {OLDEST_SUITE}'s: the programs are built in a {OLDEST_SUITE} root")
    return built_in_root(checkout, build, folder, say)


def of_package(package, folder):
    """{place in the guest: file} of what the Debian package installs; it is unpacked into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    run(["dpkg-deb", "--extract", str(package), str(folder)])
    return {place: folder / path for path, place in PACKAGED.items()}


def given(files):
    """{place in the guest: file} of {target: file or nothing}: what takes the place of the build's."""
    return {PLACES[target]: file for target, file in files.items() if file}
