#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The logic around the guests, without a guest: apt's formats, results and complaints, counting, links."""
import argparse
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
import cards  # noqa: E402
import driver  # noqa: E402
import guest  # noqa: E402
import mirror  # noqa: E402
import programs  # noqa: E402
import report  # noqa: E402
import roots  # noqa: E402
import summary  # noqa: E402
import suites  # noqa: E402
import vm  # noqa: E402

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
            self.write("out/vm-scenarios-own.xml", xml)
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

    def test_each_part_of_a_boot_counts(self):
        for part, name in (("own", "A"), ("foreign", "B")):
            self.write(f"out/vm-scenarios-{part}.xml", '<testsuites><testsuite name="S"><testcase name="%s" classname="S" '
                       'status="run" time="1"/></testsuite></testsuites>' % name)
        result = report.Result("trixie", True)
        boot = guest.Boot(guest.PASSED, self.write("serial", ""), self.folder / "out")
        report.read(boot, result, ("own", "foreign"))
        self.assertEqual([case.name for case in result.cases], ["S.A", "S.B"])
        self.assertTrue(result.good)
        self.assertEqual(result.count("passed"), 2)
        table = report.table([json.loads(json.dumps(dataclasses.asdict(result)))])
        self.assertIn("| S.A | 1.0 |", table)

    def test_a_part_that_did_not_run_is_no_result(self):
        result = report.Result("trixie", True)
        self.write("out/vm-scenarios-own.xml", XML)
        report.read(guest.Boot(guest.FAILED, self.write("serial", ""), self.folder / "out"), result, ("own", "foreign"))
        self.assertIn("vm-scenarios hung or died", result.problems)

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

    def test_a_fault_of_linux_that_is_known_by_name_fails_nothing(self):
        good = XML.replace('<failure message="m">because</failure>', "")
        known = "[ 9.1] WARNING: drivers/gpu/drm/ttm/ttm_bo.c:256 at ttm_bo_release+0x2c3/0x330 [ttm]\n[ 9.1] Call Trace:\n" \
                "[ 9.1] ---[ end trace 0000000000000000 ]---\n"
        self.assertTrue(self.read(guest.PASSED, xml=good, dmesg=known).good)
        other = known.replace("ttm_bo_release", "ttm_bo_init")
        self.assertFalse(self.read(guest.PASSED, xml=good, dmesg=known + other).good)

    def test_what_the_questions_provoke_fails_nothing_and_the_same_of_criu_does(self):
        good = XML.replace('<failure message="m">because</failure>', "")
        report = "[ 9.1] WARNING: CPU: 0 PID: 478 at lib/idr.c:86 idr_alloc+0x57/0x70\n" \
                 "[ 9.1] CPU: 0 PID: 478 Comm: vm-scenarios Tainted: G\n[ 9.1] Call Trace:\n" \
                 "[ 9.1] ---[ end trace 0000000000000000 ]---\n"
        self.assertTrue(self.read(guest.PASSED, xml=good, dmesg=report + "[ 9.2] a line\n" + report).good)
        self.assertFalse(self.read(guest.PASSED, xml=good, dmesg=report.replace("vm-scenarios", "criu")).good)
        self.assertFalse(self.read(guest.PASSED, xml=good, dmesg=report.replace("vm-scenarios", "criu") + report).good)


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
                 "cases": [{"name": "A.B", "result": "passed", "reason": ""}]} for name in suites.EVERY]

    def test_guests_are_counted(self):
        status, lines = self.count(self.results())
        self.assertEqual((status, lines[-1]), (0, "7 passed, 0 failed, 0 skipped"))

    def test_a_suite_that_decides(self):
        status, lines = self.count(self.results(trixie=["no packages\nmore"]))
        self.assertEqual((status, lines[0], lines[-1]),
                         (1, "failed: vm trixie: no packages", "7 passed, 1 failed, 0 skipped"))

    def test_a_suite_that_does_not_decide(self):
        results = self.results(forky=["it died"])
        status, lines = self.count(results)
        self.assertEqual((status, lines), (0, ["!!! FAILED, but does not decide: vm forky: it died",
                                               "7 passed, 0 failed, 0 skipped; 1 failed that do not decide"]))
        self.assertEqual(self.count(results, "--strict")[0], 1)

    def test_other_steps_are_counted(self):
        words = "--step", "fuzz", "passed", "--step", "package", "failed", "--step", "other", "no root here"
        self.write("fuzz.log", "fuzz: a: nothing found\nshown: libFuzzer: 7 executions\n")
        status, lines = self.count(self.results(), *words)
        self.assertEqual((status, lines), (1, ["shown: fuzz: libFuzzer: 7 executions", "failed: package", "skipped: other: no root here",
                                               "8 passed, 1 failed, 1 skipped"]))

    def test_the_cases_of_a_program_are_counted(self):
        junit = """<testsuite name="sluice.sluice:unit / b.Suite"><testcase name="One" classname="Suite" status="run"/>
            <testcase name="Two" classname="Suite" status="run"><failure message="m">because</failure></testcase></testsuite>"""
        status, lines = self.count(self.results(), names=("sluice:unit / a", "sluice:unit / b"), junit=junit)
        self.assertEqual((status, lines), (1, ["failed: sluice:unit / b: Suite.Two", "8 passed, 1 failed, 0 skipped"]))

    def test_a_program_of_which_no_test_ran_failed(self):
        status, lines = self.count(self.results(), names=("sluice:unit / a", "sluice:unit / b"))
        self.assertEqual((status, lines),
                         (1, ["failed: sluice:unit / b (no test of it ran)", "7 passed, 1 failed, 0 skipped"]))

    def test_a_suite_that_was_left_out_is_skipped(self):
        results = [result for result in self.results() if result["suite"] != "engines"]
        status, lines = self.count(results, "--left-out", "engines", "nobody asked")
        self.assertEqual((status, lines), (0, ["skipped: vm engines: nobody asked", "6 passed, 0 failed, 1 skipped"]))
        self.assertEqual(self.count(results)[0], 1)

    def test_a_suite_without_results_failed(self):
        self.assertEqual(self.count([])[1][-1], "1 passed, 5 failed, 0 skipped; 1 failed that do not decide")


