#!/usr/bin/env python3
"""Writes a man page for `millrace` and for each of its commands, from what they print with --help.

    man_pages.py PROGRAM FOLDER
"""
import os
import pathlib
import re
import subprocess
import sys

NOT_FOUND = 4  # an exit status of millrace


# man indents the text of a section by 7 columns, and terminals have 80.
COLUMNS = "72"


def output(*command):
    environment = {**os.environ, "COLUMNS": COLUMNS}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def escape(text):
    """Text as roff reads it literally."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def commands_of(text):
    """The names below the headings "Commands:" and "Commands for …:" of a help text."""
    names, inside = [], False
    for line in text.splitlines():
        if re.match(r"Commands( for [\w ]+)?:$", line):
            inside = True
        elif inside and (found := re.match(r"  ([a-z][\w-]*)(\s|$)", line)):
            names.append(found[1])
        elif line and not line.startswith(" "):
            inside = False
    return names


def page(name, text, version):
    """One page: the first line is the description; headings of the help become sections, all else is kept as printed."""
    lines = text.splitlines()
    summary = next(line.strip() for line in lines if line.strip())
    out = [f'.TH {name.replace(" ", "-").upper()} 1 "" "{version}" "Millrace"', ".SH NAME",
           f"{escape(name.replace(' ', '-'))} \\- {escape(summary.rstrip('.'))}"]
    section, body = "DESCRIPTION", []

    def flush():
        if any(line.strip() for line in body):
            out.extend([f".SH {section}", ".nf", escape("\n".join(body).strip("\n")), ".fi"])

    for line in lines[lines.index(next(line for line in lines if line.strip())) + 1:]:
        heading = re.match(r"([A-Z][\w ]*):\s*(.*)$", line)
        if heading and not line.startswith(" "):
            flush()
            section, body = heading[1].upper().replace("USAGE", "SYNOPSIS"), [heading[2]] if heading[2] else []
        else:
            body.append(line)
    flush()
    others = "" if name == "millrace" else ".SH SEE ALSO\n.BR millrace (1)\n"
    return "\n".join(out) + "\n" + others


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    version = output(program, "--version").splitlines()[0]

    def write(words):
        try:
            text = output(program, *words, "--help")
        except subprocess.CalledProcessError as error:
            if words and error.returncode == NOT_FOUND:  # train and serve are programs of their own, which may be left out
                return
            raise
        name = " ".join(["millrace", *words])
        (folder / f"{name.replace(' ', '-')}.1").write_text(page(name, text, version))
        for command in commands_of(text):
            write([*words, command])

    write([])


if __name__ == "__main__":
    main()
