#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The scripts: --help answers without doing anything, and scripts/test says which steps there are and where it is.

They run in a copy of the checkout that has the scripts alone, with a PATH that has neither apt nor a compiler nor meson.
"""
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

CHECKOUT = pathlib.Path(sys.argv.pop(1))
# What a script may use to print a text.
TOOLS = ("bash", "sed", "dirname", "env", "nproc", "tee", "mktemp", "rm", "grep")
STEP = re.compile(r"^test: step (\d+) of (\d+): (\S+), after ", re.MULTILINE)
PLANNED = re.compile(r"^test: (\d+)  (\S+) ", re.MULTILINE)


class Scripts(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.copy, self.tools = self.home / "checkout", self.home / "bin"
        shutil.copytree(CHECKOUT / "scripts", self.copy / "scripts")
        (self.copy / "tests/demo").mkdir(parents=True)
        shutil.copy(CHECKOUT / "tests/demo/demo_usage.inc", self.copy / "tests/demo")
        self.tools.mkdir()
        for tool in TOOLS:
            (self.tools / tool).symlink_to(shutil.which(tool))

    def fake(self, path, script="exit 0"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{script}\n", encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def call(self, name, *arguments):
        return subprocess.run([self.copy / "scripts" / name, *arguments], cwd=self.copy, env={"PATH": str(self.tools)},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def files(self):
        return sorted(str(path) for path in self.copy.rglob("*"))

    def names(self):
        return [path.name for path in (self.copy / "scripts").iterdir() if os.access(path, os.X_OK)]

    def test_help_answers_and_does_nothing(self):
        before = self.files()
        self.assertGreaterEqual(len(self.names()), 9)
        for name in self.names():
            for option in ("--help", "-h"):
                with self.subTest(script=name, option=option):
                    told = self.call(name, option)
                    self.assertEqual((told.returncode, told.stderr), (0, ""))
                    self.assertIn(f"scripts/{name}", told.stdout)
        self.assertEqual(self.files(), before)

    def test_wrong_usage_is_told_and_does_nothing(self):
        before = self.files()
        for name in ("setup", "test", "package", "coverage", "fuzz"):
            with self.subTest(script=name):
                told = self.call(name, "--no-such-option")
                self.assertEqual((told.returncode, told.stdout), (2, ""))
                self.assertIn(f"scripts/{name}", told.stderr)
        self.assertEqual(self.files(), before)

    def test_setup_without_apt_names_what_is_needed(self):
        told = self.call("setup", "--vm")
        self.assertEqual((told.returncode, told.stdout), (1, ""))
        for package in (*self.call("setup", "--print").stdout.split(), "mmdebstrap"):
            self.assertIn(f" {package}", told.stderr)
        self.assertNotIn("command not found", told.stderr)

    def test_the_demo_lists_its_programs_options(self):
        for option in ("--gpus", "--vram", "--parent", "--corrupt", "--criu", "--move"):
            self.assertIn(option, self.call("demo", "--help").stdout)

    def test_scripts_test_announces_its_steps_and_comes_to_each(self):
        for name in ("setup", "lint", "build", "fuzz", "package", "demo", "vm"):
            self.fake(self.copy / "scripts" / name)
        for tool in ("meson", "python3"):
            self.fake(self.tools / tool)
        for folder in ("build", "build-asan", "build-tsan"):
            (self.copy / folder).mkdir()
        for options in ((), ("--skip-vm",), ("--strict",), ("--engines",), ("--asan",), ("--tsan",)):
            with self.subTest(options=options):
                told = self.call("test", *options)
                self.assertEqual((told.returncode, told.stderr), (0, ""))
                planned = PLANNED.findall(told.stdout)
                reached = STEP.findall(told.stdout)
                self.assertGreaterEqual(len(planned), 3)
                self.assertEqual([(number, step) for number, _, step in reached], planned)
                self.assertEqual({int(of) for _, of, _ in reached}, {len(planned)})
                self.assertEqual("guests" in dict((step, 1) for _, step in planned), options in ((), ("--strict",), ("--engines",)))
                self.assertEqual("move" in dict((step, 1) for _, step in planned), options == ("--engines",))


if __name__ == "__main__":
    unittest.main()
