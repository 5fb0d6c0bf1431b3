#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The logic around the guests, without a guest: apt's formats, results and complaints, counting, links."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
import guest  # noqa: E402
import mirror  # noqa: E402
import programs  # noqa: E402
import report  # noqa: E402
import roots  # noqa: E402
import summary  # noqa: E402
import suites  # noqa: E402

DEB822 = """# the archive
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /etc/apt/keyrings/mirror.gpg

Types: deb
URIs: http://mirror.example/off
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: https://vendor.example/apt
Suites: nodistro
Components: main
"""
WITH_KEY = """Types: deb
URIs: http://mirror.example/debian
Suites: trixie
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
 -----END PGP PUBLIC KEY BLOCK-----
"""
ONE_LINE = """# deb http://old.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian-security bookworm-security main
deb [arch=amd64 signed-by=/etc/apt/keyrings/mirror.gpg] http://mirror.example/debian bookworm main contrib # here
"""
XML = """<?xml version="1.0"?><testsuites tests="4"><testsuite name="Files">
<testcase name="Good" classname="Files" status="run" result="completed" time="1.5"/>
<testcase name="Bad/0" classname="Files" status="run" result="completed" time="2">
<failure message="m">because</failure></testcase>
<testcase name="Not" classname="Files" status="run" result="skipped" time="0"><skipped message="m">where.cc:3
no such driver</skipped></testcase>
<testcase name="Off" classname="Files" status="notrun" result="suppressed" time="0"/>
</testsuite></testsuites>"""


