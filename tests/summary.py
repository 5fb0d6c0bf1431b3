#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts what `meson test` ran, case by case, and names what was skipped and why.

usage: summary.py MESON-LOGS
Reads testlog.json (one object a test program) and testlog.junit.xml (GoogleTest's cases within them). The last line is
`N passed, N failed, N skipped`; exit status 1 when something failed or nothing passed.
"""
import json
import pathlib
import sys
import xml.etree.ElementTree as xml


def programs(log):
    with open(log / "testlog.json", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def merged_suites(log):
    """(name, cases) of every GoogleTest suite. Meson names it `PROJECT.PROGRAM.SUITE`."""
    return [(suite.get("name", ""), suite.findall("testcase"))
            for suite in xml.parse(log / "testlog.junit.xml").getroot().iter("testsuite")]


def cases_of(program, suites):
    project = program.split(":", 1)[0]
    prefix = f"{project}.{program}."
    return [case for name, cases in suites if name.startswith(prefix) for case in cases]


def last_line(text):
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def main():
    log = pathlib.Path(sys.argv[1])
    passed, failed, skipped = 0, [], []
    suites = merged_suites(log)
    for program in programs(log):
        name, result = program["name"], program["result"]
        cases = cases_of(name, suites)
        before = len(failed)
        for case in cases:
            label = f"{name}: {case.get('classname', '')}.{case.get('name', '')}"
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(label)
            elif case.find("skipped") is not None or case.get("result") == "skipped":
                note = case.find("skipped")
                reason = (note.get("message") or note.text or "") if note is not None else ""
                skipped.append((label, last_line(reason)))
            else:
                passed += 1
        if result in ("FAIL", "ERROR", "TIMEOUT", "INTERRUPT", "UNEXPECTEDPASS"):
            if len(failed) == before:
                failed.append(f"{name} ({result.lower()})")
        elif result == "SKIP" and not cases:
            skipped.append((name, last_line(program.get("stdout"))))
        elif not cases:
            passed += 1
    for label in failed:
        print(f"failed: {label}")
    for label, reason in skipped:
        print(f"skipped: {label}: {reason}")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
