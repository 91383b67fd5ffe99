"""Runs the code blocks of docs/guide/python.md in their order, in a temporary folder with temporary buckets."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from conftest import BIN
from conftest import millrace as run
from conftest import records

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("pandas")
pytest.importorskip("fsspec")

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "python.md"


def blocks():
    """Returns the blocks, each with the number of its first line for messages."""
    text = GUIDE.read_text(encoding="utf-8")
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield text[: found.start(1)].count("\n"), found.group(1)


def put(folder, url, lines, *, as_list=False):
    path = folder / "upload"
    content = json.dumps(list(lines)) if as_list else "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_text(content, encoding="utf-8")
    if url.endswith(".dat"):
        subprocess.run(["zstd", "-q", "-f", str(path), "-o", str(path) + ".zst"], check=True)
        path = Path(str(path) + ".zst")
    run("cp", str(path), url)


@pytest.fixture
def buckets(endpoint, tmp_path):
    folder = tmp_path / "uploads"
    folder.mkdir()
    for bucket in ("models", "sft", "runs", "bucket"):
        run("mb", f"s3://{bucket}")
    put(folder, "s3://corpus/wiki/0.jsonl", records(200, 1))
    put(folder, "s3://corpus/wiki/1.jsonl", records(200, 2))
    put(folder, "s3://corpus/code/0.jsonl", records(600, 3))
    run("tokenizer", "train", "--input", "s3://corpus/wiki/*.jsonl", "--vocab-size", "400", "--output", "s3://models/tokenizer.model")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters)]
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces))
    run("cp", str(folder / "vocab.txt"), "s3://models/bert-base-uncased/vocab.txt")
    (folder / "train.tsv").write_text("sentence\tlabel\n" + "the mill turns\t1\nno water , no flour\t0\n" * 20)
    run("cp", str(folder / "train.tsv"), "s3://corpus/SST-2/train.tsv")
    chat = [{"role": "user", "content": "what turns?"}, {"role": "assistant", "content": "the mill"}]
    alpaca = {"instruction": "say what turns", "input": "", "output": "the mill"}
    put(folder, "s3://sft/chats.jsonl", [{"messages": chat}] * 20)
    put(folder, "s3://sft/questions.json", [{"question": "what turns?", "answer": "the mill"}] * 20, as_list=True)
    put(folder, "s3://sft/alpaca_data.json", [alpaca] * 20, as_list=True)
    put(folder, "s3://sft/notes.dat", [alpaca] * 20)
    put(folder, "s3://sft/preferences.jsonl", [{"prompt": "what turns?", "chosen": "the mill", "rejected": "no"}] * 20)
    (folder / "file").write_bytes(b"x" * 1000)
    run("cp", str(folder / "file"), "s3://bucket/folder/file.bin")
    (folder / "table.csv").write_text("a,b\n1,2\n")
    run("cp", str(folder / "table.csv"), "s3://bucket/table.csv")


def test_the_guide_runs_as_it_is_printed(buckets, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_PROGRAM", os.path.join(BIN, "millrace"))
    monkeypatch.chdir(tmp_path)
    names = {}
    for line, block in blocks():
        code = compile("\n" * line + block, str(GUIDE), "exec")
        exec(code, names)
    assert names["head"] == b"x" * 100
    assert names["state"]["optimizer"]["state"], "the optimizer's state came back"