class Roots(Folder):
    """mmdebstrap is a script that notes its words and makes an empty root."""

    def make(self, **options):
        program = self.write("bin/mmdebstrap", f"""#!/bin/sh
for word; do case $word in */new-name | */new-name.tar) target=$word;; esac; echo "$word" >>'{self.folder}/words'; done
case $target in *.tar) tar -cf "$target" --files-from /dev/null;; *) mkdir "$target";; esac
""")
        program.chmod(0o755)
        self.write("bin/newuidmap", "").chmod(0o755)
        before = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", before)
        os.environ["PATH"] = f"{program.parent}:{before}"
        debian = mirror.debian
        self.addCleanup(setattr, mirror, "debian", debian)
        mirror.debian = lambda folder: debian(folder, mirror.deb822(DEB822))
        root = roots.make(self.folder, "name", "trixie", ("qemu", "bash"), lambda text: None, **options)
        return root, (self.folder / "words").read_text(encoding="utf-8").splitlines()

    def test_a_root_of_one_suite(self):
        root, words = self.make()
        self.assertEqual([word for word in words if word.startswith("deb ")],
                         ["deb [signed-by=/etc/apt/keyrings/mirror.gpg] http://mirror.example/debian trixie main"])
        self.assertTrue((root / ".sluice-root").exists())

    def test_backports_are_another_source_and_count_as_much(self):
        root, words = self.make(backports=True)
        self.assertEqual([word.split()[-2] for word in words if word.startswith("deb ")], ["trixie", "trixie-backports"])
        pins = [word.split('"')[1] for word in words if word.startswith("--aptopt=Dir::Etc::preferences ")]
        self.assertIn("Pin: release n=trixie-backports\nPin-Priority: 500\n", pathlib.Path(pins[0]).read_text(encoding="ascii"))
        self.assertNotEqual((root / ".sluice-root").read_text(encoding="utf-8"), "1 trixie bash,qemu\n")


class Cards(Folder):
    def card(self, script):
        program = self.write("card", f"#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" != --socket ] || socket=$2; shift; done\n{script}\n")
        program.chmod(0o755)
        return program

    def test_each_has_its_port_and_none_is_left(self):
        alive = f"{self.folder}/alive"
        card = self.card(f"echo $$ >>{alive}; touch $socket; echo listening; exec sleep 1000")
        with cards.plugged_in(card, "mi300x", self.folder, trace=False) as options:
            devices = [json.loads(word) for word in options if word.startswith("{")]
            sockets = [pathlib.Path(device["socket"]["path"]) for device in devices]
            self.assertTrue(all(socket.exists() for socket in sockets))
        self.assertEqual([device["bus"] for device in devices], ["port1", "port2", "port3", "port4", "pcie.0", "pcie.0"])
        self.assertEqual(len({*sockets}), len(cards.CARDS))
        for pid in pathlib.Path(alive).read_text(encoding="ascii").split():
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    def test_what_they_say_is_kept(self):
        with cards.plugged_in(self.card("echo fault of $socket >&2; echo listening; exec sleep 1000"), "mi210", self.folder, trace=False):
            self.assertEqual(len(cards.remarks(self.folder)), len(cards.CARDS))

    def test_one_that_does_not_come_up_says_why(self):
        with self.assertRaisesRegex(cards.Failed, "no room for VRAM"):
            with cards.plugged_in(self.card("echo no room for VRAM >&2; exit 1"), "mi210", self.folder, trace=False):
                self.fail("it came up")

    def test_firmware_goes_where_the_kernel_looks(self):
        program = self.write("files", '#!/bin/sh\nmkdir -p $1/firmware/amdgpu; echo x >$1/firmware/amdgpu/a.bin; echo x >$1/rom\n')
        program.chmod(0o755)
        self.assertEqual(cards.firmware(program, self.folder / "boot"),
                         {"usr/lib/firmware/amdgpu/a.bin": self.folder / "boot/firmware/amdgpu/a.bin"})


