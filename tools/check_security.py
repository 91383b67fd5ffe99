"""Checks that every promise in SECURITY.md names tests, and that these tests exist. Prints what is wrong; exit status 1
if something is.

    python3 tools/check_security.py SOURCE_FOLDER
"""
import pathlib
import re
import sys


def known_tests(root):
    for folder in ("apps", "millrace", "python", "tests"):
        for file in (root / folder).rglob("*_test.cc"):
            for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", file.read_text(), re.MULTILINE):
                yield f"{suite}.{name}"
        for file in (root / folder).rglob("test_*.py"):
            for name in re.findall(r"^ *def (test_\w+)\(", file.read_text(), re.MULTILINE):
                yield f"{file.name}::{name}"


def breaches(root):
    known = set(known_tests(root))
    for number, line in enumerate((root / "SECURITY.md").read_text().splitlines(), 1):
        if not line.startswith("|") or line.startswith(("|---", "| promise |")):
            continue
        tests = re.findall(r"`([^`]+)`", line.split("|")[2])
        if not tests:
            yield f"line {number} names no test"
        for test in tests:
            if test not in known:
                yield f"line {number}: there is no test {test}"


def main():
    found = list(breaches(pathlib.Path(sys.argv[1])))
    for breach in found:
        print(f"SECURITY.md: {breach}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
