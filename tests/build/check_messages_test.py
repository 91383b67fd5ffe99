#!/usr/bin/env python3
"""Tests tools/check_messages.py with messages that breach its rules, and with messages that keep them.

    check_messages_test.py SOURCE_FOLDER
"""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1]).resolve()
CHECK = ROOT / "tools" / "check_messages.py"
sys.path.insert(0, str(ROOT / "tools"))
from check_messages import breaches  # noqa: E402

BREACHES = (
    ('Fail(Code::kCorrupt, "it has no header");', "pronoun"),
    ('Fail(Code::kCorrupt, "' + "word " * 33 + '");', "longer"),
    ('Fail(Code::kCorrupt, "a\\nb\\nc");', "longer"),
    ('Fail(Code::kInvalidArgument, "{} is wrong", name);', "no cure"),
    ('Error(Code::kNotFound, fmt::format("there is no "\n      "{}", name));', "no cure"),
)
KEPT = (
    'Fail(Code::kInvalidArgument, "{} is wrong; choose another", name);',
    'Fail(Code::kInvalidArgument, "{} is wrong: expected a number", name);',
    'Fail(Code::kInvalidArgument, "{} should be a number, found {}", key, kind);',
    '/// `return Fail(Code::kNotFound, "no object {}", key);`',
    'Fail(Code::kNotFound, "there is no {}; `millrace ls` lists the names", name);',
    'Fail(Code::kNotFound, "{}", text);',  # made elsewhere
    'Fail(Code::kIo, "the disk is broken");',  # nothing that the user changes in a command
    'Fail(Code::kCorrupt, "' + "word " * 30 + "\\n" + "word " * 30 + '");',
    'Fail(Code::kCorrupt, "{}' + "{:>20}" * 40 + '");',  # placeholders do not count
)


def main():
    for source, expected in BREACHES:
        found = list(breaches(source, needs_cure=True))
        assert len(found) == 1 and found[0][0] == 1 and expected in found[0][1], (source, found)
    for source in KEPT:
        assert not list(breaches(source, needs_cure=True)), source
    assert not list(breaches(BREACHES[3][0], needs_cure=False)), "other modules need no cure"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "apps" / "a.cc"
        file.parent.mkdir()
        file.write_text("\n" + BREACHES[3][0])
        for command in (["git", "init", "-q"], ["git", "add", "."]):
            subprocess.run(command, cwd=folder, check=True)
        ran = subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)
        assert ran.returncode == 1 and "apps/a.cc:2: the message names no cure" in ran.stdout, ran.stdout


if __name__ == "__main__":
    main()
