#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts what `meson test` and the guests ran, case by case, and names what was skipped and why. A program of GoogleTest
that ran no case has failed.

Before that, what programs and steps have counted themselves: their lines that begin with "shown: " (seeds, cases, cycles).

MESON-LOGS has testlog.json (one object a test program) and testlog.junit.xml (GoogleTest's cases within them);
results.json is scripts/vm's. The last line is `N passed, N failed, N skipped`; exit status 1 when something failed or
nothing passed. What failed in a guest that does not decide is named loudly and counted beside, with --strict like everything else.
"""
import argparse
import json
import pathlib
import sys
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "vm"))
import suites  # noqa: E402


class Tally:
    """What was counted. `failed`: labels; `skipped`: (label, reason); `beside`: labels that do not count."""

    def __init__(self):
        self.passed, self.failed, self.skipped, self.beside = 0, [], [], []


def programs(log):
    with open(log / "testlog.json", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def merged_suites(log):
    """(name, cases) of every GoogleTest suite. Meson names it `PROJECT.PROGRAM.SUITE`."""
    return [(suite.get("name", ""), suite.findall("testcase"))
            for suite in xml.parse(log / "testlog.junit.xml").getroot().iter("testsuite")]


def cases_of(program, merged):
    project = program.split(":", 1)[0]
    prefix = f"{project}.{program}."
    return [case for name, cases in merged if name.startswith(prefix) for case in cases]


def is_one_case(program, merged):
    """Whether Meson goes by the exit status of it alone: a case of the suite that has the project's name."""
    project = program.split(":", 1)[0]
    return any(name == project and case.get("name") == program for name, cases in merged for case in cases)


def last_line(text):
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def count_programs(log, tally):
    merged = merged_suites(log)
    for program in programs(log):
        name, result = program["name"], program["result"]
        cases = cases_of(name, merged)
        before = len(tally.failed)
        for case in cases:
            label = f"{name}: {case.get('classname', '')}.{case.get('name', '')}"
            if case.find("failure") is not None or case.find("error") is not None:
                tally.failed.append(label)
            elif case.find("skipped") is not None or case.get("result") == "skipped":
                note = case.find("skipped")
                reason = (note.get("message") or note.text or "") if note is not None else ""
                tally.skipped.append((label, last_line(reason)))
            else:
                tally.passed += 1
        if result in ("FAIL", "ERROR", "TIMEOUT", "INTERRUPT", "UNEXPECTEDPASS"):
            if len(tally.failed) == before:
                tally.failed.append(f"{name} ({result.lower()})")
        elif result == "SKIP" and not cases:
            tally.skipped.append((name, last_line(program.get("stdout"))))
        elif not cases and is_one_case(name, merged):
            tally.passed += 1
        elif not cases:
            tally.failed.append(f"{name} (no test of it ran)")


def shown(log, steps):
    """What each program says that it has shown, and each step, by its name, in its log beside MESON-LOGS."""
    texts = [("shown: ", program.get("stdout") or "") for program in programs(log)]
    logs = [(name, log.parent / f"{name}.log") for name in steps]
    texts += [(f"shown: {name}: ", path.read_text(encoding="utf-8", errors="replace")) for name, path in logs if path.exists()]
    return [line.replace("shown: ", who, 1) for who, text in texts for line in text.splitlines() if line.startswith("shown: ")]


def count_guests(results, strict, left_out, tally):
    """`results` is scripts/vm's file. A suite that it lacks is a failure, because the run did not come to its end. Suites of
    `left_out` were not asked for."""
    found = {}
    if results.exists():
        found = {result["suite"]: result for result in json.loads(results.read_text(encoding="utf-8"))}
    for suite in suites.EVERY.values():
        if suite.name in left_out:
            continue
        failed = tally.failed if suite.decides or strict else tally.beside
        result = found.get(suite.name)
        if not result:
            failed.append(f"vm {suite.name}: no results")
            continue
        for problem in result["problems"]:
            failed.append(f"vm {suite.name}: {problem.splitlines()[0]}")
        for case in result["cases"]:
            label = f"vm {suite.name}: {case['name']}"
            if case["result"] == "failed":
                failed.append(label)
            elif case["result"] == "skipped":
                tally.skipped.append((label, case["reason"]))
            else:
                tally.passed += 1


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=pathlib.Path, metavar="MESON-LOGS")
    parser.add_argument("--vm", type=pathlib.Path, metavar="RESULTS.json", help="count the guests' scenarios")
    parser.add_argument("--no-vm", metavar="REASON", help="the guests were left out")
    parser.add_argument("--step", nargs=2, action="append", default=[], metavar=("NAME", "RESULT"),
                        help="what else was run: passed, failed, or why it was left out")
    parser.add_argument("--left-out", nargs=2, action="append", default=[], metavar=("SUITE", "WHY"),
                        help="a guest that was not asked for")
    parser.add_argument("--strict", action="store_true", help="every guest decides")
    options = parser.parse_args(words)
    tally = Tally()
    count_programs(options.log, tally)
    for name, result in options.step:
        if result == "passed":
            tally.passed += 1
        elif result == "failed":
            tally.failed.append(name)
        else:
            tally.skipped.append((name, result))
    if options.vm:
        count_guests(options.vm, options.strict, {suite for suite, _ in options.left_out}, tally)
        tally.skipped += [(f"vm {suite}", why) for suite, why in options.left_out]
    if options.no_vm:
        tally.skipped += [(f"vm {name}", options.no_vm) for name in suites.EVERY]
    for line in shown(options.log, [name for name, _ in options.step]):
        print(line)
    for label in tally.failed:
        print(f"failed: {label}")
    for label, reason in tally.skipped:
        print(f"skipped: {label}: {reason}")
    for label in tally.beside:
        print(f"!!! FAILED, but does not decide: {label}")
    beside = f"; {len(tally.beside)} failed that do not decide" if tally.beside else ""
    print(f"{tally.passed} passed, {len(tally.failed)} failed, {len(tally.skipped)} skipped{beside}")
    return 0 if tally.passed and not tally.failed else 1


if __name__ == "__main__":
    sys.exit(main())
