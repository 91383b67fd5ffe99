#!/usr/bin/env python3
"""Tests that `millrace data` reads the files of other tools, and writes token files by their definition.

    data_formats.py (datasets|columns|tables|tokens|answers) --millrace PROGRAM

Exit status: 0 success, 77 a tool that writes the data is not installed (printed), anything else a failure.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
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


def make_texts(count, seed=7):
    draw = random.Random(seed)
    words = ["bucket", "stream", "of", "tokens", "数据", "naïve", "\"quoted\"", "line\nbreak", "tab\t", "😀", "the"]
    return [f"{i}: " + " ".join(draw.choices(words, k=draw.randint(1, 40))) for i in range(count)]


class Data:
    """Runs `millrace data` on local folders, with a tokenizer that does not change a text."""

    def __init__(self, millrace, folder):
        self.millrace, self.folder = millrace, folder
        (folder / "train.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in make_texts(400, 1)))
        self.model = folder / "tokenizer.model"
        self.run("tokenizer", "train", "--input", folder / "train.jsonl", "--vocab-size", "360", "--output", self.model)

    def reads_arrow(self):
        return bool(list(pathlib.Path(self.millrace).parent.glob("../lib/millrace/*_arrow.so")))

    def run(self, *arguments, fails=False):
        done = subprocess.run([self.millrace, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        if (done.returncode != 0) != fails:
            sys.exit(f"millrace {' '.join(map(str, arguments))}: status {done.returncode}\n{done.stderr}")
        return done.stderr if fails else done.stdout

    def texts(self, source, *more):
        """Returns the documents of a source in their order."""
        out = self.run("data", "cat", source, "--tokenizer", self.model, "--mode", "pad", "--sequence-length", "1500",
                       "--shuffle-window", "0", "--count", "1000000", "--json", *more)
        return [json.loads(line)["text"] for line in out.splitlines()]

    def expect(self, source, texts, *more):
        got = self.texts(source, *more)
        if got != texts:
            at = next((i for i, (a, b) in enumerate(zip(got, texts)) if a != b), min(len(got), len(texts)))
            sys.exit(f"{source}: {len(got)} documents instead of {len(texts)}, the first other one is {at}:\n"
                     f"{got[at:at + 1]}\n{texts[at:at + 1]}")
        print(f"ok: {source}: {len(texts)} documents")


def test_datasets(data):
    """Reads the files that Hugging Face's `datasets` writes."""
    need("datasets")
    import datasets
    texts, others = make_texts(700), make_texts(50, 8)
    train, test = datasets.Dataset.from_dict({"text": texts}), datasets.Dataset.from_dict({"text": others})

    train.save_to_disk(data.folder / "saved", num_shards=3)
    data.expect(data.folder / "saved", texts)
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(data.folder / "dict")
    data.expect(f"{data.folder}/dict/#train", texts)
    data.expect(f"{data.folder}/dict#test", others)
    assert "say which" in data.run("data", "plan", data.folder / "dict", "--tokenizer", data.model, fails=True)

    # A cache of load_dataset: a stream for each split, and cached computations.
    (data.folder / "raw.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    loaded = datasets.load_dataset("json", data_files=str(data.folder / "raw.jsonl"), split="train",
                                   cache_dir=str(data.folder / "cache"))
    loaded.map(lambda row: {"text": "computed " + row["text"]})
    cache = pathlib.Path(loaded.cache_files[0]["filename"])
    shutil.copy(cache, data.folder / "openassistant-guanaco-train.arrow")
    data.expect(data.folder / "openassistant-guanaco-train.arrow", texts)
    data.expect(f"{cache.parent}/#train", texts)

    hub = data.folder / "hub/data"
    hub.mkdir(parents=True)
    for shard in range(2):
        train.shard(2, shard, contiguous=True).to_parquet(hub / f"train-{shard:05}-of-00002.parquet")
    test.to_parquet(hub / "test-00000-of-00001.parquet")
    (hub.parent / "README.md").write_text("---\nlicense: mit\n---\n# A data set\n")
    data.expect(f"{data.folder}/hub/#train", texts)
    data.expect(f"{data.folder}/hub/#test", others)


