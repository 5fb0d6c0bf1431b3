#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What of src ran, by folder, out of `llvm-cov export -format=text`; every line and branch that did not, with the reason.

    report.py COVERAGE.json MISSED.txt [--part]

Exit status 1: less ran than the bar demands (docs/internals/testing.md), or a line that never ran has no reason. With --part, of tests
without the guests, the latter is told only: what nothing but a guest runs has none.

A reason stands beside the code: `// unreached: why`, at the end of any line of the statement, or on a line of its own above it.
It is about the whole statement and the block below it. `// unreached below: why` is about the rest of the enclosing block, or of
the file. KINDS are reasons of lines that tell by themselves why they do not run. A line that ran, of which a condition had one
outcome only, needs no reason: the bar of the branches is about these. A marker whose lines all ran is told; it fails nothing,
because a race is met in one run and not in another.
"""
import collections
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NONE = "no reason is given"
HALF = "ran, but a condition had one outcome only"
BAR = {"lines": 95, "branches": 93}  # percent of all of src
KINDS = {
    "an error that is only passed on":
        r"^(else )?(if \(.*\) )?SLUICE_TRY(_ASSIGN)?\(|sluice_try_|SLUICE_TRY\(|return (std::move\()?\(?[\w.]+\)?\.error\(\);",
    "the error of a system call":
        r"return (make_error\()?((\w+ < 0 \? )?errno|err)\b",
    "out of memory, or an exception of the C++ library": r"ENOMEM|^\} catch \(|\bEIO, .*exception|e\.what\(\)",
    "one arm of a conditional expression": r"\S \? .+ : |^\? .+|^: .+;$",
    "a guard against null": r"== nullptr\)( return| continue|$)",
    "what was seen has ended or changed, or a signal came": r"\b(EINTR|ESRCH|ECANCELED|EAGAIN|no_such_task|process_gone)\b",
    "all values of an enum are handled; there is no other":
        r"^switch \((weight|status|parasite|kind|part)\)|__builtin_unreachable",
}
MARK = re.compile(r"// unreached( below)?: (\S.*)")


def indent(line):
    return len(line) - len(line.lstrip())


def is_within(lines, at, column):
    """Whether a line belongs to what begins with this indentation."""
    return at < len(lines) and (not lines[at].strip() or indent(lines[at]) > column)


def statement(lines, at):
    """The lines, [first, end), of the statement that has line `at`, and of the block below it. Counted from 0."""
    first, end = at, at + 1
    while first > 0 and re.search(r"[^;{}:\s]$", re.sub(r"(^|\s)//.*", "", lines[first - 1]).rstrip() or ";"):
        first -= 1
    while is_within(lines, end, indent(lines[first])):
        end += 1
    return first, end


def markers(lines):
    """[(its line, first, end, reason)] of each marker in a file. Lines are counted from 0."""
    found = []
    for at, line in enumerate(lines):
        mark = MARK.search(line)
        if mark and mark[1]:
            end = at + 1
            while is_within(lines, end, indent(line) - 1):
                end += 1
            found.append((at, at + 1, end, mark[2]))
        elif mark:
            found.append((at, *statement(lines, at + 1 if line.lstrip().startswith("//") else at), mark[2]))
    return found


def reason_of(lines, at, marks, half):
    inner = [mark for mark in marks if mark[1] <= at < mark[2]]
    if inner:
        return min(inner, key=lambda mark: mark[2] - mark[1])[3]
    for title, kind in KINDS.items():
        if re.search(kind, lines[at].strip()):
            return title
    return HALF if half else NONE


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
        yield f"{unexplained} lines never ran and have no reason: // unreached: why"


def main(coverage, missed, *options):
    """The exit status."""
    files = json.loads(pathlib.Path(coverage).read_text(encoding="utf-8"))["data"][0]["files"]
    tally = collections.defaultdict(collections.Counter)
    by_reason, stale = collections.defaultdict(list), []
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
        marks = markers(text)
        for line, words in sorted(what.items()):
            code = text[line - 1].strip()
            if not re.search(r"\w", code):
                continue  # a brace of what is above it
            by_reason[reason_of(text, line - 1, marks, "never ran" not in words)].append(
                f"src/{path}:{line}: {', '.join(sorted(words))}: {code}")
        stale += [f"src/{path}:{at + 1}: {reason}" for at, first, end, reason in marks
                  if not any(first < line <= end for line in what)]
    ranked = sorted(by_reason.items(), key=lambda each: (each[0] != NONE, -len(each[1])))
    with open(missed, "w", encoding="utf-8") as out:
        for title, lines in ranked + [("marked, and ran", stale)]:
            out.write("".join(f"{line}\n" for line in [f"[{title}] {len(lines)}", *lines, ""]))
    print(f"{'src/':<12}{'lines':>8}{'ran':>9}{'branches':>10}{'ran':>9}")
    for folder, count in sorted(tally.items(), key=lambda each: (each[0] == "all of src", each[0])):
        print(f"{folder:<12}{count['lines']:>8}{share(count, 'lines'):>9}"
              f"{count['branches']:>10}{share(count, 'branches'):>9}")
    print("\nlines of which nothing, or not every branch, ran, and why")
    for title, lines in ranked:
        print(f"{len(lines):>6}  {title}")
    for marker in stale:
        print(f"marked, and ran: {marker}")
    found = list(complaints(tally["all of src"], len(by_reason[NONE]), "--part" in options))
    for complaint in found:
        print(f"failed: {complaint}")
    return 1 if found else 0


def share(count, kind):
    return f"{100 * count['ran ' + kind] / count[kind]:.1f} %" if count[kind] else "-"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
