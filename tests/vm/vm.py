#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the scenarios with real criu in QEMU guests, one for each Debian suite. Called by scripts/vm; see docs/vm.md."""
import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import emulator
import guest
import image
import module
import programs
import report
import roots
from suites import SUITES

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
ENDED = re.compile(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+\.\S+) \((\d+) ms\)")
WORDS = {"OK": "passed ", "FAILED": "FAILED ", "SKIPPED": "skipped"}
# Scenarios of the first leave images in /out/images; those of the second restore what the other suites' guests left,
# and run in a second boot.
EXPORT, FOREIGN = "Travelling*", "*Foreign*"
print_lock = threading.Lock()


def speaker(name):
    def say(text):
        with print_lock:
            print(f"{name:9}{text}", flush=True)
    return say


def arguments():
    # What each means is at the head of scripts/vm, which answers --help.
    parser = argparse.ArgumentParser(prog="scripts/vm", add_help=False)
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--filter", default="*", metavar="PATTERN")
    parser.add_argument("--run", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--shell", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=CHECKOUT / "build", metavar="DIR")
    parser.add_argument("--package", type=pathlib.Path, metavar="DEB")
    parser.add_argument("--streamer", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--limit", type=int, default=2400, metavar="SECONDS")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    if options.streamer and not options.streamer.is_file():
        parser.error(f"{options.streamer} is no file")
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}")
    options.build = options.build.resolve()
    options.suites = [SUITES[name] for name in options.suites or SUITES]
    if options.shell and len(options.suites) != 1:
        parser.error("--shell is for one suite")
    return options


class Run:
    """One suite from its root to its report. Used by one thread at a time."""

    def __init__(self, suite, options, folder, files):
        self.suite, self.options, self.folder, self.files = suite, options, folder, files
        self.say = speaker(suite.name)
        self.work = options.build / "vm" / f"guest-{suite.name}"
        self.result = report.Result(suite.name, suite.decides)
        self.guest = None

    def prepare(self):
        """Root, module, disk. Raises roots.Unavailable and CalledProcessError."""
        self.work.mkdir(parents=True, exist_ok=True)
        root = roots.of_suite(self.folder, self.suite, self.say)
        sources = self.work / "module"
        driver = module.build(root, CHECKOUT, sources)
        files = dict(self.files)
        if self.suite.client:
            client = module.build_client(root, CHECKOUT / self.suite.client, self.work / "client")
            files["usr/lib/sluice/hsa-client"] = client
        image.make_initrd(root, self.work)
        missing = image.make_disk(root, self.suite, files, driver, module.dependencies(root, sources), self.work)
        if missing:
            self.result.problems.append(f"libraries that its root does not have: {', '.join(missing)}")
        self.guest = guest.Guest(self.suite, root, self.work, emulator.words(self.folder, self.say))
        self.result.kernel = self.guest.version

    def heard(self, line):
        ended = ENDED.search(line)
        if ended:
            self.say(f"{WORDS[ended[1]]} {int(ended[3]) / 1000:7.1f} s  {ended[2]}")
        elif line.startswith("guest: "):
            self.say(line[len("guest: "):])
            version = re.search(r"Version: (\S+)", line)
            if version:
                self.result.criu = version[1].rstrip(",")

    def scenarios(self, pattern, foreign=()):
        """One boot with the scenarios that `pattern` selects. `foreign`: the other suites' runs, whose images go in."""
        self.guest.prepare("out-foreign" if foreign else "out")
        (self.guest.shared / "filter").write_text(f"{pattern}\n", encoding="utf-8")
        for other in foreign:
            shutil.copytree(other.images(), self.guest.shared / "images" / other.suite.name)
        begin = time.monotonic()
        boot = self.guest.boot("scenarios", self.options.limit, self.heard)
        self.result.seconds += time.monotonic() - begin
        report.read(boot, self.result)

    def images(self):
        """What its first boot left for the other suites."""
        return self.work / "out" / "images"

    def script(self):
        """One boot with --run's script; its lines go to standard output. True when it ended with 0."""
        self.guest.prepare()
        shutil.copyfile(self.options.run, self.guest.shared / "script")
        running = False

        def heard(line):
            nonlocal running
            if line.startswith("guest: "):
                running = "ready" in line
            elif running:
                with print_lock:
                    print(line if len(self.options.suites) == 1 else f"{self.suite.name:9}{line}", flush=True)
        boot = self.guest.boot("script", self.options.limit, heard)
        complaints = report.kernel_complaints(boot)
        self.result.problems += complaints
        if boot.code not in (guest.PASSED, guest.FAILED):
            self.say(f"the guest died or hung (QEMU ended with {boot.code}); its console: {boot.serial}")
            for line in report.tail(boot.serial.read_text(encoding="utf-8", errors="replace"), 30):
                self.say(f"  {line}")
        return boot.code == guest.PASSED and not complaints


def together(runs, act):
    """`act(run)` for all at once; its answers, or False where something could not be had.

    A guest is one thread: with one per processor, the third of two processors would run alone at the end.
    """
    def whole(run):
        try:
            return act(run)
        except roots.Unavailable as problem:
            run.result.problems.append(str(problem))
        except subprocess.CalledProcessError as problem:
            run.result.problems.append(f"{problem}\n{problem.output or ''}".rstrip())
        return False
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(runs)) as pool:
        return list(pool.map(whole, runs))


