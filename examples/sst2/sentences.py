"""Writes sentences with a class in the files of GLUE's SST-2, and a BERT vocabulary for them.

    python3 sentences.py FOLDER          FOLDER/train.tsv, FOLDER/dev.tsv, FOLDER/vocab.txt

The sentences are made from a list of words by a fixed seed; they only look like reviews. They stand in for SST-2, which is
read in the same way, so that the example needs no download. A sentence praises (1) or blames (0). "not" turns a word into its
opposite, so single words do not tell the class, and a model must read two of them together.
"""
import pathlib
import random
import sys

PRAISE = "moving funny honest clever warm graceful gripping tender bright fresh".split()
BLAME = "dull clumsy hollow tedious cold lifeless shallow noisy stale muddled".split()
THINGS = "film story script cast plot score ending comedy drama picture".split()
OPENINGS = ["the {0} is", "this {0} feels", "a {0} that is", "its {0} seems", "i found the {0}", "we thought the {0} was"]
ADVERBS = ["", "rather", "always", "often", "quite", "really"]
ENDINGS = ["", "from start to end", "for two hours", "in every scene", ", like its {0}", "and so is the {0}"]


def sentence(draw: random.Random) -> tuple[str, int]:
    praises, turned = draw.random() < 0.5, draw.random() < 0.3
    word = draw.choice(PRAISE if praises else BLAME)
    parts = [draw.choice(OPENINGS), draw.choice(ADVERBS), "not" if turned else "", word, draw.choice(ENDINGS)]
    text = " ".join(part for part in parts if part).format(draw.choice(THINGS))
    return text + " ", int(praises != turned)  # SST-2's sentences end with a space


def write(path: pathlib.Path, rows: list[tuple[str, int]]) -> None:
    path.write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")


def main(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(2)
    rows = sorted({sentence(draw) for _ in range(6000)})  # none twice: those of dev.tsv are new
    draw.shuffle(rows)
    write(folder / "dev.tsv", rows[:400])
    write(folder / "train.tsv", rows[400:])
    words = sorted({word for text, _ in rows for word in text.replace(",", " , ").split()})
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
