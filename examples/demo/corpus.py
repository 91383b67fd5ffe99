"""Makes JSONL records {"title", "text"} from texts of the distribution: WordNet's glosses, CMake's manual and Chinese
poems. `tools/setup demo` installs them; no network is needed after that.

    python3 corpus.py OUTPUT_FOLDER
"""
import json
import pathlib
import re
import subprocess
import sys

SHARE = pathlib.Path("/usr/share")


def wordnet(per_record: int = 10):
    """Synsets as `word, other word: gloss` lines, ten to a record: short records mix well. Format: wndb(5WN)."""
    for part in ("noun", "verb", "adj", "adv"):
        lines, first = [], ""
        for line in (SHARE / f"wordnet/data.{part}").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("  "):  # the licence
                continue
            fields, gloss = line.split(" | ", 1)
            fields = fields.split(" ")
            words = [fields[4 + 2 * i].replace("_", " ") for i in range(int(fields[3], 16))]
            first = first or words[0]
            lines.append(f"{', '.join(words)}: {gloss.strip()}")
            if len(lines) == per_record:
                yield f"{part}s from {first}", "\n".join(lines)
                lines, first = [], ""
        if lines:
            yield f"{part}s from {first}", "\n".join(lines)


def manual():
    """The sections of CMake's manual, which is reStructuredText: a row of the same sign follows each title."""
    text = subprocess.run(["cmake", "--help-full"], check=True, capture_output=True, text=True).stdout
    _, *sections = re.split(r"^(\S.*)\n(?:###+|\*\*\*+|===+|---+)\n", text, flags=re.M)
    for title, section in zip(sections[::2], sections[1::2]):
        for number, part in enumerate(parts_of(section.strip()), start=1):
            yield f"{title} ({number})", part


def parts_of(text: str, size: int = 1500):
    """The lines of a text in pieces of about `size` characters."""
    part = ""
    for line in text.splitlines(keepends=True):
        part += line
        if len(part) >= size:
            yield part.strip()
            part = ""
    if part.strip():
        yield part.strip()


def fortunes():
    """Poems and sayings, separated by lines with a single %; colours are terminal escapes."""
    for name in ("tang300", "song100", "chinese"):
        text = (SHARE / f"games/fortunes/{name}").read_text(encoding="utf-8", errors="replace")
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        for number, saying in enumerate(re.split(r"^%\n", text, flags=re.M)):
            if saying.strip():
                title = saying.strip().splitlines()[0][:40]
                yield f"{title} ({name} {number})", saying.strip()


def main(output: pathlib.Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    for name, records in (("wordnet", wordnet), ("manual", manual), ("chinese", fortunes)):
        path = output / f"{name}.jsonl"
        count = 0
        with path.open("w", encoding="utf-8") as file:
            for title, text in records():
                file.write(json.dumps({"title": title, "text": text}, ensure_ascii=False) + "\n")
                count += 1
        print(json.dumps({"file": path.name, "records": count, "bytes": path.stat().st_size}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main(pathlib.Path(sys.argv[1]))
    except FileNotFoundError as error:
        sys.exit(f"corpus: {error.filename} is missing: `tools/setup build demo` installs it")
