#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What of src ran, by folder, out of `llvm-cov export -format=text`; every line and branch that did not, in a file.

    report.py COVERAGE.json MISSED.txt
"""
import collections
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def missed_lines(segments):
    """Lines where code begins, or goes on, that never ran."""
    missed = set()
    for (line, _, count, counted, _, gap), (next_line, next_column, *_) in zip(segments, segments[1:]):
        if counted and count == 0 and not gap:
            missed.update(range(line, next_line + (1 if next_column > 1 else 0)))
    return missed


def missed_branches(file):
    """(line, what it never was) of each condition; of a macro's conditions the line is where the macro is used."""
    conditions = [(branch[0], branch) for branch in file["branches"]]
    conditions += [(use["source_region"][0], branch) for use in file["expansions"] for branch in use["branches"]]
    return [(line, word) for line, (_, _, _, _, yes, no, *_) in conditions
            for count, word in ((yes, "true"), (no, "false")) if count == 0]


def main(coverage, missed):
    files = json.loads(pathlib.Path(coverage).read_text(encoding="utf-8"))["data"][0]["files"]
    tally = collections.defaultdict(collections.Counter)
    with open(missed, "w", encoding="utf-8") as out:
        for file in sorted(files, key=lambda each: each["filename"]):
            path = pathlib.Path(file["filename"]).resolve()
            if not path.is_relative_to(ROOT / "src"):
                continue
            path = path.relative_to(ROOT)
            for kind in ("lines", "branches"):
                for folder in (path.parts[1], "all of src"):
                    tally[folder][kind] += file["summary"][kind]["count"]
                    tally[folder]["ran " + kind] += file["summary"][kind]["covered"]
            text = (ROOT / path).read_text(encoding="utf-8").splitlines()
            reasons = collections.defaultdict(list)
            for line in missed_lines(file["segments"]):
                reasons[line].append("never ran")
            for line, word in missed_branches(file):
                reasons[line].append("never " + word)
            for line, words in sorted(reasons.items()):
                out.write(f"{path}:{line}: {', '.join(sorted(set(words)))}: {text[line - 1].strip()}\n")
    print(f"{'src/':<12}{'lines':>8}{'ran':>9}{'branches':>10}{'ran':>9}")
    for folder, count in sorted(tally.items(), key=lambda each: (each[0] == "all of src", each[0])):
        print(f"{folder:<12}{count['lines']:>8}{share(count, 'lines'):>9}"
              f"{count['branches']:>10}{share(count, 'branches'):>9}")


def share(count, kind):
    return f"{100 * count['ran ' + kind] / count[kind]:.1f} %" if count[kind] else "-"


if __name__ == "__main__":
    main(*sys.argv[1:])
