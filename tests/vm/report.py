# SPDX-License-Identifier: MIT
"""What one suite's guest found: its scenarios from GoogleTest's XML, the kernel's complaints, and how the boot ended.

A suite is good when QEMU ended by the guest's own word, the XML is complete, no scenario failed and the kernel's log is
clean; each of these alone can lie.

Run as a program: `report.py results.json` prints the table of docs/internals/vm.md.
"""
import dataclasses
import json
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

import guest

COMPLAINTS = re.compile(
    r"BUG:|WARNING:|Oops|KASAN|UBSAN|Kernel panic|general protection fault|Call Trace|INFO: task .* blocked|"
    r"possible (recursive|circular) locking|inconsistent lock state|suspicious RCU usage|refcount_t:|"
    r"list_(add|del) corruption|sleeping function called|soft lockup|rcu_(sched|preempt).*stall")
# Faults of Linux's own that a suite is not held to account for: what the first line of the report has, to its "end trace".
# ttm_bo_release: a process that was restored on other GPUs ends, and the page of its events is still pinned.
# kfd_process_kunmap_signal_bo looks for the GPU by its gpu_id at the dump (kfd_process.c; Linux 6.1, 6.12, 7.2).
KNOWN = re.compile(r"WARNING: .*\bttm_bo_release\b")
# What Linux 6.1 reports where the questions (tests/vamdgpu/questions) ask it to restore an event and a queue that there cannot
# be; the scenarios' own program asks. Of criu's processes a suite is held to account for the same.
PROVOKED = re.compile(r"WARNING: .*\b(idr_alloc|pqm_create_queue)\b")
ASKER = "Comm: vm-scenarios "
END_OF_REPORT = "---[ end trace"
LOG_LINES = 25
COMPLAINT_LINES = 100    # an oops with its registers, twice


@dataclasses.dataclass
class Case:
    name: str
    result: str          # passed, failed, skipped
    seconds: float
    reason: str = ""     # why skipped, or the failure's text
    logs: list = dataclasses.field(default_factory=list)     # files that a failed scenario left


@dataclasses.dataclass
class Result:
    """A suite's. `problems` are failures that belong to no scenario."""
    suite: str
    decides: bool
    criu: str = ""
    kernel: str = ""
    cases: list = dataclasses.field(default_factory=list)
    problems: list = dataclasses.field(default_factory=list)
    logs: list = dataclasses.field(default_factory=list)     # files of scenarios that did not come to their end
    seconds: float = 0.0

    def count(self, result):
        return sum(case.result == result for case in self.cases)

    @property
    def good(self):
        return not self.problems and self.count("passed") > 0 and not self.count("failed")


def cases(out, part):
    """Every case that ran in a part of a boot, from what that left in `out`. OSError, xml.ParseError: it did not come to its
    end."""
    found = []
    for case in xml.parse(out / f"vm-scenarios-{part}.xml").getroot().iter("testcase"):
        if case.get("status") == "notrun":
            continue
        name = f"{case.get('classname')}.{case.get('name')}"
        failures = [(part.text or part.get("message") or "").strip() for part in case.findall("failure")]
        skipped = case.find("skipped")
        if failures:
            logs = sorted(str(path) for path in (out / "logs" / name.replace("/", "-")).glob("*"))
            found.append(Case(name, "failed", float(case.get("time", 0)), "\n".join(failures), logs))
        elif skipped is not None:
            text = (skipped.text or skipped.get("message") or "no reason given").strip()
            found.append(Case(name, "skipped", 0.0, text.splitlines()[-1]))
        else:
            found.append(Case(name, "passed", float(case.get("time", 0))))
    return found


def without_known(lines):
    """Lines of a kernel's log that are not of a report that KNOWN has, or that the questions have provoked."""
    left = []
    at = 0
    while at < len(lines):
        known, provoked = KNOWN.search(lines[at]), PROVOKED.search(lines[at])
        if known or provoked:
            end = next((i + 1 for i in range(at, len(lines)) if END_OF_REPORT in lines[i]), len(lines))
            if known or any(ASKER in line for line in lines[at:end]):
                at = end
                continue
        left.append(lines[at])
        at += 1
    return left


def kernel_complaints(boot):
    """What the kernel of a guest said that fails it, from there on: nothing, or one text."""
    log = boot.out / "dmesg"
    if not log.exists():
        log = boot.serial
    lines = without_known(log.read_text(encoding="utf-8", errors="replace").splitlines())
    first = next((i for i, line in enumerate(lines) if COMPLAINTS.search(line)), None)
    if first is None:
        return []
    return [f"the kernel complained ({log}):\n" + "\n".join(lines[first:first + COMPLAINT_LINES])]


def tail(text, count):
    return text.rstrip("\n").splitlines()[-count:]


def read(boot, result, parts=("own",)):
    """Adds what a boot that ran these parts found to `result`: a suite's own scenarios, or those of foreign images."""
    serial = boot.serial.read_text(encoding="utf-8", errors="replace")
    running = [line.split("]", 1)[1].strip() for line in serial.splitlines() if line.startswith("[ RUN      ]")]
    during = f" during {running[-1]}" if running else ""
    if boot.code is None:
        result.problems.append(f"the guest hung{during}")
    elif boot.code not in (guest.PASSED, guest.FAILED):
        end = "\n".join(tail(serial, LOG_LINES))
        result.problems.append(f"the guest died{during} (QEMU ended with {boot.code}):\n{end}")
    try:
        for part in parts:
            result.cases += cases(boot.out, part)
    except (OSError, xml.ParseError):
        if boot.code in (guest.PASSED, guest.FAILED):
            result.problems.append(f"vm-scenarios hung or died{during}")
        result.logs += sorted(str(path) for path in (boot.out / "logs" / "unfinished").rglob("*") if path.is_file())
    else:
        if boot.code == guest.FAILED and not result.count("failed"):
            result.problems.append("vm-scenarios failed though none of its scenarios did")
    result.problems += kernel_complaints(boot)


def show_log(path, say):
    text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
    if not text.strip():
        return
    ours = [line for line in text.splitlines() if "amdgpu_plugin: " in line]
    say(f"    {path}, the plugin's lines:")
    for line in ours[-LOG_LINES:]:
        say(f"      {line}")
    say("    and its end:")
    for line in tail(text, LOG_LINES):
        say(f"      {line}")


def explain(result, say):
    """Every failed scenario with its reason, and of its criu logs the plugin's lines and the end."""
    for case in result.cases:
        if case.result == "failed":
            say(f"--- {case.name} failed")
            for line in case.reason.splitlines():
                say(f"    {line}")
            for path in case.logs:
                show_log(path, say)
    for problem in result.problems:
        for number, line in enumerate(problem.splitlines()):
            say(f"    {line}" if number else f"--- {line}")
    for path in result.logs:
        show_log(path, say)


def table(results):
    """Markdown: a line for every scenario, a column for every suite, seconds."""
    words = {"failed": "FAILED", "skipped": "-"}
    times = [{case["name"]: words.get(case["result"]) or f"{case['seconds']:.1f}"
              for case in result["cases"]} for result in results]
    lines = [f"| scenario | {' | '.join(result['suite'] for result in results)} |", "|---|" + "---:|" * len(results)]
    for name in sorted({name for column in times for name in column}):
        lines.append(f"| {name} | {' | '.join(column.get(name, '') for column in times)} |")
    return lines + [f"| **all, with boots** | {' | '.join(format(result['seconds'], '.0f') for result in results)} |"]


if __name__ == "__main__":
    print("\n".join(table(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")))))
