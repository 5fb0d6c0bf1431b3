#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the scenarios with real criu in QEMU guests, one for each Debian suite. Called by scripts/vm; see docs/internals/vm.md.

A guest is booted once. Its scenarios are a run of vm-scenarios in it; then it waits for what the other suites' guests dumped, and
restores that.
"""
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
import zlib

import cards
import clients
import driver
import emulator
import guest
import image
import programs
import report
import roots
from suites import EVERY, MORE, OF_DIES, OF_MI300X, ONCE, SHARE_ON_MI300X, SUITES

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
ENDED = re.compile(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+\.[^\s,]+)(?:, where .*)? \((\d+) ms\)")
WORDS = {"OK": "passed ", "FAILED": "FAILED ", "SKIPPED": "skipped"}
# Scenarios of the first leave images in /out/images; those of the second restore what the other suites' guests left.
EXPORT, FOREIGN = "Travelling*", "*Foreign*"
WAITS = "guest: waits for the images"
print_lock = threading.Lock()


def speaker(name):
    def say(text):
        with print_lock:
            print(f"{name:17}{text}", flush=True)
    return say


def arguments():
    # What each means is at the head of scripts/vm, which answers --help.
    parser = argparse.ArgumentParser(prog="scripts/vm", add_help=False)
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--filter", default="", metavar="PATTERN")
    parser.add_argument("--more", action="store_true")
    parser.add_argument("--draw", type=int, metavar="SEED")
    parser.add_argument("--run", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--give", type=pathlib.Path, metavar="FILE", action="append", default=[])
    parser.add_argument("--shell", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=CHECKOUT / "build", metavar="DIR")
    parser.add_argument("--package", type=pathlib.Path, metavar="DEB")
    parser.add_argument("--plugin", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--streamer", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--modules", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--card", choices=cards.MODELS)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--limit", type=int, default=2400, metavar="SECONDS")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    for file in (options.plugin, options.streamer, *options.give):
        if file and not file.is_file():
            parser.error(f"{file} is no file")
    if options.modules:
        try:
            driver.in_folder(options.modules)
        except driver.Unfit as problem:
            parser.error(str(problem))
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}")
    options.build = options.build.resolve()
    options.suites = [SUITES[name] for name in options.suites or EVERY]
    if options.shell and len(options.suites) != 1:
        parser.error("--shell is for one suite")
    return options


class Run:
    """One suite from its root to its report. Used by one thread at a time. `programs`: what the build made."""

    def __init__(self, suite, options, folder, programs):
        self.suite, self.options, self.folder, self.programs = suite, options, folder, programs
        self.card = options.card or suite.card
        self.say = speaker(suite.name)
        self.work = options.build / "vm" / f"guest-{suite.name}"
        self.result = report.Result(suite.name, suite.decides)
        self.guest = None
        self.drawn = ""     # the filter of --draw

    def prepare(self):
        """Root and disk. Raises roots.Unavailable, driver.Unfit and CalledProcessError."""
        self.work.mkdir(parents=True, exist_ok=True)
        root = roots.of_suite(self.folder, self.suite, self.say)
        files = self.programs.guest | cards.firmware(self.programs.here[programs.CARD_FILES], self.work / "card-files")
        if self.suite.client:
            client = clients.build_client(root, CHECKOUT / self.suite.client, self.work / "client")
            files["usr/lib/sluice/hsa-client"] = client
        if self.suite.hip:
            files["usr/lib/sluice/hip-jobs"] = clients.build_hip(root, CHECKOUT / self.suite.hip, cards.ISA[self.card], self.work / "hip")
        image.make_initrd(root, self.work)
        missing = image.make_disk(root, self.suite, files, self.options.modules, self.work)
        if missing:
            self.result.problems.append(f"libraries that its root does not have: {', '.join(missing)}")
        self.guest = guest.Guest(self.suite, root, self.work, emulator.words(self.folder, self.say),
                                 self.programs.here[programs.CARD], self.card, self.options.trace)
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

    def scenarios(self, pattern, foreign, exchange):
        """One boot with the scenarios that `pattern` selects. `foreign`: those that come when `exchange` has the others'
        images, or nothing."""
        self.guest.prepare()
        (self.guest.shared / "filter").write_text(f"{pattern}\n", encoding="utf-8")
        if foreign:
            text = f"{foreign}-*/{self.suite.name}\n"      # its own are no foreign ones
            (self.guest.shared / "filter-foreign").write_text(text, encoding="utf-8")
        begin = time.monotonic()

        def heard(line):
            self.heard(line)
            if line.startswith(WAITS):
                exchange.waits(self)
        boot = self.guest.boot("scenarios", self.options.limit, heard)
        exchange.ended(self)
        self.result.seconds = time.monotonic() - begin
        report.read(boot, self.result, ["own", *(["foreign"] if foreign else [])])

    def images(self):
        """What it left for the other suites."""
        return self.work / "out" / "images"

    def receive(self, others):
        """Gives the waiting guest what these left, and says so."""
        for other in others:
            if other.images().is_dir():
                shutil.copytree(other.images(), self.guest.shared / "images" / other.suite.name)
        (self.guest.shared / "images-are-there").touch()

    def script(self):
        """One boot with --run's script; its lines go to standard output. True when it ended with 0."""
        self.guest.prepare()
        shutil.copyfile(self.options.run, self.guest.shared / "script")
        for file in self.options.give:
            shutil.copyfile(file, self.guest.shared / file.name)
        running = False

        def heard(line):
            nonlocal running
            if line.startswith("guest: "):
                running = "ready" in line
            elif running:
                with print_lock:
                    print(line if len(self.options.suites) == 1 else f"{self.suite.name:17}{line}", flush=True)
        boot = self.guest.boot("script", self.options.limit, heard)
        complaints = report.kernel_complaints(boot)
        self.result.problems += complaints
        if boot.code not in (guest.PASSED, guest.FAILED):
            self.say(f"the guest died or hung (QEMU ended with {boot.code}); its console: {boot.serial}")
            for line in report.tail(boot.serial.read_text(encoding="utf-8", errors="replace"), 30):
                self.say(f"  {line}")
        return boot.code == guest.PASSED and not complaints


