# SPDX-License-Identifier: MIT
"""A driver in place of Debian's amdgpu (scripts/vm --modules): a folder of kernel modules that somebody built for the guest's kernel.

AMD's out-of-tree driver is several modules, some of which take the place of Linux's under other names. So the folder decides: of
Debian's modules the guest loads only those that the folder's modules name and the folder does not have.
"""
import dataclasses
import pathlib
import re
import subprocess

DRIVER = "amdgpu"


class Unfit(Exception):
    """These modules cannot be the guest's driver: the reason, for a person."""


@dataclasses.dataclass(frozen=True)
class Module:
    """`release`: the kernel that it was built for. `needs`: the names of the modules that it depends on."""
    path: pathlib.Path
    release: str
    needs: tuple


def name_of(text):
    """A module's name as the kernel spells it: files and dependencies may have a "-" in place of a "_"."""
    return text.replace("-", "_")


def read(path):
    """What a module says of itself in its section .modinfo. Raises Unfit when it has none."""
    text = subprocess.run(["readelf", "-W", "-p", ".modinfo", str(path)], text=True, capture_output=True, check=False).stdout
    said = dict(re.findall(r"^ *\[ *[0-9a-f]+\] +(depends|vermagic)=(.*)$", text, re.MULTILINE))
    if not said.get("vermagic"):
        raise Unfit(f"{path} is no kernel module")
    return Module(path, said["vermagic"].split()[0], tuple(name_of(name) for name in said.get("depends", "").split(",") if name))


def in_folder(folder):
    """{name: file} of its modules. Raises Unfit where there is no driver."""
    files = {name_of(path.stem): path for path in sorted(folder.glob("*.ko"))}
    if DRIVER not in files:
        raise Unfit(f"{folder} has no {DRIVER}.ko")
    return files


def load_order(folder, release, debian):
    """Files of kernel modules in the order in which they load. `release`: the guest's kernel; `debian(names)`: such a list of
    Debian's modules and what they need, or CalledProcessError. Raises Unfit."""
    modules = {name: read(path) for name, path in in_folder(folder).items()}
    for module in modules.values():
        if module.release != release:
            raise Unfit(f"{module.path} is built for Linux {module.release}, and the guest has {release}")
    own, waiting = [], dict(modules)
    while waiting:
        ready = [name for name, module in waiting.items() if not any(need in waiting for need in module.needs)]
        if not ready:
            raise Unfit(f"modules of {folder} depend on each other in a circle: {', '.join(waiting)}")
        own += [waiting.pop(name).path for name in ready]
    others = sorted({need for module in modules.values() for need in module.needs} - modules.keys())
    # A module of Debian's that needs one of these finds it only if these come first; it then does not load, and the guest says so.
    try:
        theirs = [path for path in debian(others) if name_of(path.name.split(".")[0]) not in modules] if others else []
    except subprocess.CalledProcessError as problem:
        raise Unfit(f"modules of {folder} need {', '.join(others)}; Debian's kernel does not have all of these") from problem
    return theirs + own
