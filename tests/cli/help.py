#!/usr/bin/env python3
"""The help of every command fits a terminal, says everything in words of users, and has an example.

Exit status: 0 all right, anything else a failure.
"""
import argparse
import importlib.util
import os
import pathlib
import re
import subprocess

NOT_FOUND = 4  # an exit status of millrace: a program that was not built
# Words of the library that parses command lines.
RAW = re.compile(r"\b(UINT|INT|FLOAT|TEXT|BOOLEAN|POSITIVE|NONNEGATIVE|REQUIRED)\b|Excludes:|Needs:|\{(true|false)\}|\(\d+x\)")


class Help:
    """Asks `millrace` and its commands for their help."""

    def __init__(self, millrace):
        self.millrace = millrace

    def of(self, words, columns=80):
        """The lines of a command's help, or None if its program was not built."""
        environment = {**os.environ, "COLUMNS": str(columns)}
        ran = subprocess.run([self.millrace, *words, "--help"], capture_output=True, text=True, env=environment)
        if ran.returncode == NOT_FOUND:
            return None
        assert ran.returncode == 0, (words, ran.stderr)
        return ran.stdout.splitlines()


def check(words, lines, columns):
    name = " ".join(["millrace", *words])
    examples = lines.index("Examples:") if "Examples:" in lines else len(lines)
    for number, line in enumerate(lines):
        word = line.strip().removesuffix(" \\")  # a word of an example stays whole
        whole = number > examples and (" " not in word or word[0] in "'\"")
        assert len(line) <= columns or whole, f"{name}: longer than {columns} columns: {line}"
        assert not RAW.search(line), f"{name}: {line}"
        assert "(default " not in line, f"{name}: defaults are printed as (default: …): {line}"
    usage = next(line for line in lines if line.startswith("Usage: "))
    assert usage.startswith(f"Usage: {name}"), usage
    for before, after in zip(lines[:examples], lines[1:examples] + [""]):
        # A flag or an argument has its description beside it, or in the next line.
        if re.match(r"  (    --|-\w, --|[A-Z][A-Z.|-]*( |$))", before) and not re.search(r"\S {2,}\S", before):
            assert after.startswith("      "), f"{name}: no description: {before}"


def check_man_page(man_pages, words, lines):
    page = man_pages.page(" ".join(["millrace", *words]), "\n".join(lines), "millrace 0")
    assert ".SH SYNOPSIS" in page and ".SH NAME" in page, words
    return page


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    spec = importlib.util.spec_from_file_location("man_pages", arguments.source / "tools" / "man_pages.py")
    man_pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(man_pages)
    ask = Help(arguments.millrace)
    seen, without_example = [], []

    def walk(words):
        lines = ask.of(words)
        if lines is None:
            return
        seen.append(" ".join(words))
        check(words, lines, 80)
        check(words, ask.of(words, 50), 50)
        check_man_page(man_pages, words, lines)
        commands = man_pages.commands_of("\n".join(lines))
        if not commands and not any(line.startswith("Examples:") for line in lines):
            without_example.append(" ".join(words))
        for command in commands:
            walk([*words, command])

    walk([])
    for command in ("cp", "mount", "data inspect", "tokenizer train", "job submit", "ckpt export", "doctor", "help"):
        assert command in seen, f"{command} is in no list of commands: {seen}"
    assert not without_example, without_example
    top = "\n".join(ask.of([]))
    for heading in ("Commands for objects and buckets:", "Commands for mounts:", "Commands for data:", "Commands for training:"):
        assert heading in top, heading
    print(f"{len(seen)} commands")


if __name__ == "__main__":
    main()