class Exchange:
    """The guests' images for each other: when every guest waits for them or has ended, those that wait get them. Any
    thread."""

    def __init__(self, runs):
        self.running, self.waiting, self.all = set(runs), [], list(runs)
        self.lock = threading.Lock()

    def waits(self, run):
        with self.lock:
            self.waiting.append(run)
        self.ended(run)

    def ended(self, run):
        """`run` has nothing more to give. Said twice, it is the same."""
        with self.lock:
            self.running.discard(run)
            if self.running:
                return
            for waiting in self.waiting:
                waiting.receive([other for other in self.all if other is not waiting])
            self.waiting = []


def together(runs, act):
    """`act(run)` for all at once; its answers, or False where something could not be had.

    A guest is one thread: with one per processor, the third of two processors would run alone at the end.
    """
    def whole(run):
        try:
            return act(run)
        except (roots.Unavailable, cards.Failed, driver.Unfit) as problem:
            run.result.problems.append(str(problem))
        except subprocess.CalledProcessError as problem:
            run.result.problems.append(f"{problem}\n{problem.output or ''}".rstrip())
        return False
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(runs)) as pool:
        return list(pool.map(whole, runs))


def patterns(options, suite):
    """GoogleTest's filters of a suite's scenarios: of those that come first, and of those that restore what others dumped."""
    if options.filter:
        foreign = options.filter if "Foreign" in options.filter else ""
        return (EXPORT if foreign else options.filter), foreign      # they need images, so the guests make some
    left_out = [FOREIGN]
    if (options.card or suite.card) == cards.MODELS[0]:
        left_out.append(OF_DIES)
    if not options.more:
        left_out += [MORE, *(scenario for scenario, name in ONCE.items() if name != suite.name)]
    joint = ":" if "-" in suite.scenarios else "-"
    return suite.scenarios + joint + ":".join(left_out), FOREIGN if suite.foreign else ""


