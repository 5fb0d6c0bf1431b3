#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""security_page.py ROOT: whether docs/user/security.md tells the truth about the tree at ROOT.

Each row of a table of threats must name a test, and every test, and every file of src/, that it names must be there.
"""
import pathlib
import re
import sys

TEST = re.compile(r"^\s*TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)
THREATS = "| threat |"


def tests_of(root):
    return {f"{suite}.{name}" for file in (root / "tests").rglob("*.cc")
            for suite, name in TEST.findall(file.read_text(encoding="utf-8"))}


def rows_of(page):
    """(line number, cells) of every row of a table of threats."""
    inside = False
    for number, line in enumerate(page.splitlines(), 1):
        if not line.startswith("|"):
            inside = False
        elif line.startswith(THREATS):
            inside = True
        elif inside and not line.startswith("|---"):
            yield number, [cell.strip() for cell in line.strip("|").split("|")]


def complaints(root, page):
    known = tests_of(root)
    rows = list(rows_of(page))
    if not rows:
        yield "no table of threats"
    for number, cells in rows:
        if len(cells) != 4:
            yield f"line {number}: {len(cells)} cells instead of 4"
            continue
        tests = re.findall(r"`([^`]+)`", cells[3])
        if not tests:
            yield f"line {number}: no test"
        for test in tests:
            if test not in known:
                yield f"line {number}: there is no test {test}"
        for file in re.findall(r"`([^`]+)`", cells[2]):
            if not (root / file).is_file():
                yield f"line {number}: there is no file {file}"


def main(root):
    found = list(complaints(root, (root / "docs/user/security.md").read_text(encoding="utf-8")))
    for complaint in found:
        print(f"docs/user/security.md: {complaint}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