def test_columns(data):
    """Reads Arrow and Parquet of pyarrow, with every codec for text."""
    need("pyarrow")
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.ipc
    import pyarrow.parquet
    texts = make_texts(5000)
    plain = pa.table({"id": range(len(texts)), "text": texts, "extra": [list(t) for t in texts]})
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        column = plain["text"].combine_chunks()
        column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
        table = plain.set_column(1, "text", column)
        path = data.folder / f"{str(kind).split('<')[0]}.arrow"
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=300)
        data.expect(path, texts)
    for codec in ("uncompressed", "lz4", "zstd"):
        path = data.folder / f"{codec}.feather"
        pa.feather.write_feather(plain, path, compression=codec, chunksize=700)
        data.expect(path, texts)
    for codec in ("none", "snappy", "gzip", "zstd", "lz4"):
        for rows, version, pages in ((100, "1.0", "1.0"), (2000, "2.6", "2.0"), (10**6, "2.6", "1.0")):
            path = data.folder / f"{codec}-{rows}.parquet"
            pa.parquet.write_table(plain, path, compression=codec, row_group_size=rows, version=version,
                                   data_page_version=pages, write_page_index=rows == 2000)
            data.expect(path, texts)
    missing = data.run("data", "plan", data.folder / "zstd-100.parquet", "--template", "{body}", "--tokenizer",
                       data.model, fails=True)
    assert "no column \"body\"; it has id, text, extra" in missing, missing


def expect_of_datasets(path, rows):
    """The rows are those that Hugging Face's `datasets` reads."""
    try:
        import datasets
    except ImportError as missing:
        return print(f"not compared with datasets: {missing}")
    features = datasets.Features({name: datasets.Value("string") for name in "abc"})
    loaded = datasets.load_dataset("csv", data_files=str(path), split="train", features=features, keep_default_na=False)
    assert [list(row.values()) for row in loaded] == rows, path


def test_tables(data):
    """Reads CSV and TSV that Python's csv module writes, and random text as that module reads it."""
    import csv
    import gzip
    draw = random.Random(11)

    def field():
        return "".join(draw.choices(["a", "bc", " ", ",", "\t", "\n", "\r\n", '"', '""', "é", "😀"], k=draw.randrange(9)))

    template = ["--template", "{a}|{b}|{c}"]
    for name, options in {"csv": dict(), "minimal": dict(lineterminator="\n"), "tsv": dict(delimiter="\t"),
                          "all": dict(quoting=csv.QUOTE_ALL)}.items():
        rows = [[f"{i}{field()}", field(), field()] for i in range(1500)]
        path = data.folder / (f"{name}.csv.gz" if name == "all" else f"{name}.csv")
        with (gzip.open if name == "all" else open)(path, "wt", newline="", encoding="utf-8-sig") as file:
            csv.writer(file, **options).writerows([["a", "b", "c"], *rows])
        declared = ["--format", "tsv+quotes"] if name == "tsv" else []
        data.expect(path, ["|".join(row) for row in rows], *template, *declared)
        if name != "tsv":
            expect_of_datasets(path, rows)

    # Quotation marks anywhere: the module's lenient reading. Rows without text, or with another number of fields, are
    # left out.
    def closed(text):
        """Whether text is whole rows, none of which ends inside of quotation marks."""
        return list(csv.reader(f"{text}\nend\n".splitlines(keepends=True)))[-1] == ["end"]

    texts = ["".join(draw.choices(["x", "yz", '"', '""', ",", ",", " ", "\n"], k=draw.randrange(1, 14))) for _ in range(4000)]
    path = data.folder / "random.csv"
    path.write_text("\n".join(["a,b,c", *filter(closed, texts), ""]), newline="")
    with open(path, newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == 3 and any(row)][1:]
    assert len(rows) > 200 and any('"' in field for row in rows for field in row), len(rows)
    data.expect(path, ["|".join(row) for row in rows], *template, "--max-broken", "100000")

    # GLUE's own form: quotation marks are part of the fields. CoLA has no names of columns.
    rows = [["gj04", str(i % 2), "*" * (i % 2), f'{i} "' + field().replace("\t", "").replace("\n", "").replace("\r", "")]
            for i in range(300)]
    path = data.folder / "cola.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    data.expect(path, [f"{row[3]}|{row[1]}" for row in rows], "--template", "{3}|{1}", "--format", "tsv+no_header")