def listed(program, pattern):
    """The scenarios that a filter selects."""
    words = [program, "--gtest_list_tests", f"--gtest_filter={pattern}"]
    names, group = [], ""
    for line in subprocess.run(words, text=True, check=True, stdout=subprocess.PIPE).stdout.splitlines():
        if line.startswith(" "):
            names.append(group + line.split()[0])
        else:
            group = line.split()[0]
    return names


def drawn(able, decides, seed):
    """{suite: scenarios}: each scenario in one of the suites that decide and are able to run it. Of a suite that does not
    decide, what it alone has and a third of the others: a failure there would not count. `able`: the same, with all of them."""
    mine = {suite: [] for suite in able}
    for name in sorted(set().union(*able.values())):
        where = [suite for suite, names in able.items() if name in names]
        deciding = [suite for suite in where if suite in decides]
        if deciding:
            mine[deciding[(zlib.crc32(name.encode()) + seed) % len(deciding)]].append(name)
        for suite in where:
            if suite not in decides and (not deciding or share([name], 3, seed)):
                mine[suite].append(name)
    return mine


def share(names, parts, seed):
    """One of so many parts."""
    return [name for name in names if (zlib.crc32(name.encode()) + seed) % parts == 0]


def draw(options, runs):
    """--draw: suites that have the same scenarios share them. Those whose images the other guests need are in each."""
    program = runs[0].programs.guest[programs.PLACES["vm-scenarios"]]
    able = {}
    for run in runs:
        if run.suite.scenarios.startswith("*"):
            able[run] = listed(program, f"{patterns(options, run.suite)[0]}:{EXPORT}")     # which is after the "-"
        elif run.suite.scenarios == OF_MI300X:
            everything = listed(program, patterns(options, SUITES[run.suite.debian])[0])
            run.drawn = ":".join([OF_MI300X, *share(everything, SHARE_ON_MI300X, options.draw)])
    for run, names in drawn(able, {run for run in able if run.suite.decides}, options.draw).items():
        run.drawn = ":".join([EXPORT, *names])


def scenarios(options, runs):
    """Runs every suite's scenarios and writes `build`/vm/results.json for tests/summary.py."""
    results = options.build / "vm" / "results.json"
    results.unlink(missing_ok=True)
    exchange = Exchange(runs)
    if options.draw is not None:
        draw(options, runs)

    def whole(run):
        try:
            run.prepare()
            first, foreign = patterns(options, run.suite)
            run.scenarios(run.drawn or first, foreign if len(runs) > 1 else "", exchange)
        finally:
            exchange.ended(run)
    together(runs, whole)
    for run in runs:
        result = run.result
        report.explain(result, run.say)
        if not result.good:
            for line in cards.remarks(run.work)[-report.LOG_LINES:]:
                run.say(f"    {line}")
        run.say(f"criu {result.criu or '?'}, kernel {result.kernel or '?'}: {result.count('passed')} passed, "
                f"{result.count('failed') + len(result.problems)} failed, {result.count('skipped')} skipped, "
                f"{result.seconds:.0f} s; console: {run.work}/out.serial.log")
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
        built = programs.collect(CHECKOUT, options.build, folder, required, speaker("build"))
        if options.package:
            built.guest |= programs.of_package(options.package, options.build / "vm" / "package")
        built.guest |= programs.given({"amdgpu_plugin": options.plugin, "test-streamer": options.streamer})
    except programs.Failed as problem:
        print(f"vm: the build failed:\n{problem}", file=sys.stderr)
        return 1
    runs = [Run(suite, options, folder, built) for suite in options.suites]
    good = shell(runs[0]) if options.shell else script(runs) if options.run else scenarios(options, runs)
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
