# SPDX-License-Identifier: MIT
"""Roots: one unpacked Debian per suite, made once by mmdebstrap and kept.

A root is complete when it has its stamp, which names the recipe; another recipe makes it anew. Several checkouts may
share a folder of roots: making one takes a lock, and nothing is written into a complete one (builds happen in folders
that are bound over its /build, in a mount namespace of their own). Everything belongs to whoever made it; with root's
rights mmdebstrap works as root, without them in a user namespace.
"""
import fcntl
import functools
import os
import pathlib
import shutil
import subprocess

import mirror
import suites

RECIPE = "1"
# No documentation; no initrd generation, which takes longer than everything else together.
EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/etc/kernel/*", "/usr/share/kernel/*")
APT = ('APT::Install-Recommends "false"', 'Acquire::Languages "none"', 'Acquire::Check-Valid-Until "false"',
       'Acquire::Retries "3"')
IS_ROOT = os.geteuid() == 0


class Unavailable(Exception):
    """A root cannot be made: the reason, for a person."""


def directory(checkout):
    return pathlib.Path(os.environ.get("SLUICE_VM_DIR") or checkout / "build" / "vm")


@functools.cache
def namespace():
    """The words that start a command with mounts of its own and, inside, root's rights."""
    if not IS_ROOT:
        return ["unshare", "--map-root-user", "--mount", "--pid", "--fork"]
    # In a chroot / is no mount, and its propagation cannot be changed: enter() takes its mounts away itself.
    private = subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    return ["unshare", "--mount"] if private else ["unshare", "--mount", "--propagation", "unchanged"]


def enter(root, binds, script):
    """The command that runs `script` (sh) in `root`; `binds` are (folder outside, mount point inside)."""
    mounts = [("-t proc proc", "/proc"), *((f'--bind "{outside}"', inside) for outside, inside in binds)]
    lines = ["trap '" + "; ".join(f'umount -l "{root}{inside}" 2>/dev/null' for _, inside in reversed(mounts)) + "' EXIT",
             "set -e"]
    lines += [f'mount {what} "{root}{inside}"' for what, inside in mounts]
    lines += [f'chroot "{root}" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 sh -ec "$1"']
    return [*namespace(), "sh", "-c", "\n".join(lines), "sh", script]


def output(root, script, binds=()):
    return subprocess.run(enter(root, binds, script), check=True, text=True, stdout=subprocess.PIPE).stdout


def resolve(root, path):
    """The file outside that `path` (absolute, inside) is, symbolic links followed as inside; None without one."""
    here, parts, hops = pathlib.Path(root), [part for part in str(path).split("/") if part], 0
    while parts:
        part = parts.pop(0)
        if part == "..":
            here = here.parent if here != root else here
            continue
        entry = here / part
        if entry.is_symlink():
            hops += 1
            target = os.readlink(entry)
            parts = [piece for piece in target.split("/") if piece and piece != "."] + parts
            here = pathlib.Path(root) if target.startswith("/") else here
            if hops > 40:
                return None
        elif entry.exists():
            here = entry
        else:
            return None
    return here


def remove(path):
    if path.exists():
        subprocess.run(["rm", "-rf", "--one-file-system", str(path)], check=True)


def bootstrap(target, suite_name, packages, folder, backports):
    """mmdebstrap into `target`, which does not exist. Raises Unavailable with the end of its log."""
    options = ["--quiet", "--variant=minbase", f"--include={','.join(packages)}", f"--keyring={mirror.KEYRINGS}/",
               *(f"--aptopt={line}" for line in (*APT, *mirror.proxies())), "--dpkgopt=force-unsafe-io",
               *(f"--dpkgopt=path-exclude={path}" for path in EXCLUDED)]
    try:
        line = mirror.debian(folder)
        sources = [line(suite_name)]
        if backports:
            # Of two versions apt takes the suite's own, unless backports count as much.
            pins = folder / f"{target.name}.pins"
            pins.write_text(f"Package: *\nPin: release n={suite_name}-backports\nPin-Priority: 500\n", encoding="ascii")
            sources.append(line(f"{suite_name}-backports"))
            options.append(f'--aptopt=Dir::Etc::preferences "{pins}"')
    except mirror.NoMirror as problem:
        raise Unavailable(str(problem)) from problem
    log = folder / f"{target.name}.log"
    if IS_ROOT:
        words = ["mmdebstrap", "--mode=root", "--format=directory", *options, suite_name, str(target), *sources]
    else:
        if not shutil.which("newuidmap"):
            raise Unavailable("without root, mmdebstrap needs the package uidmap and a range in /etc/subuid")
        archive = target.with_suffix(".tar")
        # From a tar file everything comes to belong to the caller, so that it can be read and removed again.
        words = ["sh", "-ec", 'archive=$1 target=$2; shift 2; "$@"; mkdir "$target"; '
                 'tar -C "$target" --no-same-owner --no-same-permissions --exclude="./dev/*" -xf "$archive"; '
                 'rm "$archive"',
                 "sh", str(archive), str(target),
                 "mmdebstrap", "--mode=unshare", "--format=tar", *options, suite_name, str(archive), *sources]
    with open(log, "w", encoding="utf-8") as out:
        status = subprocess.run(words, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    if status:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        places = ", ".join(source.split(" ", 1)[1] for source in sources)
        raise Unavailable(f"mmdebstrap {suite_name} from {places} failed:\n{tail}")


def make(folder, name, suite_name, packages, say, backports=False):
    """The complete root `name` in `folder`; made when there is none of this recipe. `backports`: with packages of the
    suite's backports, where those are newer."""
    packages = sorted(packages)
    stamp_text = f"{RECIPE} {suite_name}{'+backports' if backports else ''} {','.join(packages)}\n"
    root = folder / f"root-{name}"
    stamp = root / ".sluice-root"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"root-{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text(encoding="utf-8") == stamp_text:
            return root
        say(f"makes a root, once, from the Debian mirror: {root}")
        new = folder / f"new-{name}"
        remove(new)
        bootstrap(new, suite_name, packages, folder, backports)
        (new / "build").mkdir()
        (new / "src").mkdir()
        (new / ".sluice-root").write_text(stamp_text, encoding="utf-8")
        remove(root)
        new.rename(root)
        return root


def of_suite(folder, suite, say):
    return make(folder, suite.root, suite.debian, suites.PACKAGES + suite.packages, say)


def load_order(root, names):
    """Files (outside) of kernel modules and what they depend on, in the order in which they load."""
    version, _ = kernel(root)
    script = f'for module in {" ".join(names)}; do modprobe -S {version} --show-depends "$module"; done'
    order = []
    for line in output(root, script).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "insmod" and words[1] not in order:
            order.append(words[1])
    return [resolve(root, path) for path in order]


def kernel(root):
    """(version, vmlinuz) of the root's kernel. With /etc/kernel excluded newer Debians leave it beside the modules."""
    versions = sorted(path.name for path in (root / "usr/lib/modules").iterdir() if (path / "build").is_symlink()
                      or (path / "modules.dep").exists())
    version = versions[-1]
    for path in (root / "boot" / f"vmlinuz-{version}", root / "usr/lib/modules" / version / "vmlinuz"):
        if path.exists():
            return version, path
    raise Unavailable(f"{root} has no kernel image for {version}")
