#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plot.py: tables and figures of sluice-bench measurements, and the figure of a trace.

    plot.py FILE [--out DIR] [--into PAGE]     FILE: what `sluice-bench goals` or a scenario wrote with --json
    plot.py --trace TRACE [--out DIR]          TRACE: what SLUICE_TRACE wrote beside the images

DIR gets the figures, drawn by gnuplot, and tables.md. It is made if it is missing; without --out it is the current directory.
With --into the tables go into a Markdown page instead, between its lines `<!-- measured: NAME -->` and `<!-- end -->`. NAME is
a scenario, "machine" or "goals". A place stays as it is when FILE has no such table.

    throughput  every case that has a ceiling: its rate as a part of it, with both rates in GB/s
    gain        the same of what was compared with another way: serial, without zeros
    cpu         CPU time per GB, ours and that of what it was compared with
    bubble      the grid of stage rates as a heat map
    pool        rate against the size of the staging memory

A figure is left out when FILE does not have its measurements. Exit status 1: FILE or TRACE is not ours, or writing failed; the
tables are written even when there is no gnuplot.

Files may come from others. Sizes and numbers are therefore bounded, and no text of a file can become a command of gnuplot's.
"""
import argparse
import collections
import heapq
import json
import math
import pathlib
import re
import subprocess
import sys
from typing import Any, NamedTuple

OURS, THEIRS = "#2b6cb0", "#93a8bd"


class Refused(Exception):
    """What is wrong, in words for the user."""


# ---- What sluice-bench saved (the format: bench/report/report.h)


class Figure(NamedTuple):
    unit: str  # "ratio", "GB/s", "s/GB" ...
    value: float
    low: float  # of the 95 % interval
    high: float
    samples: int


class Case(NamedTuple):
    name: str
    note: str
    figures: dict  # Figure by name, in the order of the file

    def first(self, *names):
        """The figure of a case that may have one of several names; None: it has none of them."""
        return next((self.figures[name] for name in names if name in self.figures), None)


class Report(NamedTuple):
    scenario: str
    what: str
    cases: list


class Bar(NamedTuple):
    subject: str
    side: str
    bar: Any  # as the file has the number
    unit: str
    measured: Any  # value, low, high; None: it was not measured


class Goal(NamedTuple):
    id: Any
    name: str
    verdict: str
    why: list
    bars: list


class Saved(NamedTuple):
    reports: list
    goals: list  # empty when the file is of one scenario
    machine: dict

    def find(self, scenario):
        return next((report for report in self.reports if report.scenario == scenario), None)


def checked(value, kind):
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not {kind}")
    return value


def text(value):
    return checked(value, str)


def number(value):
    if not math.isfinite(checked(value, (int, float))):
        raise ValueError(f"{value} is no number")
    return float(value)


def figure_of(saved):
    low, value, high = (number(saved[key]) for key in ("low", "value", "high"))
    return Figure(text(saved["unit"]), value, low, high, len([number(sample) for sample in saved["samples"]]))


def report_of(saved):
    return Report(
        text(saved["scenario"]),
        text(saved["what"]),
        [Case(text(case["name"]), text(case["note"]),
              {name: figure_of(figure) for name, figure in checked(case["figures"], dict).items()})
         for case in saved["cases"]])


def bar_of(saved):
    subject = f"{text(saved['scenario'])}: {text(saved['case'])}, {text(saved['figure'])}"
    measured = None if saved["value"] is None else tuple(number(saved[key]) for key in ("value", "low", "high"))
    number(saved["bar"])
    return Bar(subject, text(saved["side"]), saved["bar"], text(saved["unit"]), measured)


def goal_of(saved):
    return Goal(checked(saved["id"], int), text(saved["name"]), text(saved["verdict"]),
                [text(sentence) for sentence in saved["why"]], [bar_of(bar) for bar in saved["bars"]])


def read_saved(file):
    """Refused: FILE is no output of --json."""
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        if "reports" not in checked(saved, dict):
            return Saved([report_of(saved)], [], {})
        return Saved([report_of(report) for report in saved["reports"]],
                     [goal_of(goal) for goal in saved.get("goals", [])], checked(saved.get("machine", {}), dict))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Refused(f"{file} is no report of sluice-bench") from error


# ---- Tables


def three_digits(value):
    size = abs(value)
    return f"{value:.{0 if size >= 100 else 1 if size >= 10 else 3 if size >= 0.1 else 4}f}"


def measured(value, low, high):
    return three_digits(value) + ("" if low == high else f" [{three_digits(low)}, {three_digits(high)}]")


def unit_of(unit):
    return "" if unit == "ratio" else f" {unit}"


def table(titles, rows):
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [titles, ["---"] * len(titles), *rows])


def notes(lines):
    return "".join(["\n", *(f"- {line}\n" for line in lines)]) if lines else ""


def machine_table(machine):
    rows = [[name, value if isinstance(value, str) else json.dumps(value)] for name, value in machine.items()]
    return table(["", ""], rows)


def goals_table(goals):
    """A row for each bar; the goal's name and verdict in the first of its rows."""
    rows = []
    for goal in goals:
        for place, bar in enumerate(goal.bars):
            mine = (str(goal.id), goal.name, goal.verdict) if place == 0 else ("", "", "")
            limit = f"{'≥' if bar.side == 'at least' else '≤'} {json.dumps(bar.bar)}{unit_of(bar.unit)}"
            result = "not measured" if bar.measured is None else measured(*bar.measured)
            rows.append([mine[0], mine[1], bar.subject, limit, result, mine[2]])
    whys = [f"Goal {goal.id}: {sentence.replace('; ', '. ')}." for goal in goals if goal.verdict != "pass" for sentence in goal.why]
    return table(["#", "goal", "figure", "bar", "measured", ""], rows) + notes(whys)