def scenarios(options, runs):
    """Runs every suite's scenarios and writes `build`/vm/results.json for tests/summary.py."""
    results = options.build / "vm" / "results.json"
    results.unlink(missing_ok=True)
    everything = options.filter == "*"
    foreign_too = everything or "Foreign" in options.filter
    first = f"*-{FOREIGN}" if everything else EXPORT if foreign_too else options.filter
    together(runs, lambda run: run.prepare() or run.scenarios(first))
    exporters = [run for run in runs if foreign_too and run.guest and run.images().is_dir()]

    def second_boot(run):
        pattern = FOREIGN if everything else options.filter
        run.scenarios(f"{pattern}-*/{run.suite.name}", [other for other in exporters if other is not run])
    travellers = [run for run in runs if run.guest and set(exporters) - {run}]
    if travellers:
        together(travellers, second_boot)
    for run in runs:
        result = run.result
        report.explain(result, run.say)
        run.say(f"criu {result.criu or '?'}, kernel {result.kernel or '?'}: {result.count('passed')} passed, "
                f"{result.count('failed') + len(result.problems)} failed, {result.count('skipped')} skipped, "
                f"{result.seconds:.0f} s; console: {run.work}/out*.serial.log")
        if run.guest and result.good and not options.keep:
            run.guest.remove_disks()
    results.write_text(json.dumps([dataclasses.asdict(run.result) for run in runs], indent=1), encoding="utf-8")
    return all(run.result.good for run in runs)


def script(runs):
    good = together(runs, lambda run: run.prepare() or run.script())
    for run in runs:
        report.explain(run.result, run.say)
    return all(good) and not any(run.result.problems for run in runs)


def shell(run):
    return together([run], lambda run: run.prepare() or run.guest.prepare() or run.guest.shell()) == [guest.PASSED]


def main():
    options = arguments()
    (options.build / "vm").mkdir(parents=True, exist_ok=True)
    folder = roots.directory(CHECKOUT)
    try:
        required = not (options.run or options.shell)
        files = programs.collect(CHECKOUT, options.build, folder, required, speaker("build"))
        if options.package:
            files |= programs.of_package(options.package, options.build / "vm" / "package")
        if options.streamer:
            files |= {programs.PLACES["test-streamer"]: options.streamer}
    except programs.Failed as problem:
        print(f"vm: the build failed:\n{problem}", file=sys.stderr)
        return 1
    runs = [Run(suite, options, folder, files) for suite in options.suites]
    good = shell(runs[0]) if options.shell else script(runs) if options.run else scenarios(options, runs)
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
