#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What is written about sluice, held against what it is: versions, links, and the lines that docs/troubleshooting.md explains.

    docs_test.py VERSION

VERSION is meson.build's, which is where it is said; all else must agree.
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEAKERS = ("base", "proc", "pipeline", "kfd", "drm", "images", "verify", "settings", "plugin")  # in criu's log, or of an image
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


def sources(*folders):
    return [path for folder in folders for path in sorted((ROOT / "src" / folder).rglob("*.cc"))]


class Version(unittest.TestCase):
    """meson.build says it; the changelogs repeat it."""

    def test_changelog_begins_with_it(self):
        text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        self.assertEqual(re.search(r"^## (\S+)", text, re.M)[1], VERSION)

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


class Troubleshooting(unittest.TestCase):
    """The page quotes lines of the log, `…` for what varies."""

    def setUp(self):
        page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
        self.quotes = re.findall(r"^\| `([^`]+)` \|", page, re.M)
        self.parts = [part.strip() for quote in self.quotes for part in quote.split("…") if part.strip()]

    def test_every_quoted_line_is_said(self):
        said = [literal for path in sources(*SPEAKERS) for _, literals in statements(path) for literal in literals]
        self.assertGreater(len(self.quotes), 30)
        for quote in self.quotes:
            with self.subTest(quote=quote):
                parts = [part.strip() for part in quote.split("…")]
                self.assertGreater(max(map(len, parts)), 10, "too little to tell it from others")
                for part in parts:
                    self.assertTrue(any(part in literal for literal in said), part)

    def explained(self, literals):
        for literal in literals:
            if len(literal.split()) >= 3:
                with self.subTest(literal=literal):
                    words = literal.strip()
                    self.assertTrue(any(words in part or (len(part) > 10 and part in words) for part in self.parts))

    def test_every_warning_is_explained(self):
        for path in sources(*SPEAKERS):
            for text, literals in statements(path):
                if re.search(r"Level::(Warning|Error)", text):
                    self.explained(literals)

    def test_every_refusal_of_the_plugin_is_explained(self):
        for path in sources("settings", "plugin"):
            for text, literals in statements(path):
                if re.search(r"returnError\{|Result<.*>\(Error\{", text):
                    self.explained(literals)

    def test_every_remedy_is_explained(self):
        for _, literals in statements(ROOT / "src" / "plugin" / "hooks.cc"):
            self.explained(literal for literal in literals if literal.startswith("; "))


class Obstacles(unittest.TestCase):
    """What `sluice check --pid` finds has its row in docs/cli.md, and nothing else has."""

    def test_every_code_has_its_row(self):
        text = (ROOT / "src" / "cli" / "check" / "obstacles.h").read_text(encoding="utf-8")
        said = {}
        for kind in re.findall(r"ObstacleKind k\w+\{(.*?)\};", text, re.S):
            literals = re.findall(r'"((?:\\.|[^"\\])*)"', kind)
            weight = re.search(r"Weight::(\w+)", kind)[1].lower()
            said[literals[0]] = literals[-1] if weight == "option" else weight
        page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| `([^`]+)` \| .* \| `?(problem|warning|--[\w-]+)[^|]* \| .*\|$", page, re.M)
        self.assertGreater(len(said), 40)
        self.assertEqual(dict(rows), said)
        self.assertEqual(len(rows), len(said), "two rows of one code")


if __name__ == "__main__":
    unittest.main()