class Folder(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


class Mirror(Folder):
    def line(self, entries):
        return mirror.debian(self.folder, entries)("forky")

    def test_deb822(self):
        self.assertEqual(self.line(mirror.deb822(DEB822)),
                         "deb [signed-by=/etc/apt/keyrings/mirror.gpg] http://mirror.example/debian forky main")

    def test_key_in_the_sources_goes_to_a_file(self):
        self.assertEqual(self.line(mirror.deb822(WITH_KEY)),
                         f"deb [signed-by={self.folder}/debian.asc] http://mirror.example/debian forky main")
        key = (self.folder / "debian.asc").read_text(encoding="utf-8")
        self.assertEqual(key, "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQINBF\n-----END PGP PUBLIC KEY BLOCK-----\n")

    def test_one_line(self):
        self.assertEqual(self.line(mirror.one_line(ONE_LINE)),
                         "deb [signed-by=/etc/apt/keyrings/mirror.gpg] http://mirror.example/debian forky main")

    def test_debians_own_keyring_is_not_narrowed_to_one_file(self):
        text = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian trixie main"
        self.assertEqual(self.line(mirror.one_line(text)), "deb http://mirror.example/debian forky main")

    def test_both_formats_are_found_in_their_places(self):
        self.write("sources.list", ONE_LINE)
        self.write("sources.list.d/debian.sources", DEB822)
        self.write("sources.list.d/other.sources.disabled", WITH_KEY)
        self.assertEqual(len(mirror.installed(self.folder)), 4)

    def test_without_debians_archive_there_is_a_message(self):
        with self.assertRaises(mirror.NoMirror):
            self.line(mirror.one_line("deb http://mirror.example/debian bookworm-security main"))


class Report(Folder):
    def read(self, code, serial="", xml=XML, dmesg=""):
        result = report.Result("trixie", True)
        self.write("out/logs/Files.Bad-0/dump.log", "amdgpu_plugin: here\nError (x)\n")
        if xml:
            self.write("out/vm-scenarios.xml", xml)
        self.write("out/dmesg", dmesg)
        report.read(guest.Boot(code, self.write("serial", serial), self.folder / "out"), result)
        return result

    def test_cases_with_reasons_and_logs(self):
        result = self.read(guest.FAILED)
        self.assertEqual([(case.name, case.result) for case in result.cases],
                         [("Files.Good", "passed"), ("Files.Bad/0", "failed"), ("Files.Not", "skipped")])
        self.assertEqual(result.cases[1].logs, [str(self.folder / "out/logs/Files.Bad-0/dump.log")])
        self.assertEqual(result.cases[2].reason, "no such driver")
        self.assertEqual(result.problems, [])
        said = []
        report.explain(result, said.append)
        self.assertIn("      amdgpu_plugin: here", said)

    def test_a_guest_that_dies_names_its_scenario(self):
        result = self.read(0, serial="[ RUN      ] Files.Good\n[ RUN      ] Files.Deep\nOops\n", xml="")
        self.assertIn("the guest died during Files.Deep", result.problems[0])
        self.assertFalse(result.good)

    def test_a_hanging_guest(self):
        self.assertIn("the guest hung during A.B", self.read(None, serial="[ RUN      ] A.B\n", xml="").problems)

    def test_half_of_the_xml_is_no_result(self):
        self.assertIn("vm-scenarios hung or died", self.read(guest.FAILED, xml=XML[:200]).problems)

    def test_success_needs_both_witnesses(self):
        good = XML.replace('<failure message="m">because</failure>', "")
        self.assertTrue(self.read(guest.PASSED, xml=good).good)
        self.assertFalse(self.read(guest.FAILED, xml=good).good)
        self.assertFalse(self.read(0, xml=good).good)

    def test_the_kernels_complaints_fail_the_suite(self):
        line = "[    9.1] WARNING: possible circular locking dependency detected"
        result = self.read(guest.PASSED, dmesg=f"[    0.0] Command line: oops=panic\n{line}\n[    9.2] criu/1\n")
        self.assertEqual(len(result.problems), 1)
        self.assertTrue(result.problems[0].endswith(":\n" + line + "\n[    9.2] criu/1"))


class Summary(Folder):
    JUNIT = """<testsuites><testsuite name="sluice"><testcase name="sluice:unit / a" classname="sluice"/></testsuite>
%s</testsuites>"""

    def count(self, results, *options, names=("sluice:unit / a",), junit=""):
        log = self.folder / "log"
        self.write("log/testlog.json", "".join(json.dumps({"name": name, "result": "OK"}) + "\n" for name in names))
        self.write("log/testlog.junit.xml", self.JUNIT % junit)
        words = [str(log), "--vm", str(self.write("results.json", json.dumps(results))), *options]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = summary.main(words)
        return status, out.getvalue().splitlines()

    def results(self, **of_suite):
        return [{"suite": name, "problems": of_suite.get(name, []),
                 "cases": [{"name": "A.B", "result": "passed", "reason": ""}]} for name in suites.SUITES]

    def test_guests_are_counted(self):
        status, lines = self.count(self.results())
        self.assertEqual((status, lines[-1]), (0, "4 passed, 0 failed, 0 skipped"))

    def test_a_suite_that_decides(self):
        status, lines = self.count(self.results(trixie=["no packages\nmore"]))
        self.assertEqual((status, lines[0], lines[-1]),
                         (1, "failed: vm trixie: no packages", "4 passed, 1 failed, 0 skipped"))

    def test_a_suite_that_does_not_decide(self):
        results = self.results(forky=["it died"])
        status, lines = self.count(results)
        self.assertEqual((status, lines), (0, ["!!! FAILED, but does not decide: vm forky: it died",
                                               "4 passed, 0 failed, 0 skipped; 1 failed that do not decide"]))
        self.assertEqual(self.count(results, "--strict")[0], 1)

    def test_other_steps_are_counted(self):
        words = "--step", "fuzz", "passed", "--step", "package", "failed", "--step", "other", "no root here"
        self.write("fuzz.log", "fuzz: a: nothing found\nshown: libFuzzer: 7 executions\n")
        status, lines = self.count(self.results(), *words)
        self.assertEqual((status, lines), (1, ["shown: fuzz: libFuzzer: 7 executions", "failed: package", "skipped: other: no root here",
                                               "5 passed, 1 failed, 1 skipped"]))

    def test_the_cases_of_a_program_are_counted(self):
        junit = """<testsuite name="sluice.sluice:unit / b.Suite"><testcase name="One" classname="Suite" status="run"/>
            <testcase name="Two" classname="Suite" status="run"><failure message="m">because</failure></testcase></testsuite>"""
        status, lines = self.count(self.results(), names=("sluice:unit / a", "sluice:unit / b"), junit=junit)
        self.assertEqual((status, lines), (1, ["failed: sluice:unit / b: Suite.Two", "5 passed, 1 failed, 0 skipped"]))

    def test_a_program_of_which_no_test_ran_failed(self):
        status, lines = self.count(self.results(), names=("sluice:unit / a", "sluice:unit / b"))
        self.assertEqual((status, lines),
                         (1, ["failed: sluice:unit / b (no test of it ran)", "4 passed, 1 failed, 0 skipped"]))

    def test_a_suite_without_results_failed(self):
        self.assertEqual(self.count([])[1][-1], "1 passed, 2 failed, 0 skipped; 1 failed that do not decide")


class Files(Folder):
    def test_a_package_brings_plugin_and_command(self):
        self.write("tree/DEBIAN/control", "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n")
        self.write("tree/usr/lib/criu/amdgpu_plugin.so", "packaged plugin")
        self.write("tree/usr/bin/sluice", "packaged command")
        programs.run(["dpkg-deb", "--build", str(self.folder / "tree"), str(self.folder / "x.deb")])
        files = programs.of_package(self.folder / "x.deb", self.folder / "out")
        self.assertEqual({place: file.read_text(encoding="utf-8") for place, file in files.items()},
                         {"usr/lib/sluice/amdgpu_plugin.so": "packaged plugin", "usr/lib/sluice/sluice": "packaged command"})

    def test_links_stay_inside_the_root(self):
        self.write("usr/lib/libx.so.1.2", "x")
        (self.folder / "lib").symlink_to("/usr/lib")
        (self.folder / "usr/lib/libx.so.1").symlink_to("../../../../usr/lib/libx.so.1.2")
        self.assertEqual(roots.resolve(self.folder, "/lib/libx.so.1"), self.folder / "usr/lib/libx.so.1.2")
        self.assertIsNone(roots.resolve(self.folder, "/lib/liby.so"))


if __name__ == "__main__":
    unittest.main()