class Driver(Folder):
    """A folder of modules in place of Debian's amdgpu: objects that have nothing but what a module says of itself."""
    RELEASE = "6.1.0-50-amd64"

    def module(self, name, depends="", release=RELEASE):
        lines = f'.section .modinfo,"a"\n.asciz "license=x"\n.asciz "depends={depends}"\n.asciz "vermagic={release} SMP preempt "\n'
        subprocess.run(["as", "-o", str(self.folder / f"{name}.ko")], input=lines, text=True, check=True)

    def order(self):
        """Names of files as they load. Debian's: each name that is asked for, and what needs drm itself."""
        def debian(names):
            return [pathlib.Path(f"/debian/{name}.ko.xz") for name in ("drm", *names)]
        return [path.name for path in driver.load_order(self.folder, self.RELEASE, debian)]

    def test_a_module_comes_after_what_it_needs(self):
        self.module("amdgpu", "amdttm,amd-sched,drm_kms_helper")
        self.module("amdttm", "amdkcl")
        self.module("amd-sched", "amdkcl")
        self.module("amdkcl")
        names = self.order()
        self.assertEqual(names[:2], ["drm.ko.xz", "drm_kms_helper.ko.xz"])
        self.assertEqual(names[2], "amdkcl.ko")
        self.assertEqual({*names[3:5]}, {"amdttm.ko", "amd-sched.ko"})
        self.assertEqual(names[5:], ["amdgpu.ko"])

    def test_debians_modules_of_the_same_name_stay_away(self):
        self.module("amdgpu", "drm")
        self.module("drm")
        self.assertEqual(self.order(), ["drm.ko", "amdgpu.ko"])
        self.module("amdgpu", "drm,i2c-algo-bit")
        self.assertEqual(self.order(), ["i2c_algo_bit.ko.xz", "drm.ko", "amdgpu.ko"])

    def test_a_folder_without_the_driver_is_refused(self):
        self.module("amdttm")
        with self.assertRaisesRegex(driver.Unfit, "has no amdgpu.ko"):
            self.order()

    def test_a_module_of_another_kernel_is_refused_with_both_versions(self):
        self.module("amdgpu", "amdttm")
        self.module("amdttm", release="6.1.0-9-amd64")
        with self.assertRaisesRegex(driver.Unfit, "amdttm.ko is built for Linux 6.1.0-9-amd64, and the guest has 6.1.0-50-amd64"):
            self.order()

    def test_a_file_that_is_no_module_is_refused(self):
        self.write("amdgpu.ko", "x")
        with self.assertRaisesRegex(driver.Unfit, "amdgpu.ko is no kernel module"):
            self.order()

    def test_what_nobody_has_is_named(self):
        def debian(names):
            raise subprocess.CalledProcessError(1, ["modprobe", *names])
        self.module("amdgpu", "amdttm,drm")
        with self.assertRaisesRegex(driver.Unfit, "need amdttm, drm; Debian's kernel does not have all of these"):
            driver.load_order(self.folder, self.RELEASE, debian)

    def test_a_circle_is_refused(self):
        self.module("amdgpu", "amdttm")
        self.module("amdttm", "amdgpu")
        with self.assertRaisesRegex(driver.Unfit, "in a circle: amdgpu, amdttm"):
            self.order()


class Exchange(Folder):
    class Run:
        def __init__(self, name, log):
            self.name, self.log = name, log

        def receive(self, others):
            self.log.append((self.name, [other.name for other in others]))

    def test_those_that_wait_get_the_others_images_when_nobody_makes_any_more(self):
        log = []
        runs = [self.Run(name, log) for name in "abc"]
        exchange = vm.Exchange(runs)
        exchange.waits(runs[0])
        exchange.ended(runs[1])      # it died
        self.assertEqual(log, [])
        exchange.waits(runs[2])
        self.assertEqual(log, [("a", ["b", "c"]), ("c", ["a", "b"])])
        for run in runs:
            exchange.ended(run)
        self.assertEqual(len(log), 2)


