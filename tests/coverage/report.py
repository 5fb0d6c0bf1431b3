#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What of src ran, by folder, out of `llvm-cov export -format=text`; every line and branch that did not, with the reason.

    report.py COVERAGE.json MISSED.txt [--part]

Exit status 1: less ran than the bar demands (docs/testing.md), or a line has no reason. With --part, of tests without the
guests, the latter is told only: what nothing but a guest runs has none.

Reasons are in reasons.list beside this file: a title in brackets, then what it explains, `PATH: TEXT` a line: the file below
src, and what stands in the line; for `*`, all files, a regular expression of it. The first that fits counts. So a line that is
new or has changed has no reason until somebody has given it one.
"""
import collections
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NONE = "no reason is given"
BAR = {"lines": 95, "branches": 90}  # percent of all of src


def read_reasons(text):
    """[(title, path, text)], in the order of the file."""
    rules, title = [], None
    for line in filter(None, text.splitlines()):
        if line.startswith("["):
            title = line.strip("[]")
        elif not line.startswith("#"):
            rules.append((title, *line.split(": ", 1)))
    return rules


def reason_of(path, code, rules):
    for title, file, text in rules:
        if (re.search(text, code) if file == "*" else (file, text) == (path, code)):
            return title
    return NONE


def missed_lines(segments, text):
    """Lines with a word, or a part of one, that never ran."""
    missed = set()
    for (line, column, count, counted, _, gap), (next_line, next_column, *_) in zip(segments, segments[1:]):
        if not counted or count or gap:
            continue
        for number in range(line, min(next_line, len(text)) + 1):
            part = text[number - 1][column - 1 if number == line else 0:next_column - 1 if number == next_line else None]
            if re.search(r"\w", part):
                missed.add(number)
    return missed


def missed_branches(file):
    """(line, what it never was) of each condition; of a macro's conditions the line is where the macro is used."""
    conditions = [(branch[0], branch) for branch in file["branches"]]
    conditions += [(use["source_region"][0], branch) for use in file["expansions"] for branch in use["branches"]]
    return [(line, word) for line, (_, _, _, _, yes, no, *_) in conditions
            for count, word in ((yes, "true"), (no, "false")) if count == 0]


def complaints(tally, unexplained, part):
    for kind, bar in BAR.items():
        if 100 * tally["ran " + kind] < bar * tally[kind] or not tally[kind]:
            yield f"{share(tally, kind)} of the {kind} ran, the bar is {bar} %"
    if unexplained and not part:
        yield f"{unexplained} lines have no reason: tests/coverage/reasons.list"


def main(coverage, missed, *options):
    """The exit status."""
    files = json.loads(pathlib.Path(coverage).read_text(encoding="utf-8"))["data"][0]["files"]
    rules = read_reasons((pathlib.Path(__file__).parent / "reasons.list").read_text(encoding="utf-8"))
    tally = collections.defaultdict(collections.Counter)
    by_reason = {title: [] for title in [NONE] + [title for title, *_ in rules]}
    for file in sorted(files, key=lambda each: each["filename"]):
        path = pathlib.Path(file["filename"]).resolve()
        if not path.is_relative_to(ROOT / "src"):
            continue
        path = path.relative_to(ROOT / "src")
        for kind in ("lines", "branches"):
            for folder in (path.parts[0], "all of src"):
                tally[folder][kind] += file["summary"][kind]["count"]
                tally[folder]["ran " + kind] += file["summary"][kind]["covered"]
        text = (ROOT / "src" / path).read_text(encoding="utf-8").splitlines()
        what = collections.defaultdict(set)
        for line in missed_lines(file["segments"], text):
            what[line].add("never ran")
        for line, word in missed_branches(file):
            what[line].add("never " + word)
        for line, words in sorted(what.items()):
            code = text[line - 1].strip()
            if not re.search(r"\w", code):
                continue  # a brace of what is above it
            by_reason[reason_of(str(path), code, rules)].append(
                f"src/{path}:{line}: {', '.join(sorted(words))}: {code}")
    with open(missed, "w", encoding="utf-8") as out:
        for title, lines in by_reason.items():
            out.write("".join(f"{line}\n" for line in [f"[{title}] {len(lines)}", *lines, ""]))
    print(f"{'src/':<12}{'lines':>8}{'ran':>9}{'branches':>10}{'ran':>9}")
    for folder, count in sorted(tally.items(), key=lambda each: (each[0] == "all of src", each[0])):
        print(f"{folder:<12}{count['lines']:>8}{share(count, 'lines'):>9}"
              f"{count['branches']:>10}{share(count, 'branches'):>9}")
    print("\nlines of which nothing, or not every branch, ran, and why")
    for title, lines in by_reason.items():
        print(f"{len(lines):>6}  {title}")
    found = list(complaints(tally["all of src"], len(by_reason[NONE]), "--part" in options))
    for complaint in found:
        print(f"failed: {complaint}")
    return 1 if found else 0


def share(count, kind):
    return f"{100 * count['ran ' + kind] / count[kind]:.1f} %" if count[kind] else "-"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
