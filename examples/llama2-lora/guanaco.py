"""Writes conversations in the layout of openassistant-guanaco: an Arrow file with one column, `text`.

    python3 guanaco.py FOLDER openassistant-guanaco-train.arrow          needs pyarrow

The conversations are made from Markdown files below FOLDER by a fixed seed. A question is the heading of a section, and
its answer is the section. They stand in for timdettmers/openassistant-guanaco, so that the example needs no download.
The file has the form in which Hugging Face's `datasets` caches a data set, so `load_dataset("arrow", ...)` reads it.
"""
import pathlib
import random
import re
import sys

import pyarrow

QUESTIONS = ["What is there to know about {}?", "Can you explain {} to me?", "How does {} work?", "Tell me about {}."]
HEADING = re.compile(r"^#{1,4} (.+)$")
MOST_TURNS = 3
ROWS_OF_A_BATCH = 100


def sections(document: pathlib.Path) -> list[tuple[str, str]]:
    """Returns the headings of a document with the text below each. A heading inside of a code block is none."""
    found, in_code = [], False
    for line in document.read_text(encoding="utf-8").splitlines():
        in_code = in_code != line.startswith("```")
        heading = None if in_code else HEADING.match(line)
        if heading:
            found.append((heading[1], []))
        elif found:
            found[-1][1].append(line)
    stripped = ((heading, "\n".join(lines).strip()) for heading, lines in found)
    return [(heading, text) for heading, text in stripped if text]


def conversations(folder: pathlib.Path) -> list[str]:
    draw, texts = random.Random(4), []
    for document in sorted(folder.rglob("*.md")):
        rest = sections(document)
        while rest:
            turns, rest = rest[:(count := draw.randint(1, MOST_TURNS))], rest[count:]
            asked = [(draw.choice(QUESTIONS).format(heading), answer) for heading, answer in turns]
            texts.append("".join(f"### Human: {question}### Assistant: {answer}" for question, answer in asked))
    draw.shuffle(texts)
    return texts


def main(folder: pathlib.Path, output: pathlib.Path) -> None:
    table = pyarrow.table({"text": pyarrow.array(conversations(folder), pyarrow.string())})
    output.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.ipc.new_stream(output, table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS_OF_A_BATCH)
    print(f"{output}: {table.num_rows} conversations, {output.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
