#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""rooms.py ROOT: whether the folders of src at ROOT include each other in one direction only.

FLOORS says which folders a folder may include from; a folder that is not there is one too many or has no place yet.
"""
import pathlib
import re
import sys

ENGINE = ["base", "pipeline/reactor", "pipeline", "pipeline/checksum", "pipeline/replica", "pipeline/store", "pipeline/extents"]
KFD = ["kfd", "kfd/matching", "kfd/memory", "kfd/records"]
IMAGES = [*ENGINE, "proc", *KFD, "drm", "images", "images/files", "images/chain"]
PLUGIN = [*IMAGES, "settings", "plugin/host", "plugin/contents"]
COMMAND = [*IMAGES, "settings", "verify", "flatten", "cli"]
DUMP = [f"plugin/dump/{phase}" for phase in ("tree", "basis", "survey", "plan", "carry")]
RESTORE = [f"plugin/restore/{room}" for room in ("survey", "plan", "gpus", "basis", "server")]
FLOORS = {
    "base": [],
    "proc": ["base"],
    "pipeline/reactor": ["base"],
    "pipeline": ["base", "pipeline/reactor"],
    "pipeline/checksum": ENGINE,
    "pipeline/replica": ENGINE,
    "pipeline/store": ENGINE,
    "pipeline/extents": ENGINE,
    "kfd": ["base", "proc"],
    "kfd/matching": ["base", "kfd", "kfd/memory"],
    "kfd/memory": ["base", "proc", "kfd"],
    "kfd/records": ["base", "kfd"],
    "drm": ["base", "pipeline/reactor", "pipeline"],
    "images/files": [*ENGINE, "proc"],
    "images": [*ENGINE, "proc", *KFD, "drm", "images/files"],
    "images/chain": [*ENGINE, "images", "images/files"],
    "verify": IMAGES,
    "flatten": IMAGES,
    "settings": IMAGES,
    "plugin/host": IMAGES,
    "plugin/contents": PLUGIN,
    # A dump's phases, each with what the earlier ones have made.
    "plugin/dump/tree": PLUGIN,
    "plugin/dump/basis": [*PLUGIN, "flatten"],
    "plugin/dump/survey": [*PLUGIN, "plugin/dump/tree", "plugin/dump/basis"],
    "plugin/dump/plan": [*PLUGIN, "plugin/dump/survey"],
    "plugin/dump/carry": [*PLUGIN, "plugin/dump/basis", "plugin/dump/plan"],
    "plugin/dump": [*PLUGIN, *DUMP],
    "plugin/predump": [*PLUGIN, *DUMP],
    # Before there are tasks: survey, plan, basis. Then the tasks, and the server that works for them.
    "plugin/restore/survey": PLUGIN,
    "plugin/restore/plan": [*PLUGIN, "plugin/restore/survey"],
    "plugin/restore/gpus": PLUGIN,
    "plugin/restore/basis": [*PLUGIN, "plugin/restore/gpus", "plugin/restore/plan", "plugin/restore/survey"],
    "plugin/restore/server": PLUGIN,
    "plugin/restore/task": [*PLUGIN, *RESTORE],
    "plugin/restore": [*PLUGIN, *RESTORE, "plugin/restore/task"],
    "plugin": [*PLUGIN, "plugin/dump", "plugin/predump", "plugin/restore", "plugin/restore/basis", "plugin/restore/task"],
    "cli": [*IMAGES, "settings"],
    "cli/plan": COMMAND,
    # `map` sees the local GPUs as a restore does.
    "cli/checkpoint": [*COMMAND, "plugin/restore/gpus"],
    "cli/show": [*COMMAND, "cli/checkpoint"],
    "cli/check": [*COMMAND, "cli/plan", "cli/show", "cli/check/obstacles"],
    "cli/check/obstacles": COMMAND,
    # What the plugin does in CRIU's pre-dump, without CRIU.
    "cli/predump": [*COMMAND, "plugin/host", "plugin/predump"],
}
INCLUDE = re.compile(r'^#include "([^"]+)/[^"/]+"', re.M)


def complaints(root):
    folders = {}
    for file in sorted((root / "src").rglob("*")):
        if file.suffix in (".cc", ".h"):
            folders.setdefault(file.parent.relative_to(root / "src").as_posix(), []).append(file)
    for folder in sorted(folders.keys() ^ FLOORS.keys()):
        yield f"src/{folder}: not both a folder with sources and one of FLOORS"
    for folder, files in folders.items():
        for file in files:
            for other in INCLUDE.findall(file.read_text(encoding="utf-8")):
                if other != folder and other not in FLOORS.get(folder, []):
                    yield f"{file.relative_to(root)}: src/{folder} must not include from src/{other}"


def main(root):
    found = list(complaints(root))
    for complaint in found:
        print(complaint)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
