#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What report.py holds against a run: less than the bar, a line without a reason."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import report  # noqa: E402

FILE = "src/base/units.h"  # any of src


class Report(unittest.TestCase):
    def run_report(self, *options, lines=100, branches=100, segments=()):
        """Of one file: its exit status, and what it says failed."""
        summary = {"lines": {"count": 100, "covered": lines}, "branches": {"count": 100, "covered": branches}}
        file = {"filename": str(report.ROOT / FILE), "summary": summary, "segments": list(segments), "branches": [],
                "expansions": []}
        with tempfile.TemporaryDirectory() as folder:
            coverage = pathlib.Path(folder) / "coverage.json"
            coverage.write_text(json.dumps({"data": [{"files": [file]}]}), encoding="utf-8")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = report.main(coverage, pathlib.Path(folder) / "missed.txt", *options)
        return status, [line for line in out.getvalue().splitlines() if line.startswith("failed: ")]

    def never_ran(self):
        """Segments of a line that nobody would give a reason for."""
        text = (report.ROOT / FILE).read_text(encoding="utf-8").splitlines()
        line = next(number for number, code in enumerate(text, 1) if code.startswith("namespace"))
        return [(line, 1, 0, True, True, False), (line, 10, 0, False, False, False)]

    def test_the_bar_itself_is_enough(self):
        self.assertEqual(self.run_report(lines=95, branches=90), (0, []))

    def test_too_few_lines(self):
        self.assertEqual(self.run_report(lines=94), (1, ["failed: 94.0 % of the lines ran, the bar is 95 %"]))

    def test_too_few_branches(self):
        self.assertEqual(self.run_report(branches=89), (1, ["failed: 89.0 % of the branches ran, the bar is 90 %"]))

    def test_a_line_without_a_reason(self):
        self.assertEqual(self.run_report(segments=self.never_ran()),
                         (1, ["failed: 1 lines have no reason: tests/coverage/reasons.list"]))

    def test_what_lies_between_two_words_is_none(self):
        (line, *_), _ = self.never_ran()
        behind = [(line, 10, 0, True, True, False), (line, 11, 0, False, False, False)]
        self.assertEqual(self.run_report(segments=behind), (0, []))

    def test_reasons_are_not_asked_of_a_part(self):
        self.assertEqual(self.run_report("--part", segments=self.never_ran()), (0, []))
        self.assertEqual(self.run_report("--part", lines=94)[0], 1)

    def test_each_reason_is_of_a_line_that_is_there(self):
        rules = report.read_reasons(pathlib.Path(report.__file__).with_name("reasons.list").read_text(encoding="utf-8"))
        for _, path, text in rules:
            if path != "*":
                lines = (report.ROOT / "src" / path).read_text(encoding="utf-8").splitlines()
                self.assertIn(text, [line.strip() for line in lines], path)


if __name__ == "__main__":
    unittest.main()