def megatron(documents, width):
    """Returns the bytes of .bin and .idx by their definition."""
    token = "<H" if width == 2 else "<i"
    lengths = [len(d) for d in documents if d]
    pointers, starts = [0], [0]
    for document in documents:
        starts.append(starts[-1] + bool(document))
    for length in lengths:
        pointers.append(pointers[-1] + length * width)
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8 if width == 2 else 4, len(lengths), len(documents) + 1)
    table = head + b"".join(struct.pack("<i", n) for n in lengths) + b"".join(struct.pack("<q", p) for p in pointers[:-1])
    return (b"".join(struct.pack(token, t) for d in documents for t in d),
            table + b"".join(struct.pack("<q", s) for s in starts))


def test_tokens(data):
    """Compares `millrace data tokenize` with sentencepiece and the format's definition. Kills it several times."""
    need("sentencepiece")
    import sentencepiece
    reference = sentencepiece.SentencePieceProcessor(model_file=str(data.model))
    corpus = data.folder / "corpus"
    corpus.mkdir()
    documents = []
    for file in range(60):
        texts = make_texts(300, file)
        (corpus / f"{file:02}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
        documents += [reference.encode(text) + [reference.eos_id()] for text in texts]
    expected = megatron(documents, 2)
    output = data.folder / "out/tokens"
    command = [data.millrace, "data", "tokenize", str(corpus) + "/", "--tokenizer", str(data.model), "--output",
               str(output), "--threads", "1", "--json"]
    bin_file, idx_file = output.with_suffix(".bin"), output.with_suffix(".idx")
    kills = 0
    for parts in (1, 10, 25, 40):
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while run.poll() is None and time.monotonic() < deadline:
            if len(list(output.parent.glob(".millrace/*/*"))) >= parts:
                run.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.001)
        run.wait()
        assert not idx_file.exists() or idx_file.read_bytes() == expected[1]
    done = json.loads(data.run(*command[1:]))
    assert (bin_file.read_bytes(), idx_file.read_bytes()) == expected, "other bytes than the definition's"
    assert done["documents"] == len(documents) and done["tokens"] == sum(map(len, documents)), done
    assert kills == 0 or done["resumed"] > 0 or done["parts"] == 0, done
    # The file store keeps unfinished writes of a killed process under names that no listing shows.
    left = [path for path in output.parent.glob(".millrace/*/*") if not path.name.startswith(".millrace~")]
    assert not left, left
    print(f"ok: {done['tokens']} tokens after {kills} kills, {done['resumed']} of {done['parts']} parts taken over")

    texts = [reference.decode(document) for document in documents]
    data.expect(output, texts)
    with_eod = data.run("data", "plan", output, "--tokenizer", data.model, "--json", "--sequence-length", "100")
    assert json.loads(with_eod)["samples_per_epoch"] == (sum(map(len, documents)) - 1) // 100


def completion_only(ids, instruction, response):
    """Returns the labels of trl's DataCollatorForCompletionOnlyLM, which last was in trl 0.19."""
    def places(marker):
        return [at for at in range(len(ids)) if ids[at:at + len(marker)] == marker]

    labels, ends = list(ids), [at + len(response) for at in places(response)]
    if instruction is None:
        return [-100] * ends[-1] + labels[ends[-1]:]
    begins = places(instruction)
    if begins[0] > ends[0]:
        begins = [0] + begins
    for number, (begin, end) in enumerate(zip(begins, ends)):
        begin = 0 if number == 0 else begin
        labels[begin:end] = [-100] * (end - begin)
    if len(ends) < len(begins):
        labels[begins[-1]:] = [-100] * (len(ids) - begins[-1])
    return labels


