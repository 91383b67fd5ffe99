#!/usr/bin/env python3
"""Tests tools/check_documents.py with documents and comments that are wrong, and with some that are right.

    check_documents_test.py SOURCE_FOLDER
"""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tools"))
from check_documents import Tree, bad_comments, bad_documents, wrong_version  # noqa: E402

FILES = {
    "docs/guide/data.md": "# Data\n\n## Read `a` & b\n\n## Twice\n\n## Twice\n",
    "docs/adr/001-one.md": "# 1. One\n",
    "millrace/base/CMakeLists.txt": "",
    "millrace/base/README.md": "# base\n\nThe room `files`.\n",
    "millrace/base/result.h": "",
    "millrace/base/files/files.h": "",
    "millrace/base/files/files_test.cc": "",
    "millrace/base/testing/random.h": "",
    "tests/build/image.py": "",
}
RIGHT = {
    "millrace/base/README.md": [
        "Names `result.h`, `files/files.h`, `files_test.cc`, `base/result.h`, `tests/build/image.py`, base/result.h.",
        "Patterns: `*_test.cc`, `files/*.h`.",
        "Not of the tree: `model.tar.gz`, `s3://a/b.h`, `train.py`, `NAME.h`, `loss/train`, `a/b/c.json`, 1.5/h.",
        "A [guide](../../docs/guide/data.md), [a heading](../../docs/guide/data.md#read-a--b), "
        "[again](../../docs/guide/data.md#twice-1), [here](#rooms) and https://example.org/none.md.",
        "| room | what |\n|---|---|\n| `files` | files |",
        "```\n#include <none>\n# a comment\n[no](link.md)\n```",
        "    # an indented block\n",
    ],
    "docs/guide/other.md": ["Your file `src/none.h`, `millrace/none/` and `none.h`.", "See `tests/build/image.py`.",
                            "Python's `a[1](none)`."],
    "docs/adr/002-two.md": ["`docs/adr/001-one.md`"],
    "docs/architecture.md": ["| module | rooms |\n|---|---|\n| `base` | `files` (also `a.b`) |"],
}
WRONG = {
    "millrace/base/README.md": [
        ("`none.h`", "names none.h"),
        ("`files/none.h`", "names files/none.h"),
        ("`tests/none`", "names tests/none"),
        ("`none/`", "names none/"),
        ("`none/*.cc`", "names none/*.cc"),
        ("See none.cc for more.", "names none.cc"),
        ("```\nA ──▶ none/b.h\n```", "names none/b.h"),
        ("[a](none.md)", "link to none.md"),
        ("[a](../../docs/guide/data.md#none)", "link to ../../docs/guide/data.md#none"),
        ("[a](#none)", "link to #none"),
        ("#base / files", "no heading"),
        ("# Another title", "a second title"),
        ("| room | what |\n|---|---|\n| `none` | files |", "lists the room none"),
    ],
    "docs/guide/other.md": [("[a](none.md)", "link to none.md"), ("`millrace/none.h`", "names millrace/none.h")],
    "docs/adr/002-two.md": [("`millrace/none.h`", "names millrace/none.h")],
    "docs/architecture.md": [
        ("| module | rooms |\n|---|---|\n| `base` | `files`, `none` |", "lists the room none of base"),
    ],
}


class CheckDocuments(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def documents(self, name, text, title="# Title"):
        """The breaches of a document with a title, a heading that names the room, and a text."""
        self.write(name, f"{title}\n\n## Rooms\n\nThe room `files`.\n\n{text}\n")
        breaches = list(bad_documents(Tree(self.root)))
        (self.root / name).unlink()
        for file, content in FILES.items():
            self.write(file, content)
        return breaches

    def test_allows_what_is_right(self):
        for name, texts in RIGHT.items():
            for text in texts:
                with self.subTest(text):
                    self.assertEqual(self.documents(name, text), [])

    def test_finds_what_is_wrong(self):
        for name, texts in WRONG.items():
            for text, message in texts:
                with self.subTest(text):
                    breaches = self.documents(name, text)
                    self.assertEqual(len(breaches), 1, breaches)
                    self.assertRegex(breaches[0], rf"^{name}:\d+: ")
                    self.assertIn(message, breaches[0])

    def test_wants_a_title(self):
        self.assertIn("does not begin with a heading", self.documents("docs/a.md", "", "Title")[0])

    def test_wants_the_rooms_named(self):
        self.write("millrace/base/README.md", "# base\n")
        self.assertEqual(list(bad_documents(Tree(self.root))),
                         ["millrace/base/README.md:1: does not name the room files"])

    def test_wants_a_readme_of_each_module(self):
        (self.root / "millrace/base/README.md").unlink()
        self.assertEqual(list(bad_documents(Tree(self.root))), ["millrace/base: a module without a README.md"])

    def test_the_changelog_begins_with_the_version(self):
        self.write("CMakeLists.txt", "project(millrace VERSION 1.2.0 LANGUAGES CXX)\n")
        for first, breaches in (("1.2.0", 0), ("Unreleased", 0), ("1.1.0", 1)):
            with self.subTest(first):
                self.assertEqual(len(list(wrong_version(self.root, f"# Changelog\n\n## {first}\n\n## 1.0.0\n"))), breaches)

    def test_comments(self):
        for name, comment, breach in [
                ("millrace/a.cc", "int a;  // see files/files.h", None),
                ("millrace/a.cc", "// see https://example.org/none/a.h", None),
                ("millrace/a.cc", "// see torch/none.py", None),
                ("millrace/base/a.cc", "// see README.md and base/README.md", None),
                ("millrace/base/files/a.cc", "// see ../README.md", None),
                ("millrace/base/files/a.cc", "// see README.md", "README.md"),
                ("millrace/a.cc", '#include "files/none.h"', None),
                ("millrace/a.cc", "// see files/none.h", "files/none.h"),
                ("millrace/a.h", "/// docs/guide/none.md has it.", "docs/guide/none.md"),
                ("tests/a.py", "# as in tests/build/none.py", "tests/build/none.py"),
                ("cmake/a.cmake", "# as in tests/build/none.py", "tests/build/none.py")]:
            with self.subTest(comment):
                self.write(name, comment + "\n")
                expected = [f"{name}:1: names {breach}, which does not exist"] if breach else []
                self.assertEqual(list(bad_comments(Tree(self.root))), expected)
                (self.root / name).unlink()


if __name__ == "__main__":
    unittest.main()
