#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds plugin and command, warnings as errors, with the compiler and libraries of newer Debians, and loads the plugin
there (scripts/package --newer). With --deb first it builds the Debian packages there instead; lintian
must find nothing.

Each Debian is a root of its own beside those of the guests (tests/vm/roots.py). Exit status 77: no root can be made here.
"""
import os
import pathlib
import shutil
import subprocess
import sys

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "tests/vm"))
import roots  # noqa: E402

BUILD = """
cd /build
[ -e build.ninja ] || meson setup . /src --buildtype=release --unity=on -Dunity_size=6 -Dtests=false -Dwerror=true
ninja src/cli/sluice src/plugin/amdgpu_plugin.so
"""
# The verdict is no, for there is no GPU.
LOAD = "cd /build; CRIU_LIBS_DIR=/build/src/plugin src/cli/sluice check || [ $? = 3 ]"
LOADED = "  plugin: /build/src/plugin/amdgpu_plugin.so, sluice "

DEBIAN = ["build-essential", "debhelper", "lintian", "man-db", "pkgconf"]
# Its tests are those of scripts/package --test, on the oldest Debian.
PACKAGE = """
cd /build
mkdir sluice && cp -a /src/. sluice/ && cd sluice
dpkg-buildpackage --build=binary --no-sign
cd .. && lintian --allow-root --fail-on error,warning sluice_*.changes
dpkg-deb --contents sluice_*.deb | grep -q /usr/lib/criu/amdgpu_plugin.so
"""


def say(text):
    print(f"package: {text}", flush=True)


def for_the_build():
    return subprocess.run([CHECKOUT / "scripts/setup", "--print"], check=True, text=True, stdout=subprocess.PIPE).stdout.split()


def failure(suite):
    """Why it does not build, or does not load, in a root of `suite`; empty if it does."""
    root = roots.make(roots.directory(CHECKOUT), f"compiler-{suite}", suite, for_the_build(), say)
    build = CHECKOUT / "build" / "newer" / suite
    shutil.rmtree(build, ignore_errors=True)  # the root may have other versions now
    build.mkdir(parents=True)
    binds = [(CHECKOUT, "/src"), (build, "/build")]
    made = subprocess.run(roots.enter(root, binds, BUILD), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    if made.returncode:
        return "\n".join(made.stdout.splitlines()[-40:])
    found = roots.output(root, LOAD, binds)
    return "" if LOADED in found else f"it is built, and not loaded:\n{found}"


def packaging_failure(suite):
    """Why no package can be built in a root of `suite`; empty if it was built, and lintian found nothing."""
    root = roots.make(roots.directory(CHECKOUT), f"package-{suite}", suite, [*for_the_build(), *DEBIAN], say)
    build = CHECKOUT / "build" / "newer" / f"package-{suite}"
    shutil.rmtree(build, ignore_errors=True)
    (build / "out").mkdir(parents=True)
    source = build / "source"     # without files that git ignores
    source.mkdir()
    subprocess.run('git -c safe.directory="$PWD" ls-files -z --cached --others --exclude-standard | tar --null -T - -c | '
                   f'tar -x -C "{source}"', shell=True, check=True, cwd=CHECKOUT)
    made = subprocess.run(roots.enter(root, [(source, "/src"), (build / "out", "/build")], PACKAGE), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return "\n".join(made.stdout.splitlines()[-40:]) if made.returncode else ""


def main(names):
    status = 0
    look = failure
    if names[0] == "--deb":
        look, names = packaging_failure, names[1:]
    for suite in names:
        try:
            problem = look(suite)
        except roots.Unavailable as reason:
            print(f"skipped: no root of {suite}: {reason}".replace("\n", " "))
            return 77
        good = "builds and loads with" if look is failure else "the Debian packages build with"
        say(f"with what {suite} has it does not work: {problem}" if problem else f"{good} what {suite} has")
        status = status or (1 if problem else 0)
    return status


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