def scenario_table(report):
    """A row for each case. Columns: the figures of all cases, in the order in which they first occur."""
    columns = list(dict.fromkeys(name for case in report.cases for name in case.figures))
    samples = max((figure.samples for case in report.cases for figure in case.figures.values()), default=0)

    def cell(figure):
        return "" if figure is None else measured(figure.value, figure.low, figure.high) + unit_of(figure.unit)

    rows = [[case.name, *(cell(case.figures.get(name)) for name in columns)] for case in report.cases]
    return (f"{report.what}; up to {samples} samples a figure.\n\n" + table(["case", *columns], rows) +
            notes([f"{case.name}: {case.note}" for case in report.cases if case.note]))


def tables(saved):
    """{name: table}: the machine, the goals, each scenario."""
    found = {}
    if saved.machine:
        found["machine"] = machine_table(saved.machine)
    if saved.goals:
        found["goals"] = goals_table(saved.goals)
    return found | {report.scenario: scenario_table(report) for report in saved.reports}


def markdown_of(saved):
    return "".join(f"## {name}\n\n{rows}\n" for name, rows in tables(saved).items())


def filled_in(page, saved):
    """The text of a page with its tables filled in."""
    for name, rows in tables(saved).items():
        before, begin, rest = page.partition(f"<!-- measured: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if end:
            page = f"{before}{begin}\n{rows}\n{end}{after}"
    return page


# ---- Figures, as scripts for gnuplot that write SVG to stdout


class Drawing(NamedTuple):
    name: str  # of the file, without ".svg"
    script: str


def quoted(value):
    """A gnuplot string. gnuplot runs text between backquotes: these are removed, and so are newlines."""
    clean = re.sub("[^ -~]", "?", value).replace("`", "'")
    return '"' + re.sub(r'(["\\])', r"\\\1", clean) + '"'


def head(width, height, title):
    """The first lines of a figure with that many pixels."""
    return (f"set terminal svg size {width},{height} noenhanced font 'sans-serif,12' background '#ffffff'\n"
            f"set title {quoted(title)}\nset border 3 lc rgb '#606060'\nset tics nomirror\n")


def data(name, rows):
    """Rows that a plot reads as $NAME."""
    return "\n".join([f"${name} << EOD", *rows, "EOD", ""])


def columns(figure):
    return f"{figure.value:.6g} {figure.low:.6g} {figure.high:.6g}"


def rows_head(rows, title, axis):
    """For a chart with labelled rows from top to bottom, over an axis of values from 0."""
    return (f"{head(820, 110 + 30 * rows, title)}set yrange [{rows - 0.4:.6g}:-0.6]\nset xlabel {quoted(axis)}\n"
            "set ytics scale 0\nset grid xtics lc rgb '#e0e0e0'\nset style fill solid noborder\nset key above\n")


def cases_of(saved):
    """(the label of its row, case) of all reports."""
    return [(quoted(f"{report.scenario}: {case.name}"), case) for report in saved.reports for case in report.cases]


def ratios(saved, name, title, scale, shares, theirs):
    """A bar for the ratio (the first of `shares`) of each case that was compared with one of `theirs`, and both rates."""
    rows, labels = [], ""
    for label, case in cases_of(saved):
        share, ours, other = case.first(*shares), case.first("ours"), case.first(*theirs)
        if share and ours and other:
            rates = quoted(f"{share.value:.2f}: {ours.value:.2f} / {other.value:.2f} GB/s")
            labels += f"set label {rates} at graph 1.02, first {len(rows)}\n"
            rows.append(f"{label} {columns(share)}")
    if not rows:
        return None
    return Drawing(
        name, rows_head(len(rows), title, "ours / theirs, median of pairs with its 95 % interval") + data("data", rows) +
        labels + "set arrow from 1, graph 0 to 1, graph 1 nohead lc rgb '#c05621' lw 2 front\n"
        f"set rmargin 26\nset key off\nset xrange {scale}\n"
        f"plot $data using ($2/2):0:(0):2:($0-0.32):($0+0.32):ytic(1) with boxxyerror lc rgb '{OURS}', \\\n"
        "  $data using 2:0:3:4 with xerrorbars pt -1 lc rgb '#202020'\n")


def throughput(saved):
    return ratios(saved, "throughput", "Rate beside the ceiling", "[0:1.2]", ["ratio to raw", "ratio"],
                  ["raw", "ceiling", "buffered"])


def gain(saved):
    return ratios(saved, "gain", "Rate beside another way", "[0:*]", ["ratio"], ["serial", "dense", "one BO"])


def cpu(saved):
    rows = []
    for label, case in cases_of(saved):
        ours, theirs = case.first("cpu"), case.first("raw cpu", "sink cpu", "buffered cpu", "serial cpu")
        if ours and theirs:
            rows.append(f"{label} {columns(ours)} {columns(theirs)}")
    if not rows:
        return None
    return Drawing(
        "cpu", rows_head(len(rows), "CPU time per GB moved", "seconds of one core per GB") + data("data", rows) +
        "set xrange [0:*]\n"
        f"plot $data using ($2/2):0:(0):2:($0-0.36):($0-0.02):ytic(1) with boxxyerror lc rgb '{OURS}' title 'ours', \\\n"
        f"  $data using ($5/2):0:(0):5:($0+0.02):($0+0.36) with boxxyerror lc rgb '{THEIRS}' title 'compared with', \\\n"
        "  $data using 2:($0-0.19):3:4 with xerrorbars pt -1 lc rgb '#202020' notitle, \\\n"
        "  $data using 5:($0+0.19):6:7 with xerrorbars pt -1 lc rgb '#202020' notitle\n")


def grid_of(report):
    """{(copy, checksum, store): percent beyond the slowest}; the rates are in GB/s."""
    grid = {}
    for case in report.cases if report else []:
        rates, overhead = re.match(r"(\d{1,9})/(\d{1,9})/(\d{1,9})", case.name), case.first("overhead")
        if rates and overhead:
            grid[tuple(map(int, rates.groups()))] = (overhead.value - 1) * 100
    return grid


def bubble(saved):
    grid = grid_of(saved.find("bubble"))
    if not grid:
        return None
    copies, checksums, stores = (sorted({rates[stage] for rates in grid}) for stage in range(3))

    def tics(axis, rates):
        return f"set {axis}tics scale 0 (" + ", ".join(f"'{rate}' {at}" for at, rate in enumerate(rates)) + ")\n"

    script = (f"{head(820, 330, '')}unset title\nset multiplot layout 1,{len(stores)}"
              " title 'Time beyond the slowest stage alone, in %'\n"
              "set cbrange [0:3]\nset palette defined (0 '#e6f4ea', 1 '#fbe9c6', 3 '#e07b5a')\n"
              "unset colorbox\nset border 0\nset size ratio 1\nset key off\n"
              "set xlabel 'copy, GB/s'\nset ylabel 'checksum, GB/s'\n"
              f"set xrange [-0.5:{len(copies) - 0.5:.6g}]\nset yrange [-0.5:{len(checksums) - 0.5:.6g}]\n"
              f"{tics('x', copies)}{tics('y', checksums)}")
    for shown in stores:
        rows = [f'{copies.index(copy)} {checksums.index(checksum)} {overhead:.6g} "{overhead:.1f}"'
                for (copy, checksum, store), overhead in grid.items() if store == shown]
        script += (f"{data('data', rows)}set title 'store {shown} GB/s'\n"
                   "plot $data using 1:2:3 with image pixels, $data using 1:2:4 with labels\n")
    return Drawing("bubble", script + "unset multiplot\n")


def pool(saved):
    report, dumps, restores = saved.find("memory"), [], []
    for case in report.cases if report else []:
        size, ours = re.match(r"pool (\d{1,9}) MiB", case.name), case.first("ours")
        if size and ours:
            (restores if case.name.endswith("restore") else dumps).append(f"{int(size[1])} {columns(ours)}")
    if not dumps or not restores:
        return None
    return Drawing(
        "pool",
        head(640, 340, "Rate against the size of the staging memory") + data("dumps", dumps) + data("restores", restores) +
        "set logscale x 2\nset xrange [14:586]\nset yrange [0:*]\n"
        "set xlabel 'staging memory, MiB'\nset ylabel 'GB/s'\nset key bottom right\n"
        "set grid lc rgb '#e0e0e0'\nset xtics (16, 32, 64, 128, 256, 512)\n"
        f"plot $dumps using 1:2:3:4 with yerrorlines pt 7 ps 0.6 lw 2 lc rgb '{OURS}' title 'dump', \\\n"
        f"  $restores using 1:2:3:4 with yerrorlines pt 7 ps 0.6 lw 2 lc rgb '{THEIRS}' title 'restore'\n")


def drawings(saved):
    return [drawing for make in (throughput, gain, cpu, bubble, pool) if (drawing := make(saved))]


# ---- A trace (the format: src/plugin/contents/stats.h)

LARGEST_TRACE = 512 << 20
LONGEST_EVENT = 1024  # characters; ours have 200
LONGEST_TEXT = 64
MOST_LANES = 64
MOST_STAGES = 8
MOST_SLOTS = 65536  # 64 GiB of staging memory in chunks of 1 MiB
LONGEST_US = 1e15  # three decades
MOST_BARS = 6000  # that are drawn
MOST_ROWS = 1024
COLOURS = {"copy": OURS, "checksum": "#d69e2e", "store": "#6ba37b"}


class Stay(NamedTuple):
    """A chunk's stay in a stage."""
    number: int  # the place in the file
    began_ns: int
    ended_ns: int
    lane: int
    slot: int
    stage: int


def elements(array):
    """Each element of a JSON array in turn, so that a long array is never held as objects. ValueError: it is none."""
    decode, space = json.JSONDecoder().raw_decode, re.compile(r"[ \t\r\n]*")
    at = space.match(array).end()
    separator = "["
    while array.startswith(separator, at):
        at = space.match(array, at + 1).end()
        if separator == "[" and array.startswith("]", at):
            break
        element, length = decode(array[at:at + LONGEST_EVENT])
        yield element
        at, separator = space.match(array, at + length).end(), ","
    if not array.startswith("]", at) or space.match(array, at + 1).end() != len(array):
        raise ValueError(f"no JSON array: at {at}")


class Trace:
    """The part of a trace to draw: the stays that began first, and the number of slots and the end of the whole."""

    def __init__(self, file):
        if file.stat().st_size > LARGEST_TRACE:
            raise Refused(f"{file} is larger than the 512 MiB that are read")
        self.stages, self.lanes, self.slots, self.stays, self.ended_ns = [], [], [], 0, 0
        self.file = file
        try:
            found = self._read(elements(file.read_text(encoding="utf-8")))
            self.first = sorted(heapq.nsmallest(MOST_BARS, found, key=lambda stay: stay.began_ns))
        except (RecursionError, ValueError) as error:
            raise Refused(f"{file} is no trace of SLUICE_TRACE's") from error

    def _read(self, events):
        for place, event in enumerate(events):
            try:
                stay = self._stay(place, event)
            except Refused as refused:
                raise Refused(f"{self.file}: event {place}: {refused}") from refused
            if stay:
                self.stays += 1
                self.ended_ns = max(self.ended_ns, stay.ended_ns)
                self.slots[stay.lane] = max(self.slots[stay.lane], stay.slot + 1)
                yield stay

    def _stay(self, place, event):
        """The stay of an event; None: it has none. A lane's name comes before its stays."""
        phase, name = (short_text(event, key) for key in ("ph", "name"))
        if phase == "M" and name == "process_name":
            if count(event, "pid", MOST_LANES) != len(self.lanes):
                raise Refused("pid is not the next lane's")
            self.lanes.append(short_text(member(event, "args"), "name"))
            self.slots.append(1)
        if phase != "X":
            return None
        lane, slot = count(event, "pid", len(self.lanes)), count(event, "tid", MOST_SLOTS)
        began_ns, lasted_ns = nanoseconds(event, "ts"), nanoseconds(event, "dur")
        count(member(event, "args"), "chunk", 2**64 - 1)
        if name not in self.stages:
            if len(self.stages) == MOST_STAGES:
                raise Refused(f"more than {MOST_STAGES} stages")
            self.stages.append(name)
        return Stay(place, began_ns, began_ns + lasted_ns, lane, slot, self.stages.index(name))


def member(event, name):
    return event.get(name) if isinstance(event, dict) else None


def short_text(event, name):
    value = member(event, name)
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise Refused(f"{name} is no text of up to {LONGEST_TEXT} characters")
    return value


def count(event, name, below):
    value = member(event, name)
    if type(value) is not int or not 0 <= value < below:  # a bool is an int, too
        raise Refused(f"{name} is no number below {below}")
    return value


def nanoseconds(event, name):
    value = member(event, name)
    if type(value) not in (int, float) or not 0 <= value <= LONGEST_US:
        raise Refused(f"{name} is no time in microseconds")
    return round(value * 1e3)


def timeline(trace, name):
    """A row for each slot, lanes below each other, and a bar in the colour of the stage while a chunk was there.

    Only the beginning of a long trace is drawn; the title says so.
    """
    if not trace.first:
        raise Refused(f"{name}: no chunk in the trace")
    rows_before, rows = [], 0
    for slots in trace.slots:
        rows_before.append(rows)
        if rows + slots > MOST_ROWS:
            raise Refused(f"{name}: more than the {MOST_ROWS} slots that can be drawn")
        rows += slots + 1  # one stays empty
    origin_ns = min(stay.began_ns for stay in trace.first)

    def ms(ns):
        return (ns - origin_ns) / 1e6

    shown_ms = ms(max(stay.ended_ns for stay in trace.first))
    title = "When each chunk was in which stage, a row for each slot"
    if trace.stays > len(trace.first):
        title += f"; the first {shown_ms:.0f} of {ms(trace.ended_ns):.0f} ms"
    bars = collections.defaultdict(list)  # of a stage: from, to, row
    for stay in trace.first:
        row = rows_before[stay.lane] + stay.slot
        bars[stay.stage].append(f"{ms(stay.began_ns):.3f} {ms(stay.ended_ns):.3f} {row}")
    labels = [f"{quoted(lane)} {before + (slots - 1) / 2:.6g}"
              for lane, before, slots in zip(trace.lanes, rows_before, trace.slots)]
    plots = [f"$stage{stage} using (($1+$2)/2):3:1:2:($3-0.42):($3+0.42) with boxxyerror lc rgb "
             f"'{COLOURS.get(trace.stages[stage], THEIRS)}' title {quoted(trace.stages[stage])}"
             for stage in sorted(bars)]
    return Drawing(
        name,
        head(900, 120 + 8 * rows, title) + "".join(data(f"stage{stage}", bars[stage]) for stage in sorted(bars)) +
        f"set ytics scale 0 ({', '.join(labels)})\nset xrange [0:{max(shown_ms, 0.001):.6g}]\n"
        f"set yrange [{rows - 1.4:.6g}:-0.6]\nset xlabel 'ms'\nset grid xtics lc rgb '#e0e0e0'\n"
        "set style fill solid noborder\nset key above\nplot " + ", \\\n  ".join(plots) + "\n")


# ---- The command


def write(file, content):
    file.write_text(content, encoding="utf-8", errors="replace")


def write_svg(drawing, out):
    file = out / f"{drawing.name}.svg"
    try:
        drawn = subprocess.run(["gnuplot"], input=drawing.script.encode(), stdout=subprocess.PIPE, check=False)
    except FileNotFoundError as error:
        raise Refused("figures need gnuplot: apt-get install gnuplot-nox") from error
    if drawn.returncode != 0:
        raise Refused(f"gnuplot could not draw {file.name}")
    file.write_bytes(drawn.stdout)
    print(file)


def plot(file, out, page=None):
    saved = read_saved(file)
    out.mkdir(parents=True, exist_ok=True)
    if page:
        write(page, filled_in(page.read_text(encoding="utf-8"), saved))
    else:
        write(out / "tables.md", markdown_of(saved))
        print(out / "tables.md")
    for drawing in drawings(saved):
        write_svg(drawing, out)


def plot_trace(file, out):
    drawing = timeline(Trace(file), file.stem)
    out.mkdir(parents=True, exist_ok=True)
    write_svg(drawing, out)


def main(arguments):
    parser = argparse.ArgumentParser(prog="plot.py", description="Tables and figures of what was measured.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", metavar="FILE", nargs="?", type=pathlib.Path, help="what sluice-bench --json has written")
    what.add_argument("--trace", type=pathlib.Path, help="what SLUICE_TRACE has written beside the images")
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, default=".", help="for the SVG files; default: here")
    parser.add_argument("--into", metavar="PAGE", type=pathlib.Path,
                        help="a Markdown page that has places for the tables, instead of DIR/tables.md")
    request = parser.parse_args(arguments)
    if request.trace and request.into:
        parser.error("--into: a trace has no tables")
    try:
        if request.trace:
            plot_trace(request.trace, request.out)
        else:
            plot(request.file, request.out, request.into)
    except Refused as refused:
        print(f"plot.py: {refused}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"plot.py: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
