#!/usr/bin/env python3
"""Tests tools/check_initializers.py with statements that leak under g++ 12, and with statements that do not.

    check_initializers_test.py SOURCE_FOLDER
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
CHECK = ROOT / "tools" / "check_initializers.py"
sys.path.insert(0, str(CHECK.parent))
from check_initializers import breaches  # noqa: E402

LEAKS = [
    "return Pair{a, MR_TRY(f())};",
    "return Pair{.first = a, .second = MR_TRY(f())};",
    "Pair pair{MR_TRY(f()), MR_TRY(g())};",
    "Pair pair = {a, b + MR_TRY(f())};",
    "pair = {a, MR_TRY(f())};",
    "pairs.push_back({a, MR_TRY(f())});",
    "std::vector<Text> texts{a, MR_TRY(f())};",
    'Json json{{"a", x}, {MR_TRY(f()), y}};',
    'return Json{{"a", Json::array({MR_TRY(f()), b})}};',
    "return Pair{a, Convert(b, MR_TRY(f()))};",
    "return Pair{a, (MR_TRY(f()))};",
    "Nested nested{{a, b}, MR_TRY(f())};",
    "return Pair{a, MR_ARROW_TRY(what, f())};",
    "return Pair{std::map<int, Text>{a, MR_TRY(f())}};",
    "auto call = [a = f(), b = MR_TRY(g())] { return a; };",
    "return [&, a, b = MR_TRY(g())] { return b; };",
    "return [=] { return Pair{a, MR_TRY(f())}; };",
    "return Shared(new Reader(MR_TRY(f())));",
    "return Shared(new data::Reader<int, Text>{MR_TRY(f())});",
]
HARMLESS = [
    "return Pair{MR_TRY(f()), b};",
    "return Pair{.first = MR_TRY(f()), .second = b};",
    'Json json{{MR_TRY(f()), y}, {"b", x}};',
    "return Pair{Convert(a, MR_TRY(f())), b};",
    "return Pair{std::pair<int, int>(MR_TRY(f()), 1).first, b};",
    "const Id a = MR_TRY(f()), b = MR_TRY(g());",
    "Use(Pair{a, b}, MR_TRY(f()));",
    "return std::make_shared<Reader>(a, MR_TRY(f()));",
    "Text a, b; { Text c, d = MR_TRY(f()); } if (MR_TRY(g())) { a = b, b = MR_TRY(f()); }",
    "for (int i = 0, n = MR_TRY(f()); i < n; ++i) { MR_TRY(g()); }",
    "for (const auto& [name, value] : MR_TRY(f())) { MR_TRY(g(name, value)); }",
    "Options options{a, [&](int x, int y) -> Status { return MR_TRY(f(x, y)); }};",
    "Options options{.name = a, .call = [&] { MR_TRY(f()); return g(); }};",
    "auto call = [b = MR_TRY(g()), a] { return a; };",
    "return [&, b = MR_TRY(g())] { return b; };",
    "table[MR_TRY(f())] = rows[a, MR_TRY(g())];",
    "auto many = std::unique_ptr<int[]>(new int[MR_TRY(f())]);",
    "return Pair{a, b};  // not MR_TRY(f())",
    "return Pair{a, /* MR_TRY(f()) */ b};",
    'return Pair{a, "MR_TRY(f())"};',
    'return Pair{a, R"x({"MR_TRY(f())")x"};',
    "char brace = '{', comma = ','; MR_TRY(f());",
    "Pair pair{1'000, 2'000}; MR_TRY(f());",
]


def in_function(statement: str) -> str:
    return f"Result<Pair> F() {{\n  {statement}\n}}\n"


class CheckInitializers(unittest.TestCase):
    def test_finds_what_leaks(self):
        for statement in LEAKS:
            with self.subTest(statement):
                self.assertEqual([line for line, _ in breaches(in_function(statement))], [2])

    def test_allows_what_does_not(self):
        for statement in HARMLESS:
            with self.subTest(statement):
                self.assertEqual(breaches(in_function(statement)), [])

    def test_allows_functions_of_classes_and_macros(self):
        self.assertEqual(breaches("enum class E : int { kA, kB };\nstruct S : B<int, E> {\n  int a = 0, b = 1;\n"
                                  "  S(int x) : a{x}, b{x} {}\n  Result<E> F() const { return MR_TRY(G(a, b)); }\n};\n"
                                  "#define MR_TRY(...) ({ auto r = (__VA_ARGS__); *std::move(r); })\n"), [])

    def test_names_file_and_line_and_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "millrace" / "a.cc"
            file.parent.mkdir()
            # The folder may lie in a work tree of git, which would list its own files.
            environment = os.environ | {"GIT_CEILING_DIRECTORIES": os.path.dirname(os.path.realpath(folder))}
            run = lambda: subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True, env=environment)
            file.write_text(in_function(HARMLESS[0]))
            self.assertEqual(run().returncode, 0)
            file.write_text(in_function(LEAKS[0]))
            found = run()
            self.assertEqual(found.returncode, 1)
            self.assertIn("millrace/a.cc:2: ", found.stdout)


if __name__ == "__main__":
    unittest.main()
