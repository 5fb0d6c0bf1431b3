#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What report.py holds against a run: less than the bar, a line without a reason."""
import contextlib
import io
import json
import pathlib
import re
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import report  # noqa: E402

FILE = "src/base/units.h"  # any of src


class Report(unittest.TestCase):
    def run_report(self, *options, **run):
        """Of one file: its exit status, and what it says failed."""
        status, lines = self.say(FILE, *options, **run)
        return status, [line for line in lines if line.startswith("failed: ")]

    def say(self, name, *options, lines=100, branches=100, segments=()):
        """The exit status, and the lines of the report."""
        summary = {"lines": {"count": 100, "covered": lines}, "branches": {"count": 100, "covered": branches}}
        file = {"filename": str(report.ROOT / name), "summary": summary, "segments": list(segments), "branches": [],
                "expansions": []}
        with tempfile.TemporaryDirectory() as folder:
            coverage = pathlib.Path(folder) / "coverage.json"
            coverage.write_text(json.dumps({"data": [{"files": [file]}]}), encoding="utf-8")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                status = report.main(coverage, pathlib.Path(folder) / "missed.txt", *options)
        return status, out.getvalue().splitlines()

    def never_ran(self):
        """Segments of a line that nobody would give a reason for."""
        text = (report.ROOT / FILE).read_text(encoding="utf-8").splitlines()
        line = next(number for number, code in enumerate(text, 1) if code.startswith("namespace"))
        return [(line, 1, 0, True, True, False), (line, 10, 0, False, False, False)]

    def test_the_bar_itself_is_enough(self):
        self.assertEqual(self.run_report(lines=95, branches=93), (0, []))

    def test_too_few_lines(self):
        self.assertEqual(self.run_report(lines=94), (1, ["failed: 94.0 % of the lines ran, the bar is 95 %"]))

    def test_too_few_branches(self):
        self.assertEqual(self.run_report(branches=92), (1, ["failed: 92.0 % of the branches ran, the bar is 93 %"]))

    def test_a_line_without_a_reason(self):
        self.assertEqual(self.run_report(segments=self.never_ran()),
                         (1, ["failed: 1 lines never ran and have no reason: // unreached: why"]))

    def test_what_lies_between_two_words_is_none(self):
        (line, *_), _ = self.never_ran()
        behind = [(line, 10, 0, True, True, False), (line, 11, 0, False, False, False)]
        self.assertEqual(self.run_report(segments=behind), (0, []))

    def test_reasons_are_not_asked_of_a_part(self):
        self.assertEqual(self.run_report("--part", segments=self.never_ran()), (0, []))
        self.assertEqual(self.run_report("--part", lines=94)[0], 1)

    def reasons(self, code):
        """Of each line that is said never to have run, in order."""
        lines = code.strip("\n").splitlines()
        marks = report.markers(lines)
        return [report.reason_of(lines, at, marks, False) for at in range(len(lines)) if not lines[at].strip().startswith("//")]

    def test_a_marker_is_about_its_statement_and_the_block_below_it(self):
        self.assertEqual(self.reasons("""
  first();
  if (a ||
      b) {  // unreached: a race
    inner();
  }
  last();
"""), [report.NONE, "a race", "a race", "a race", report.NONE, report.NONE])

    def test_a_marker_at_the_end_of_a_statement_is_about_its_beginning(self):
        self.assertEqual(self.reasons("""
  first();
  return call(a,
              b);  // unreached: no test
"""), [report.NONE, "no test", "no test"])

    def test_a_marker_on_a_line_of_its_own_is_about_what_follows(self):
        self.assertEqual(self.reasons("""
  // unreached: no test
  call(a,
       b);
  last();
"""), ["no test", "no test", report.NONE])

    def test_a_marker_for_the_rest_of_a_block(self):
        self.assertEqual(self.reasons("""
void f() {
  // unreached below: another machine
  call();
  if (a) return;  // unreached: a guard
}
call();
"""), [report.NONE, "another machine", "a guard", report.NONE, report.NONE])

    def test_what_tells_by_itself_why_it_does_not_run(self):
        self.assertEqual(self.reasons("  SLUICE_TRY(call());\n  call();"), ["an error that is only passed on", report.NONE])

    def test_a_condition_with_one_outcome_needs_no_reason(self):
        self.assertEqual(report.reason_of(["if (a && b) call();"], 0, [], True), report.HALF)

    def test_each_marker_of_src_is_about_code(self):
        for path in filter(lambda each: each.suffix in (".cc", ".h"), (report.ROOT / "src").rglob("*")):
            lines = path.read_text(encoding="utf-8").splitlines()
            for at, first, end, _ in report.markers(lines):
                self.assertRegex("\n".join(re.sub("//.*", "", line) for line in lines[first:end]), r"\w",
                                 f"{path}:{at + 1}")

    def test_a_marker_at_a_line_that_ran_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "src" / "base" / "one.cc"
            source.parent.mkdir(parents=True)
            source.write_text("call();  // unreached: a race\n", encoding="utf-8")
            with unittest.mock.patch.object(report, "ROOT", pathlib.Path(folder)):
                self.assertIn("marked, and ran: src/base/one.cc:1: a race", self.say("src/base/one.cc")[1])

if __name__ == "__main__":
    unittest.main()
