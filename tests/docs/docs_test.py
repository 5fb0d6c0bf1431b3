#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pages against sources: versions, links, commands, and the messages that docs/reference/messages.md explains.

    docs_test.py VERSION

VERSION is meson.build's, which is where it is said; all else must agree.
"""
import itertools
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = sys.argv.pop(1) if len(sys.argv) > 1 else None

TOKEN = re.compile(r"""//[^\n]*|'(?:\\.|[^'\\])'|"(?:\\.|[^"\\])*"|;|\s+|.""")


def statements(path):
    """Each statement of a C++ file: its text, and its string literals, neighbours joined as the compiler does."""
    text, literals, joins = "", [], False
    for token in TOKEN.findall(path.read_text(encoding="utf-8")):
        if token.startswith("//") or token.isspace():
            continue
        if token.startswith('"'):
            literal = token[1:-1].replace('\\"', '"').replace("\\n", "\n")
            if joins:
                literals[-1] += literal
            else:
                literals.append(literal)
            joins = True
            continue
        joins = False
        text += token
        if token == ";":
            yield text, literals
            text, literals = "", []


class Version(unittest.TestCase):
    """meson.build says it; the changelogs repeat it, below what comes with the next one."""

    def test_changelog_begins_with_it(self):
        text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        self.assertEqual(re.search(r"^## (?!Unreleased$)(\S+)", text, re.M)[1], VERSION)

    def test_package_has_it(self):
        line = (ROOT / "debian" / "changelog").read_text(encoding="utf-8").splitlines()[0]
        self.assertEqual(re.match(r"sluice \(([^)]+)\) ", line)[1], VERSION)


def links(page):
    """The files that a page links to, whether they exist or not."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


def places(page):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)}


class Links(unittest.TestCase):
    PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/*.md")]

    def test_lead_to_files(self):
        for page in self.PAGES:
            for target in links(page):
                self.assertTrue(target.exists(), f"{page} -> {target}")

    def test_lead_to_headings(self):
        for page in self.PAGES:
            for target, place in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
                self.assertIn(place, places((page.parent / target).resolve() if target else page), f"{page} -> {target}")

    def test_readme_leads_to_every_page(self):
        met, next_pages = set(), {ROOT / "README.md"}
        while next_pages:
            met |= next_pages
            next_pages = {link for page in next_pages for link in links(page) if link.suffix == ".md"} - met
        pages = {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")}
        self.assertEqual(pages - met, set())


PROGRAM = re.compile(r"(scripts/|bench/|contrib/|tests/|build/tests/|build/bench/)[\w./-]+$|sluice$|sluice-bench$|sluice-demo$")


def text_of(*paths):
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def head_comment(script):
    """What `--help` of a script prints, by scripts/help.sh."""
    lines = script.read_text(encoding="utf-8").splitlines()[2:]
    return "\n".join(itertools.takewhile(lambda line: line.startswith("#"), lines))


def offers(program, words):
    """Where the options of a program's command line stand, or a complaint (with "!") when there is no such program or command."""
    name = program.rsplit("/", 1)[-1]
    if name == "sluice":
        common = [ROOT / "src/cli/command.cc", ROOT / "src/cli/main.cc"]
        if not words or words[0].startswith("-") or words[0] == "COMMAND":
            return text_of(*common)
        added = re.compile(rf'add_subcommand\(\s*"{words[0]}"')
        owners = [path for path in (ROOT / "src/cli").rglob("*.cc") if added.search(path.read_text(encoding="utf-8"))]
        return text_of(*common, *owners) if owners else f"!no subcommand {words[0]}"
    if name == "sluice-bench":
        scenarios = re.findall(r'^ +\{"([\w-]+)", ', text_of(ROOT / "bench/scenario/scenarios.cc"), re.M)
        if words and not words[0].startswith("-") and words[0] not in (*scenarios, "goals", "SCENARIO"):
            return f"!no scenario {words[0]}"
        return text_of(*(ROOT / "bench/command").glob("*.cc"))
    if name == "sluice-demo" or program == "scripts/demo":
        return text_of(ROOT / "tests/demo/demo_usage.inc") + head_comment(ROOT / "scripts/demo")
    if program.startswith("build/"):
        folder = ROOT / program.removeprefix("build/").rsplit("/", 1)[0]
        makers = [path for path in (folder / "meson.build", folder.parent / "meson.build") if path.exists()]
        if not re.search(rf"['/]{re.escape(name)}'", text_of(*makers)):
            return f"!no program {program}"
        return text_of(*folder.rglob("*.cc"), *folder.rglob("*.py"), *folder.glob("*.in")) + "--gtest_filter"
    path = ROOT / program
    if not path.exists():
        return f"!no file {program}"
    return head_comment(path) if program.startswith("scripts/") else text_of(path) if path.is_file() else ""