class Lines(unittest.TestCase):
    def test_the_end_of_a_scenario_is_heard_also_with_a_parameter(self):
        for line, heard in (("[       OK ] Files.DupStaysADup (12 ms)", ("OK", "Files.DupStaysADup", "12")),
                            ('[  FAILED  ] By/Oci.Comes/crun, where GetParam() = "crun" (7 ms)', ("FAILED", "By/Oci.Comes/crun", "7")),
                            ('[  FAILED  ] By/Oci.Comes/crun, where GetParam() = "crun"', None)):
            ended = vm.ENDED.search(line)
            self.assertEqual(ended and ended.groups(), heard)


class Patterns(unittest.TestCase):
    """Which scenarios a suite runs."""
    def options(self, **given):
        return argparse.Namespace(**({"filter": "", "more": False, "card": None} | given))

    def test_engines_have_a_guest_of_their_own(self):
        first, foreign = vm.patterns(self.options(), suites.SUITES["engines"])
        self.assertTrue(first.startswith("By/OciRuntime.*:"))
        self.assertIn(f"-*Foreign*:{suites.OF_DIES}:More*/*", first)
        self.assertEqual(foreign, "")
        first, foreign = vm.patterns(self.options(more=True), suites.SUITES["trixie"])
        self.assertEqual((first, foreign), (f"*-{suites.OF_ENGINES}:{suites.OF_HIP}:*Foreign*:{suites.OF_DIES}", "*Foreign*"))

    def test_a_long_scenario_that_is_enough_once_has_a_suite_that_decides(self):
        for scenario, home in suites.ONCE.items():
            self.assertTrue(not home or suites.SUITES[home].decides)
            having = [name for name, suite in suites.SUITES.items() if suite.scenarios.startswith("*-") and
                      f":{scenario}" not in vm.patterns(self.options(), suite)[0]]
            self.assertEqual(having, [home] if home else [])

    def test_a_drawn_scenario_runs_once_where_it_can(self):
        able = {"old": ["A.one", "A.two", "B.three"], "new": ["A.one", "A.two", "C.four"]}
        draws = [vm.drawn(able, {"old", "new"}, seed) for seed in range(2)]
        for mine in draws:
            self.assertEqual(sorted(mine["old"] + mine["new"]), ["A.one", "A.two", "B.three", "C.four"])
            self.assertIn("B.three", mine["old"])
            self.assertIn("C.four", mine["new"])
        for name in ("A.one", "A.two"):
            self.assertEqual([name in mine["old"] for mine in draws].count(True), 1, "the next draw has it elsewhere")

    def test_each_scenario_is_in_one_share(self):
        names = [f"A.{number}" for number in range(100)]
        shares = [vm.share(names, 7, seed) for seed in range(7)]
        self.assertEqual(sorted(sum(shares, [])), sorted(names))
        self.assertTrue(all(shares))

    def test_where_failures_do_not_count_a_drawn_scenario_runs_beside(self):
        able = {"old": ["A.one", "A.two"], "moving": ["A.one", "A.two", "C.four"]}
        beside = []
        for seed in range(3):
            mine = vm.drawn(able, {"old"}, seed)
            self.assertEqual(mine["old"], ["A.one", "A.two"])
            self.assertIn("C.four", mine["moving"])
            beside += mine["moving"]
        self.assertEqual(sorted(beside), ["A.one", "A.two", "C.four", "C.four", "C.four"])

    def test_a_filter_is_for_every_suite(self):
        self.assertEqual(vm.patterns(self.options(filter="Files.*"), suites.SUITES["engines"]), ("Files.*", ""))
        self.assertEqual(vm.patterns(self.options(filter="*Foreign*"), suites.SUITES["trixie"]), ("Travelling*", "*Foreign*"))

    def test_suites_of_one_debian_have_one_root(self):
        recipes = {}
        for suite in suites.SUITES.values():
            recipes.setdefault(suite.root, set()).add(tuple(sorted(suite.packages)))
        self.assertEqual([root for root, packages in recipes.items() if len(packages) != 1], [])


class Files(Folder):
    def test_a_plugin_of_somebody_else_takes_the_place_of_ours(self):
        plugin = self.write("theirs.so", "x")
        self.assertEqual(programs.given({"amdgpu_plugin": plugin, "test-streamer": None}), {"usr/lib/sluice/amdgpu_plugin.so": plugin})

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
