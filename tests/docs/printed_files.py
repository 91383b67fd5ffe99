"""Writes the files that a document prints: blocks of code below a line that has only the file's path and a colon.

    python3 tests/docs/printed_files.py DOCUMENT FOLDER

A file that is there already with the same content is left alone, so that it is not compiled again.
"""
import pathlib
import re
import sys

PRINTED = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main(document: pathlib.Path, folder: pathlib.Path) -> None:
    for path, text in PRINTED.findall(document.read_text()):
        file = folder / path
        if file.exists() and file.read_text() == text:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