def complaint(line):
    """What is wrong with the commands of ours in one shell line; None: nothing."""
    for command in re.split(r"&&|\|\||[|;&()]", re.sub(r"\s#\s.*|\s{4,}\S.*", "", line.replace("$(", "("))):
        words = [word.strip("'\"") for word in command.split()]
        while words and re.match(r"\w+=|sudo$", words[0]):
            words.pop(0)
        if not words or not PROGRAM.match(words[0]):
            continue
        offered = offers(words[0], words[1:])
        if offered.startswith("!"):
            return offered[1:]
        own = words[1:words.index("--")] if "--" in words else words[1:]
        for option in (word.split("=")[0] for word in own if re.match(r"--\w", word)):
            if option != "--help" and not re.search(rf"(?<![\w-]){option}(?![\w-])", offered):
                return f"no option {option} of {words[0]}"
    return None


def commands(page):
    """The shell lines of a page's fenced blocks, only the prompted ones where a block has prompts, and of its inline code."""
    text = page.read_text(encoding="utf-8")
    fence = re.compile(r"^ *```[^\n]*\n(.*?)^ *```", re.M | re.S)
    for block in fence.findall(text):
        lines = block.replace("\\\n", " ").splitlines()
        prompted = [line.strip()[2:] for line in lines if re.match(r"\s*[$#] ", line)]
        yield from (prompted if any(line.strip().startswith("$ ") for line in lines) else [*lines, *prompted])
    for code in re.findall(r"`([^`\n]+)`", fence.sub("", text)):
        if "…" not in code and re.match(r"(SLUICE_\w+=\S+ )?(sudo )?(scripts/|build/|bench/|tests/|sluice |sluice-bench |sluice-demo )\S*", code):
            yield code


class Commands(unittest.TestCase):
    """Each script, program, subcommand and option of ours that a page tells people to type is there. Nothing is run."""

    # CHANGELOG.md also names what earlier versions had.
    PAGES = [page for page in Links.PAGES if page.name != "CHANGELOG.md"]

    def test_of_every_page_exist(self):
        seen = 0
        for page in self.PAGES:
            for line in commands(page):
                with self.subTest(page=str(page.relative_to(ROOT)), line=line):
                    seen += 1
                    self.assertIsNone(complaint(line))
        self.assertGreater(seen, 150)

    def test_of_the_manuals_exist(self):
        synopses = [line for line in (ROOT / "man/sluice.1").read_text(encoding="utf-8").splitlines() if line.startswith(r"\fBsluice ")]
        self.assertGreater(len(synopses), 6)
        for line in synopses:
            with self.subTest(line=line):
                words = re.sub(r"\\f[BIR]|[\[\]]", "", line).replace(r"\-", "-").replace("|", " ")
                self.assertIsNone(complaint(words))

    def test_variables_of_every_page_exist(self):
        code = [path for folder in ("src", "bench", "scripts", "tests") for path in (ROOT / folder).rglob("*")
                if path.suffix in (".cc", ".h", ".c", ".py", ".sh", ".build", "") and path.is_file() and "corpus" not in path.parts
                and path != pathlib.Path(__file__).resolve()]
        known = set(re.findall(r"\b(?:SLUICE|VAMDGPU)_[A-Z_]+", text_of(*code)))
        for page in self.PAGES:
            for name in set(re.findall(r"\b(?:SLUICE|VAMDGPU)_[A-Z]\w*", page.read_text(encoding="utf-8"))):
                with self.subTest(page=str(page.relative_to(ROOT)), name=name):
                    self.assertIn(name, known)

    def test_wrong_ones_are_found(self):
        for line, found in {
            "sluice verify --fast images": "no option --fast of sluice",
            "sluice verify --sysfs /tmp images": "no option --sysfs of sluice",  # map's
            "sluice mend images": "no subcommand mend",
            "scripts/vm trixie --filte 'Tree.*'": "no option --filte of scripts/vm",
            "scripts/tests": "no file scripts/tests",
            "build/bench/sluice-bench goal --dir DIR": "no scenario goal",
            "build/tests/plugin/no_test --gtest_filter='*'": "no program build/tests/plugin/no_test",
            "ls && scripts/demo --runs 5 --vrams 1G": "no option --vrams of scripts/demo",
            "job=$(sluice show --bo images)": "no option --bo of sluice",
        }.items():
            with self.subTest(line=line):
                self.assertEqual(complaint(line), found)


