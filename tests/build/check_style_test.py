#!/usr/bin/env python3
"""Tests tools/check_style.py with texts that breach its rules, and with texts that keep them.

    check_style_test.py SOURCE_FOLDER
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
CHECK = ROOT / "tools" / "check_style.py"
sys.path.insert(0, str(CHECK.parent))
from check_style import breaches  # noqa: E402

NO_HEADLINES = [
    "// What functions begin with that also run on GPUs.\n#pragma once\n",
    "// When another way to make a product is taken.\n",
    "// How bytes travel.\n",
    "// Whether a mount works.\n",
    "// Whose the checkpoints are.\n",
    "// Those that are left.\n",
    "// From a job file to its options.\n",
    "#pragma once\n// A queue of files.\n",
]
HEADLINES = [
    "// A write-ahead log of this process's multipart uploads.\n",
    "// Reads the file of a journal.\n",
    "// LAMB (You et al. 2019).\n",
    "// `millrace-train machine`: how fast this machine computes.\n",
    "// object::Store over folders.\n",
]


def of_header(source):
    """The (rule, line) pairs of a header's breaches."""
    return [(rule, line) for rule, (line, _) in breaches("millrace/base/header.h", source)]


def of_rule(rule, source):
    return [line for found, line in of_header("// A header.\n" + source) if found == rule]


class Headlines(unittest.TestCase):
    def test_begin_with_a_noun_or_a_verb(self):
        for source in NO_HEADLINES:
            self.assertEqual(of_header(source), [("headline", 1)], source)
        for source in HEADLINES:
            self.assertEqual(of_header(source), [], source)

    def test_are_wanted_of_headers_of_modules_alone(self):
        self.assertEqual(list(breaches("millrace/base/reader.cc", NO_HEADLINES[0])), [])
        self.assertEqual(list(breaches("tests/support/peers.h", NO_HEADLINES[0])), [])


class Summaries(unittest.TestCase):
    def test_of_types_begin_with_a_noun_or_a_verb(self):
        for source, lines in (("/// What a rank has.\nstruct Share {};\n", [2]),
                              ("/// While it lives, counts.\nclass Meter {};\n", [2]),
                              ("struct A {\n  /// How it ends:\n  /// in time.\n  enum class End { kDone };\n};\n", [3]),
                              ("/// At most ten calls.\nclass Window {};\n", []),
                              ("/// The share of a rank.\n/// What it lacks is absent.\nstruct Share {};\n", []),
                              ("/// `x` is\n/// what counts.\nstruct Share {};\n", [])):
            self.assertEqual(of_rule("summary", source), lines, source)

    def test_of_functions_begin_with_a_verb(self):
        for source, lines in (("/// Whether it ends.\nbool Ends();\n", [2]), ("/// Returns whether it ends.\nbool Ends();\n", []),
                              ("/// If it ends, returns true.\nbool Ends();\n", []), ("/// What counts.\nint count = 0;\n", []),
                              ("int count = 0;  ///< what counts\nint Sum();\n", [])):
            self.assertEqual(of_rule("summary", source), lines, source)


class Phrases(unittest.TestCase):
    def test_are_found_in_comments(self):
        source = 'int a;  ///< the first so many bytes\nint b;  // likewise\nint c = F("so many");\nint likewise = 1;\n'
        self.assertEqual(of_rule("phrase", source), [2, 3])

    def test_are_found_across_lines(self):
        self.assertEqual(of_rule("phrase", "/// Reads so\n/// many bytes.\n"), [2])
        self.assertEqual(of_rule("phrase", "/// So. Many bytes.\n"), [])

    def test_are_no_words_within_words(self):
        self.assertEqual(of_rule("phrase", "// Also many bytes.\n"), [])

    def test_are_found_in_documents_but_not_in_their_code(self):
        document = "Text.\n\n    so many\n\n`so many`\n\n```\nso many\n```\n\nIt takes so many bytes.\n"
        self.assertEqual([line for _, (line, _) in breaches("docs/a.md", document)], [11])

    def test_are_found_in_python(self):
        source = '"""Reads\nso many bytes."""\ntext = "so many"\nn = 1  # likewise\n'
        self.assertEqual([line for _, (line, _) in breaches("tools/a.py", source)], [2, 4])


class Names(unittest.TestCase):
    def test_of_types_are_qualified(self):
        self.assertEqual(of_rule("type", "namespace millrace {\nenum class Kind : int { kA };\n}\n"), [3])
        self.assertEqual(of_rule("type", "namespace millrace {\nstruct [[nodiscard]] Entry final : Base {\n};\n}\n"), [3])
        self.assertEqual(of_rule("type", "namespace millrace {\nstruct Part;\nclass NodeKind {};\n}\n"), [])
        self.assertEqual(of_rule("type", "class Table {\n  struct Entry {};\n};\n"), [])

    def test_of_public_functions_are_no_verbs_of_speech(self):
        source = "class Log {\n public:\n  void Tell(int x) const;\n  int Say() { return Hear(); }\n private:\n  void Note();\n};\n"
        self.assertEqual(of_rule("speech", source), [4, 5])

    def test_of_public_functions_name_their_object(self):
        source = "struct Page {\n  Lines Take();\n  void Take(Line line);\n  Lines TakeLines();\n  int sum = Take();\n};\n"
        self.assertEqual(of_rule("object", source), [3])

    def test_of_overriders_are_those_of_their_base(self):
        self.assertEqual(of_rule("object", "struct File : Sink {\n  int Take() override;\n};\n"), [])


class Programs(unittest.TestCase):
    def test_fail_on_a_breach_of_an_enforced_rule(self):
        with tempfile.TemporaryDirectory() as folder:
            module = pathlib.Path(folder) / "millrace" / "base"
            module.mkdir(parents=True)
            # The folder may lie in a work tree of git, which would list its own files.
            environment = os.environ | {"GIT_CEILING_DIRECTORIES": os.path.dirname(os.path.realpath(folder))}
            for headline, status in (("What it is.", 1), ("A file.", 0)):
                (module / "file.h").write_text(f"// {headline}\n")
                run = subprocess.run([sys.executable, str(CHECK), folder], capture_output=True, text=True,
                                     env=environment)
                self.assertEqual(run.returncode, status, run.stdout + run.stderr)
                self.assertEqual("millrace/base/file.h:1: headline:" in run.stdout, status == 1)


if __name__ == "__main__":
    unittest.main()
