#!/usr/bin/env python3
"""Compares the rows that `millrace data` makes for BERT with those of other programs.

    bert_data.py (samples|rows) --millrace PROGRAM

samples: shards that h5py writes as NVIDIA's create_pretraining_data.py does, read as NVIDIA's run_pretraining.py does.
rows: texts with classes, encoded by Hugging Face's `tokenizers`.

Exit status: 0 success, 77 a library is not installed (printed), anything else a failure.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

SKIPPED = 77
IGNORED = -100
VENV = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent")) / "venv/bin/python"


def need(*modules):
    """Restarts with the Python of the peers if this one lacks a module."""
    try:
        for module in modules:
            __import__(module)
    except ImportError as missing:
        if VENV.exists() and pathlib.Path(sys.executable) != VENV:
            os.execv(VENV, [str(VENV), *sys.argv])
        print(f"skipped: {missing}")
        sys.exit(SKIPPED)


def run(*arguments, fails=False, env=None):
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, timeout=120, env=env)
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(map(str, arguments))}: status {done.returncode}\n{done.stderr}")
    return done.stderr if fails else [json.loads(line) for line in done.stdout.splitlines()]


def expect(rows, expected, what):
    """Each row is a map; rows of millrace have more members."""
    if len(rows) != len(expected):
        sys.exit(f"{what}: {len(rows)} rows instead of {len(expected)}")
    for number, (row, wanted) in enumerate(zip(rows, expected)):
        for key, value in wanted.items():
            if row.get(key) != value:
                sys.exit(f"{what}: row {number} has {key}\n{row.get(key)}\ninstead of\n{value}")
    print(f"ok: {what}: {len(rows)} rows")


def make_shard(path, draw, libver=None):
    """Writes random samples with random ways of storage. Returns the rows that run_pretraining.py makes of them."""
    import h5py
    import numpy
    numbers = numpy.random.default_rng(draw.randrange(2**32))
    rows, length, most = draw.choice([1, 7, 300, 5000]), draw.choice([16, 128]), draw.choice([3, 20])
    tokens = numbers.integers(4, length + 1, rows)
    mask = (numpy.arange(length)[None] < tokens[:, None]).astype("i1")
    ids = numbers.integers(0, 999, (rows, length)) * mask
    segments = mask * (numpy.arange(length)[None] >= tokens[:, None] // 2)
    positions, hidden = numpy.zeros((rows, most), "i4"), numpy.zeros((rows, most), "i4")
    for row in range(rows):
        count = numbers.integers(0, min(most, tokens[row] - 2) + 1)
        positions[row, :count] = numpy.sort(numbers.choice(numpy.arange(1, tokens[row] - 1), count, replace=False))
        hidden[row, :count] = numbers.integers(0, 999, count)
    follows = numbers.integers(0, 2, rows)
    tables = {"input_ids": (ids, "i4"), "input_mask": (mask, "i1"), "segment_ids": (segments, "i1"),
              "masked_lm_positions": (positions, "i4"), "masked_lm_ids": (hidden, "i4"),
              "next_sentence_labels": (follows, "i1")}
    labelled = draw.random() < 0.8
    with h5py.File(path, "w", libver=libver) as file:
        for name, (values, kind) in tables.items():
            if name == "next_sentence_labels" and not labelled:
                continue
            storage = draw.choice([{"compression": "gzip"}, {"compression": "gzip", "shuffle": True, "fletcher32": True},
                                   {"fletcher32": True}, {}, {"compression": "gzip", "compression_opts": 9,
                                                              "chunks": (draw.randint(1, rows), 3)[:values.ndim]}])
            wide = draw.choice(["i8", "i4", "u4"]) if kind == "i4" else draw.choice(["i1", "u1", "i2"])
            file.create_dataset(name, data=values, dtype=draw.choice([kind, wide]), **storage)
    expected = []
    for row in range(rows):
        labels = [IGNORED] * length
        for position, token in zip(positions[row].tolist(), hidden[row].tolist()):
            if position == 0:
                break
            labels[position] = token
        expected.append({"inputs": ids[row].tolist(), "labels": labels, "segments": segments[row].tolist(),
                         "length": int(tokens[row]), "row_label": int(follows[row]) if labelled else None})
    return length, expected


def test_samples(millrace, folder):
    need("h5py", "numpy")
    import h5py
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 999))]))
    draw = random.Random(11)

    def cat(path, length, **options):
        return run(millrace, "data", "cat", path, "--objective", "mlm", "--tokenizer", vocabulary, "--sequence-length",
                   length, "--shuffle-window", 0, "--count", 10**6, "--json", **options)

    for number in range(24):
        libver = draw.choice([None, ("v108", "v108")])
        path = folder / f"{number}.hdf5"
        length, expected = make_shard(path, draw, libver)
        expect(cat(path, length), expected, f"{path.name} ({libver})")
    with h5py.File(folder / "newest.hdf5", "w", libver="latest") as file:
        file.create_dataset("input_ids", data=[[1, 2], [3, 4]], compression="gzip")
    assert "input_ids is stored as only newer" in cat(folder / "newest.hdf5", 128, fails=True)
    with h5py.File(folder / "lzf.h5", "w") as file:
        file.create_dataset("input_ids", data=[[1, 2], [3, 4]], compression="lzf")
    assert "compressed by filter 32000" in cat(folder / "lzf.h5", 128, fails=True)


def test_rows(millrace, folder):
    need("tokenizers")
    import tokenizers
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij.,'\"", *(f"##{c}" for c in "abcdefghij"), "the",
              "cat", "##ch", "good", "bad", "film"]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(pieces))
    library = tokenizers.BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    draw = random.Random(5)
    words = ["the", "cat", "catch", "good", "bad", "film", "abc", "jig", "\"head\"", "it's", "a.", "zebra", "Fa,de"]

    def text():
        return " ".join(draw.choices(words, k=draw.randint(1, 14)))

    for length, pairs in ((12, False), (32, False), (9, True), (16, True), (64, True)):
        records = [(text(), text() if pairs else None, draw.randrange(3)) for _ in range(300)]
        path = folder / f"{length}-{pairs}.tsv"
        header = "sentence\tother\tlabel" if pairs else "sentence\tlabel"
        path.write_text("\n".join([header, *("\t".join([a, *([b] if pairs else []), str(c)]) for a, b, c in records)]))
        job = folder / "job.yaml"
        job.write_text(json.dumps({
            "name": "rows", "model": {"from": "s3://models/bert"}, "train": {"objective": "classification", "steps": 1},
            "data": {"sources": [{"url": str(path)}], "tokenizer": str(vocabulary), "sequence_length": length,
                     "shuffle": {"window": 0}, "classification": {"pair": "other" if pairs else ""}}}))
        library.enable_truncation(length, strategy="longest_first")
        library.enable_padding(length=length)
        expected = []
        for first, second, label in records:
            row = library.encode(first, second)
            expected.append({"inputs": row.ids, "segments": row.type_ids, "length": sum(row.attention_mask),
                             "labels": [IGNORED] * length, "row_label": label})
        expect(run(millrace, "data", "cat", job, "--count", 10**6, "--json"), expected, path.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("test", choices=["samples", "rows"])
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    need(*{"samples": ["h5py"], "rows": ["tokenizers"]}[arguments.test])
    with tempfile.TemporaryDirectory() as folder:
        globals()["test_" + arguments.test](str(pathlib.Path(arguments.millrace).resolve()), pathlib.Path(folder))


if __name__ == "__main__":
    main()