class Messages(unittest.TestCase):
    """Every warning and refusal ends with an id, which docs/reference/messages.md explains."""

    ID = re.compile(r"\[SL-([DRIGCSHT]\d{2,3})\]")
    WITHOUT = {"out of memory"}  # gets that of its remedy


    @classmethod
    def setUpClass(cls):
        cls.said = [(path, text, literals) for path in sorted((ROOT / "src").rglob("*.[ch]*"))
                    for text, literals in statements(path) if literals]
        cls.ids = [found for _, _, literals in cls.said for literal in literals for found in cls.ID.findall(literal)]
        page = (ROOT / "docs" / "reference" / "messages.md").read_text(encoding="utf-8")
        cls.rows = re.findall(r"^\| SL-(\w+) \| (.+) \| (.+) \| (.+) \|$", page, re.M)

    def test_page_explains_each_id_and_no_other(self):
        self.assertGreater(len(self.ids), 250)
        self.assertEqual({row[0] for row in self.rows}, set(self.ids))
        self.assertEqual(len(self.rows), len(set(self.ids)), "two rows of one id")

    def test_an_id_belongs_to_one_place(self):
        self.assertEqual({each for each in self.ids if self.ids.count(each) > 1}, set())

    def test_pages_refer_to_ids_that_exist(self):
        for page in Links.PAGES:
            for found in re.findall(r"\bSL-([DRIGCSHT]\d{2,3})\b", page.read_text(encoding="utf-8")):
                self.assertIn(found, self.ids, page)

    def examine(self, kind, least):
        """Statements of a kind that have words of their own; `least` of them, so that none is passed over unseen."""
        examined = 0
        for path, text, literals in self.said:
            if not re.search(kind, text) or not any(len(literal.split()) >= 3 for literal in literals):
                continue
            examined += 1
            with self.subTest(path=path.name, literals=literals):
                self.assertTrue(any(self.ID.search(literal) for literal in literals) or self.WITHOUT & set(literals))
        self.assertGreaterEqual(examined, least)

    def test_every_warning_has_an_id(self):
        self.examine(r"Level::(Warning|Error)|warn\(", 30)

    def test_every_refusal_has_an_id(self):
        self.examine(r"Error\{", 140)

    def test_every_answer_of_the_command_has_an_id(self):
        self.examine(r"NoImages\{|refused\(", 13)

    def test_every_remedy_has_an_id(self):
        for path, _, literals in self.said:
            for literal in literals:
                if literal.startswith("; ") and len(literal.split()) >= 3 and "plugin" in path.parts:
                    with self.subTest(path=path.name, literal=literal):
                        self.assertRegex(literal, self.ID)


class Obstacles(unittest.TestCase):
    """What `sluice check --pid` finds has its row in docs/reference/cli.md, and nothing else has."""

    def test_every_code_has_its_row(self):
        text = (ROOT / "src" / "cli" / "check" / "obstacles" / "obstacles.h").read_text(encoding="utf-8")
        said = {}
        for kind in re.findall(r"ObstacleKind k\w+\{(.*?)\};", text, re.S):
            literals = re.findall(r'"((?:\\.|[^"\\])*)"', kind)
            weight = re.search(r"Weight::(\w+)", kind)[1].lower()
            said[literals[0]] = literals[-1] if weight == "option" else weight
        page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| `([^`]+)` \| .* \| `?(problem|warning|--[\w-]+)[^|]* \| .*\|$", page, re.M)
        self.assertGreater(len(said), 40)
        self.assertEqual(dict(rows), said)
        self.assertEqual(len(rows), len(said), "two rows of one code")


if __name__ == "__main__":
    unittest.main()
