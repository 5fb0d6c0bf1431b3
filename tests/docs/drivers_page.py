#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The list of scenarios on our module, in docs/internals/vm-drivers.md, held against the program that decides it.

    drivers_page.py VM_SCENARIOS
"""
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = sys.argv.pop(1)


class Drivers(unittest.TestCase):
    def test_the_page_has_the_programs_list(self):
        # The program fails where its own list names a scenario that does not exist.
        listed = subprocess.run([PROGRAM, "--list-drivers"], check=True, text=True, stdout=subprocess.PIPE).stdout
        self.assertIn("| scenarios |", listed)
        self.assertIn(listed, (ROOT / "docs" / "internals" / "vm-drivers.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
