"""Prints the paragraphs of Markdown files as JSON lines {"title", "text"}: a small corpus of real text, without a download.

    python3 texts.py FOLDER >texts.jsonl
"""
import json
import pathlib
import sys

LEAST = 40  # characters: shorter paragraphs are headings and rules


def main(folder: pathlib.Path) -> None:
    for path in sorted(folder.rglob("*.md")):
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            if len(paragraph.strip()) >= LEAST:
                print(json.dumps({"title": path.stem, "text": paragraph.strip()}, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
