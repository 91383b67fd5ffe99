#!/usr/bin/env python3
"""Tests what docs/site/hooks.py makes of lists: Markdown as GitHub reads it becomes Markdown as Python-Markdown reads it.
Tests that pages need no other server.

    site_test.py SOURCE_FOLDER
"""
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "docs/site"))
from hooks import on_page_markdown  # noqa: E402

SAME = [
    "A paragraph.\n\n    an indented block\n\nAnother one.",
    "```yaml\n- a:\n  - b\n```\n\n- one",
    "| a | b |\n|---|---|\n| - 1 | 2 |",
]
CHANGED = [
    ("- one\n- two\n  on two lines\n\nAfter the list.", "- one\n- two\n    on two lines\n\nAfter the list."),
    ("- one\n  - inner\n  - next\n- two", "- one\n    - inner\n    - next\n- two"),
    ("1. one\n   - inner\n2. two", "1. one\n    - inner\n2. two"),
    ("- one\n\n  A paragraph of one.\n\n- two", "- one\n\n    A paragraph of one.\n\n- two"),
    ("- one\n\n  ```sh\n  ls\n    -l\n  ```\n- two", "- one\n\n    ```sh\n    ls\n      -l\n    ```\n- two"),
    ("- a\n  - b\n    - c\n- d", "- a\n    - b\n        - c\n- d"),
    ("A paragraph:\n- one\n- two", "A paragraph:\n\n- one\n- two"),
    ("- one\n  - inner\n\nAfter.\n\n    a block", "- one\n    - inner\n\nAfter.\n\n    a block"),
]


class Lists(unittest.TestCase):
    def test_what_both_read_alike_stays(self):
        for text in SAME:
            with self.subTest(text):
                self.assertEqual(on_page_markdown(text), text)

    def test_what_belongs_to_an_item_is_indented_by_four(self):
        for text, wanted in CHANGED:
            with self.subTest(text):
                self.assertEqual(on_page_markdown(text), wanted)


class Pictures(unittest.TestCase):
    def test_none_is_drawn_by_a_program_of_another_server(self):
        listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in listed.stdout.splitlines():
            with self.subTest(name):
                self.assertNotIn("```mermaid", (ROOT / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
