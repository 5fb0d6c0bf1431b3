#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plot.py: tables and figures from what was saved, and from a trace as the plugin writes it.

    plot_test.py TRACE_WRITER [TEST...]
"""
import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import plot  # noqa: E402

TRACE_WRITER = sys.argv.pop(1)
LANE = '[{"ph":"M","name":"process_name","pid":0,"args":{"name":"a lane"}},'


def figure(unit, value, low, high, samples=2):
    return {"unit": unit, "value": value, "low": low, "high": high, "samples": [value] * samples}


def report(scenario, what, cases, note=""):
    return {"scenario": scenario, "what": what,
            "cases": [{"name": name, "note": note, "figures": figures} for name, figures in cases.items()]}


DUMP = report(
    "dump", "beside the raw disk", {
        'new "file"': {
            "ratio": figure("ratio", 0.75, 0.5, 1), "ours": figure("GB/s", 1.5, 1, 2), "raw": figure("GB/s", 2, 2, 2),
            "cpu": figure("s/GB", 0.15, 0.1, 0.2), "raw cpu": figure("s/GB", 0.035, 0.03, 0.04)
        }
    }, "a note")
BUBBLE = report("bubble", "", {f"{copy}/{checksum}/10": {"overhead": figure("ratio", 1.015, 1.01, 1.02)}
                               for copy in (5, 10) for checksum in (5, 25)})
MEMORY = report("memory", "", {name: {"ours": figure("GB/s", 1.5, 1, 2)} for name in
                               ("pool 16 MiB", "pool 64 MiB", "pool 16 MiB, restore", "pool 64 MiB, restore")})
GOALS = [{"id": 1, "name": "dump", "verdict": "short", "why": ["the disk was slow"],
          "bars": [{"bar": 0.95, "side": "at least", "unit": "ratio", "value": 0.9, "low": 0.8, "high": 0.93,
                    "scenario": "dump", "case": "new file", "figure": "ratio"},
                   {"bar": 2, "side": "at most", "unit": "s", "value": None, "low": None, "high": None,
                    "scenario": "dump", "case": "old file", "figure": "time"}]}]


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.out = self.folder / "new/folder"

    def written(self, content, name="saved.json"):
        file = self.folder / name
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return file

    def saved(self, *reports, **others):
        return plot.read_saved(self.written({"reports": list(reports), **others}))

    def traced(self, *lanes):
        """A trace as the plugin writes it; each lane is (GPU ID, chunks, slots)."""
        arguments = [str(number) for lane in lanes for number in lane]
        return self.written(subprocess.run([TRACE_WRITER, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout,
                            "trace.json")

    def run_plot(self, *arguments):
        """(exit status, the files it names, what it complains of)"""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = plot.main([str(argument) for argument in arguments])
            except SystemExit as ended:
                status = ended.code
        return status, [pathlib.Path(line).relative_to(self.out).name for line in out.getvalue().splitlines()], err.getvalue()

    def gnuplot(self, program):
        """From here on `gnuplot` is a shell script that runs this; None: there is none."""
        tools = self.folder / "bin"
        tools.mkdir()
        if program:
            (tools / "gnuplot").write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
            (tools / "gnuplot").chmod(0o755)
        self.enterContext(mock.patch.dict(os.environ, PATH=str(tools)))


class Saved(Folder):
    def test_one_scenario(self):
        saved = plot.read_saved(self.written(DUMP))
        self.assertEqual([report.scenario for report in saved.reports], ["dump"])
        self.assertIsNone(saved.find("restore"))

    def test_goals(self):
        saved = self.saved(DUMP, goals=GOALS, machine={"cores": 2})
        self.assertIsNotNone(saved.find("dump"))
        self.assertEqual(saved.goals[0].bars[0].measured, (0.9, 0.8, 0.93))
        self.assertEqual(saved.machine, {"cores": 2})

    def test_something_else_is_refused(self):
        wrong_figures = [{"ours": figure("GB/s", value, 1, 2)} for value in ("2", True, float("nan"), 10**400)]
        for content in ("", "[]", "[" * 100_000, {"reports": [1]}, {"reports": 1}, {"scenario": "dump"},
                        {"reports": [], "goals": [{"id": 1}]}, {"reports": [], "machine": []},
                        *(report("dump", "", {"a": figures}) for figures in wrong_figures)):
            with self.subTest(str(content)[:80]), self.assertRaisesRegex(plot.Refused, "is no report of sluice-bench"):
                plot.read_saved(self.written(content))


class Tables(Folder):
    def test_the_machine_the_goals_and_a_row_for_each_case(self):
        text = plot.markdown_of(self.saved(DUMP, goals=GOALS, machine={"cpu": "fast", "cores": 2}))
        for line in ("| cpu | fast |\n", "| cores | 2 |\n",
                     "| 1 | dump | dump: new file, ratio | ≥ 0.95 | 0.900 [0.800, 0.930] | short |\n",
                     "|  |  | dump: old file, time | ≤ 2 s | not measured |  |\n",
                     "- Goal 1: the disk was slow.\n", "beside the raw disk; up to 2 samples a figure.\n",
                     "| case | ratio | ours | raw | cpu | raw cpu |\n",
                     '| new "file" | 0.750 [0.500, 1.000] | 1.500 [1.000, 2.000] GB/s | 2.000 GB/s |',
                     '- new "file": a note\n'):
            self.assertIn(line, text)

    def test_a_page_is_filled_in_where_it_has_a_place(self):
        page = ("Text.\n<!-- measured: dump -->\nold\n<!-- end -->\nMore.\n"
                "<!-- measured: cuda -->\nkept\n<!-- end -->\n<!-- measured: bubble -->\nwithout an end\n")
        saved = self.saved(DUMP, BUBBLE)
        filled = plot.filled_in(page, saved)
        self.assertTrue(filled.startswith("Text.\n<!-- measured: dump -->\n\nbeside the raw disk"), filled)
        self.assertTrue(filled.endswith("\n<!-- end -->\nMore.\n" + page.partition("More.\n")[2]), filled)
        self.assertNotIn("old", filled)
        self.assertEqual(plot.filled_in(filled, saved), filled)


class Drawings(Folder):
    def names(self, *reports):
        return [drawing.name for drawing in plot.drawings(self.saved(*reports))]

    def test_only_what_was_measured_is_drawn(self):
        self.assertEqual(self.names(), [])
        self.assertEqual(self.names(DUMP), ["throughput", "cpu"])
        self.assertEqual(self.names(BUBBLE, MEMORY), ["bubble", "pool"])
        serial = report("serial", "", {"a": {name: figure("GB/s", 2, 1, 3) for name in ("ratio", "ours", "serial")}})
        self.assertEqual(self.names(serial), ["gain"])

    def test_figures_have_what_was_measured(self):
        scripts = {drawing.name: drawing.script for drawing in plot.drawings(self.saved(DUMP, BUBBLE, MEMORY))}
        label = r'"dump: new \"file\""'
        self.assertIn(f"$data << EOD\n{label} 0.75 0.5 1\nEOD\n", scripts["throughput"])
        self.assertIn('"0.75: 1.50 / 2.00 GB/s" at graph 1.02, first 0\n', scripts["throughput"])
        self.assertIn(f"$data << EOD\n{label} 0.15 0.1 0.2 0.035 0.03 0.04\nEOD\n", scripts["cpu"])
        self.assertIn("set xtics scale 0 ('5' 0, '10' 1)\nset ytics scale 0 ('5' 0, '25' 1)\n", scripts["bubble"])
        self.assertIn('$data << EOD\n0 0 1.5 "1.5"\n0 1 1.5 "1.5"\n1 0 1.5 "1.5"\n1 1 1.5 "1.5"\nEOD\n', scripts["bubble"])
        for name in ("dumps", "restores"):
            self.assertIn(f"${name} << EOD\n16 1.5 1 2\n64 1.5 1 2\nEOD\n", scripts["pool"])

    def test_text_of_a_file_commands_nobody(self):
        wrong = report("dump", "", {'`run`\nEOD\nset output "elsewhere" \\': DUMP["cases"][0]["figures"]})
        for drawing in plot.drawings(self.saved(wrong)):
            self.assertNotIn("`", drawing.script)
            self.assertIn(r'"dump: ' + r"""'run'?EOD?set output \"elsewhere\" \\" """, drawing.script)


class Traces(Folder):
    def test_what_the_plugin_wrote_is_read(self):
        trace = plot.Trace(self.traced((0x5759, 3, 2), (0x11, 1, 1)))
        self.assertEqual(trace.stages, ["copy", "store"])
        self.assertEqual(trace.lanes, ["dump GPU 0x5759", "dump GPU 0x0011"])
        self.assertEqual(trace.slots, [2, 1])
        stays = [(5_000_000_000 + begin, 5_000_000_000 + end, lane, slot, stage) for begin, end, lane, slot, stage in (
            (0, 250_000, 0, 0, 0), (250_000, 2_000_000, 0, 0, 1), (1_000_000, 1_250_000, 0, 1, 0),
            (1_250_000, 3_000_000, 0, 1, 1), (2_000_000, 2_250_000, 0, 0, 0), (2_250_000, 4_000_000, 0, 0, 1),
            (0, 250_000, 1, 0, 0), (250_000, 2_000_000, 1, 0, 1))]
        self.assertEqual([tuple(stay)[1:] for stay in trace.first], stays)

    def test_something_else_is_refused_and_named(self):
        for content, complaint in (
            ("", "is no trace"),
            ("{}", "is no trace"),
            ('[{"ph":"M","name":"other"}', "is no trace"),
            (LANE, "is no trace"),
            (LANE + "]", "is no trace"),
            (LANE + '{"ph":"M","name":"other"}] more', "is no trace"),
            (LANE + '{"ph":"M","name":"other"} {"ph":"M","name":"other"}]', "is no trace"),
            (LANE + '{"ph":"M","name":"other","args":"' + 1024 * "x" + '"}]', "is no trace"),
            ("[" * 100_000, "is no trace"),
            ("[7]", "event 0: ph is no text"),
            ("[[]]", "event 0: ph is no text"),
            ('[{"ph":"X"}]', "event 0: name is no text"),
            ('[{"ph":"X","name":"copy","pid":0}]', "event 0: pid is no number below 0"),
            ('[{"ph":"M","name":"process_name","pid":64,"args":{}}]', "event 0: pid is no number below 64"),
            ('[{"ph":"M","name":"process_name","pid":1,"args":{}}]', "event 0: pid is not the next lane's"),
            ('[{"ph":"M","name":"process_name","pid":0,"args":[]}]', "event 0: name is no text"),
            ('[{"ph":"M","name":"' + 65 * "x" + '"}]', "event 0: name is no text of up to 64"),
            (LANE + '{"ph":"X","name":"copy","pid":false}]', "event 1: pid is no number below 1"),
            (LANE + '{"ph":"X","name":"copy","pid":0,"tid":-1}]', "event 1: tid is no number below 65536"),
            (LANE + '{"ph":"X","name":"copy","pid":0,"tid":1e3}]', "event 1: tid is no number below 65536"),
            (LANE + '{"ph":"X","name":"copy","pid":0,"tid":1,"ts":-1}]', "event 1: ts is no time"),
            (LANE + '{"ph":"X","name":"copy","pid":0,"tid":1,"ts":NaN}]', "event 1: ts is no time"),
            (LANE + '{"ph":"X","name":"copy","pid":0,"tid":1,"ts":1,"dur":1e16}]', "event 1: dur is no time"),
            (LANE + '{"ph":"X","name":"copy","pid":0,"tid":1,"ts":1,"dur":1}]', "event 1: chunk is no number"),
        ):
            with self.subTest(content[:120]), self.assertRaisesRegex(plot.Refused, complaint):
                plot.Trace(self.written(content))

    def test_stages_are_bounded(self):
        events = [{"ph": "X", "name": str(stage), "pid": 0, "tid": 0, "ts": 1, "dur": 1, "args": {"chunk": 1}}
                  for stage in range(9)]
        with self.assertRaisesRegex(plot.Refused, "event 9: more than 8 stages"):
            plot.Trace(self.written(LANE + json.dumps(events)[1:]))

    def test_one_that_is_too_large_is_not_read(self):
        file = self.written("[]")
        os.truncate(file, (512 << 20) + 1)
        with self.assertRaisesRegex(plot.Refused, "larger than the 512 MiB"):
            plot.Trace(file)


class Timeline(Folder):
    def timeline(self, *lanes):
        return plot.timeline(plot.Trace(self.traced(*lanes)), "name")

    def test_a_bar_for_each_stay_in_the_row_of_its_slot(self):
        drawing = self.timeline((1, 3, 2), (2, 1, 1))
        self.assertEqual(drawing.name, "name")
        # Slots 0 and 1 of the first lane, an empty row, slot 0 of the second; times from the first event.
        for part in ("$stage0 << EOD\n0.000 0.250 0\n1.000 1.250 1\n2.000 2.250 0\n0.000 0.250 3\nEOD\n",
                     "$stage1 << EOD\n0.250 2.000 0\n1.250 3.000 1\n2.250 4.000 0\n0.250 2.000 3\nEOD\n",
                     '("dump GPU 0x0001" 0.5, "dump GPU 0x0002" 3)', "set xrange [0:4]", 'title "copy"'):
            self.assertIn(part, drawing.script)

    def test_of_a_long_trace_the_beginning_is_drawn(self):
        script = self.timeline((1, 4000, 16)).script
        self.assertIn("the first 3001 of 4001 ms", script)
        rows = [line for line in script.partition("set ytics scale")[0].splitlines() if line[:1].isdigit()]
        self.assertEqual(len(rows), 6000)

    def test_without_a_chunk_or_with_too_many_rows_it_is_refused(self):
        with self.assertRaisesRegex(plot.Refused, "no chunk"):
            self.timeline()
        self.timeline((1, 1024, 1024))
        with self.assertRaisesRegex(plot.Refused, "more than the 1024 slots"):
            self.timeline((1, 1025, 1025))


class Command(Folder):
    def test_tables_and_figures_are_written(self):
        self.gnuplot('while read -r line; do echo "$line"; done; echo drawn')
        names = ["tables.md", "throughput.svg", "cpu.svg", "bubble.svg", "pool.svg"]
        file = self.written({"reports": [DUMP, BUBBLE, MEMORY]})
        self.assertEqual(self.run_plot(file, "--out", self.out), (0, names, ""))
        for name in names[1:]:
            figure_text = (self.out / name).read_text(encoding="utf-8")
            self.assertTrue(figure_text.startswith("set terminal svg") and figure_text.endswith("drawn\n"), figure_text)
        self.assertTrue((self.out / names[0]).read_text(encoding="utf-8").startswith("## dump\n"))

    def test_a_trace_is_drawn(self):
        trace = self.traced((1, 3, 2))
        self.gnuplot("echo drawn")
        self.assertEqual(self.run_plot("--trace", trace, "--out", self.out), (0, ["trace.svg"], ""))
        self.assertEqual((self.out / "trace.svg").read_text(encoding="utf-8"), "drawn\n")

    @unittest.skipUnless(shutil.which("gnuplot"), "no gnuplot on this machine")
    def test_gnuplot_takes_the_scripts(self):
        self.assertEqual(self.run_plot(self.written({"reports": [DUMP, BUBBLE, MEMORY]}), "--out", self.out)[0], 0)
        self.assertEqual(self.run_plot("--trace", self.traced((1, 3, 2), (2, 1, 1)), "--out", self.out)[0], 0)
        for name in ("throughput", "cpu", "bubble", "pool", "trace"):
            self.assertTrue((self.out / f"{name}.svg").read_text(encoding="utf-8").rstrip().endswith("</svg>"), name)

    def test_the_tables_go_into_a_page(self):
        self.gnuplot("exit 0")
        page = self.written("<!-- measured: dump -->\nold\n<!-- end -->\n", "page.md")
        status, names, _ = self.run_plot(self.written(DUMP), "--out", self.out, "--into", page)
        self.assertEqual((status, names), (0, ["throughput.svg", "cpu.svg"]))
        text = page.read_text(encoding="utf-8")
        self.assertTrue(text.startswith("<!-- measured: dump -->\n\nbeside the raw disk"), text)
        self.assertNotIn("old", text)
        self.assertFalse((self.out / "tables.md").exists())

    def test_without_gnuplot_there_are_tables(self):
        self.gnuplot(None)
        self.assertEqual(self.run_plot(self.written(DUMP), "--out", self.out),
                         (1, ["tables.md"], "plot.py: figures need gnuplot: apt-get install gnuplot-nox\n"))
        self.assertEqual(os.listdir(self.out), ["tables.md"])

    def test_a_failure_of_gnuplots_leaves_no_figure(self):
        self.gnuplot("echo half; exit 1")
        status, _, complaint = self.run_plot(self.written(DUMP), "--out", self.out)
        self.assertEqual((status, complaint), (1, "plot.py: gnuplot could not draw throughput.svg\n"))
        self.assertEqual(os.listdir(self.out), ["tables.md"])

    def test_what_is_not_there_is_named(self):
        none = self.folder / "none"
        for arguments in ([none], ["--trace", none], [self.written(DUMP), "--into", none]):
            self.assertEqual(self.run_plot(*arguments, "--out", self.out),
                             (1, [], f"plot.py: {none}: No such file or directory\n"))
        self.assertFalse(none.exists())

    def test_wrong_usage_is_told(self):
        for arguments in ([], ["a", "--trace", "b"], ["--trace", "a", "--into", "b"]):
            self.assertEqual(self.run_plot(*arguments)[0], 2)

    def test_text_that_is_no_unicode_is_written_all_the_same(self):
        self.gnuplot("exit 0")
        self.assertEqual(self.run_plot(self.written(report("dump", "\ud800", {})), "--out", self.out), (0, ["tables.md"], ""))
        self.assertIn("\n?; up to", (self.out / "tables.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