def test_answers(data):
    """Compares tokens and masks of answers with trl's rules on the ids of sentencepiece."""
    need("sentencepiece", "datasets")
    import datasets
    import sentencepiece
    reference = sentencepiece.SentencePieceProcessor(model_file=str(data.model))

    def marker(text):  # inside a text, where no space is put in front of it
        ids = reference.encode(text)
        return ids[1:] if reference.id_to_piece(ids[0]) == "\u2581" else ids

    def document(text):
        return [reference.bos_id()] + reference.encode(text) + [reference.eos_id()]

    def expect(what, source, wanted, *flags):
        length = max(len(ids) for ids, _ in wanted)
        out = data.run("data", "cat", source, "--tokenizer", data.model, "--mode", "sft", "--sequence-length", length,
                       "--shuffle-window", "0", "--count", "1000000", "--json", *flags)
        rows = [json.loads(line) for line in out.splitlines()]
        assert len(rows) == len(wanted), (what, len(rows))
        for number, (row, (ids, labels)) in enumerate(zip(rows, wanted)):
            assert row["inputs"] == ids + [reference.eos_id()] * (length - len(ids)), (what, number)
            assert row["labels"] == labels[1:] + [-100] * (length + 1 - len(labels)), (what, number)
        print(f"ok: {what}: {len(rows)} records", flush=True)

    # openassistant-guanaco: turns in one text, and some texts that end with a question.
    draw, words = random.Random(3), ["what", "is", "a", "mill", "water", "42", "naïve", "数据", "stone."]
    said = lambda: " " + " ".join(draw.choices(words, k=draw.randint(1, 9)))
    turns = lambda human, bot: "".join(f"{human}{said()}{bot}{said()}" for _ in range(draw.randint(1, 3))) + (
        f"{human}{said()}" if draw.random() < 0.3 else "")
    texts = [turns("### Human:", "### Assistant:") for _ in range(120)]
    wanted = [(document(t), completion_only(document(t), marker("### Human:"), marker("### Assistant:"))) for t in texts]
    (data.folder / "guanaco.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    expect("guanaco, jsonl", data.folder / "guanaco.jsonl", wanted, "--layout", "guanaco")
    if data.reads_arrow():
        table = datasets.Dataset.from_dict({"text": texts})
        table.save_to_disk(data.folder / "guanaco")
        table.to_parquet(data.folder / "guanaco.parquet")
        expect("guanaco, Arrow", data.folder / "guanaco", wanted, "--layout", "guanaco")
        expect("guanaco, Parquet", data.folder / "guanaco.parquet", wanted, "--layout", "guanaco")

    others = [turns("Q>", "A>") for _ in range(60)]
    (data.folder / "turns.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in others))
    flags = ["--layout", "turns", "--response-template", "A>"]
    wanted = [(document(t), completion_only(document(t), marker("Q>"), marker("A>"))) for t in others]
    expect("turns", data.folder / "turns.jsonl", wanted, *flags, "--instruction-template", "Q>")
    wanted = [(document(t), completion_only(document(t), None, marker("A>"))) for t in others]
    expect("the last turn", data.folder / "turns.jsonl", wanted, *flags)

    # Prompt and completion, as trl's SFTTrainer masks them: behind the longest common beginning.
    pairs, wanted = [{"prompt": said()[1:], "completion": said()} for _ in range(60)], []
    for pair in pairs:
        prompt, ids = document(pair["prompt"])[:-1], document(pair["prompt"] + pair["completion"])
        common = next(i for i, (a, b) in enumerate(zip(prompt + [-1], ids)) if a != b)
        wanted.append((ids, [-100] * common + ids[common:]))
    (data.folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    expect("prompt and completion", data.folder / "pairs.jsonl", wanted, "--template", "{prompt}", "--response",
           "{completion}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("test", choices=["datasets", "columns", "tables", "tokens", "answers"])
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
    need({"datasets": "datasets", "columns": "pyarrow", "tables": "csv"}.get(arguments.test, "sentencepiece"))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = folder
        data = Data(str(pathlib.Path(arguments.millrace).resolve()), pathlib.Path(folder))
        if arguments.test in ("datasets", "columns") and not data.reads_arrow():
            print("skipped: this build reads no Arrow")
            sys.exit(SKIPPED)
        globals()["test_" + arguments.test](data)


if __name__ == "__main__":
    main()
