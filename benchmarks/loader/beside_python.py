#!/usr/bin/env python3
"""Millrace's Python data set beside the usual recipe for streamed data, on the same S3 server, with the same tokenizer.

    benchmarks/loader/beside_python.py BUILD_FOLDER CORPUS.jsonl TOKENIZER.model [--samples 2000] [--rounds 3] [--raw]

Recipe: datasets.load_dataset("json", streaming=True).shuffle(10000).map(tokenize, pad to 2,048), batches of 8 as numpy
arrays; one map a record, and its best form, map of 256 records with a tokenizer on two threads. The tokenizer is the
SentencePiece library, whose ids Millrace's are. Raw reading, without tokenizing: mosaicml-streaming and webdataset.
Each measurement is a fresh process; rounds alternate; the best of each counts. Prints seconds, rates and ratios.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

LENGTH, BATCH = 2048, 8
FORM = "{title}\n\t\t{text}\n\n"
URL = "s3://bench/corpus.jsonl"


def tokenizer_of(path):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=path)


def pad(ids, bos, eos):
    ids = [bos, *ids, eos][:LENGTH]
    return {"input_ids": ids + [eos] * (LENGTH - len(ids)), "attention_mask": [1] * len(ids) + [0] * (LENGTH - len(ids))}


def recipe(threads, skip_before=0, skip_after=0):
    import datasets

    peer = tokenizer_of(os.environ["BENCH_MODEL"])
    bos, eos = peer.bos_id(), peer.eos_id()
    storage = {"key": os.environ["AWS_ACCESS_KEY_ID"], "secret": os.environ["AWS_SECRET_ACCESS_KEY"],
               "client_kwargs": {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}}  # fmt: skip
    data = datasets.load_dataset("json", data_files=URL, split="train", streaming=True, storage_options=storage)
    data = data.shuffle(buffer_size=10000, seed=42).skip(skip_before)

    def one(record):
        return pad(peer.encode(FORM.format_map(record)), bos, eos)

    def many(records):
        texts = [FORM.format(title=title, text=text) for title, text in zip(records["title"], records["text"])]
        made = [pad(ids, bos, eos) for ids in peer.encode(texts, num_threads=threads)]
        return {name: [row[name] for row in made] for name in made[0]}

    columns = list(next(iter(data)).keys()) if not skip_before else None
    options = {"remove_columns": columns} if columns else {}
    data = data.map(many, batched=True, batch_size=256, **options) if threads else data.map(one, **options)
    return data.skip(skip_after)


def batches_of_recipe(data):
    import numpy

    rows = []
    for sample in data:
        rows.append(sample["input_ids"])
        if len(rows) == BATCH:
            yield numpy.asarray(rows, dtype=numpy.int64)
            rows = []


def millrace_data(skip=0):
    import millrace

    data = millrace.Dataset(URL, tokenizer=os.environ["BENCH_MODEL"], template=FORM, sequence_length=LENGTH, mode="pad",
                            batch_size=BATCH, framework="numpy", threads=2)  # fmt: skip
    if skip:
        data.load_state_dict({"epoch": 0, "samples": skip // BATCH * BATCH, "fingerprint": data.fingerprint})
    return data


def measure(what, samples, skip):
    """In a fresh process; imports do not count."""
    import datasets  # noqa: F401
    import numpy  # noqa: F401

    import millrace.dataset  # noqa: F401

    began = time.perf_counter()
    if what == "millrace":
        batches = (batch["input_ids"] for batch in millrace_data(skip))
    elif what == "recipe":
        batches = batches_of_recipe(recipe(0, skip_after=skip))
    elif what == "recipe, skipping records":
        batches = batches_of_recipe(recipe(0, skip_before=skip))
    else:
        batches = batches_of_recipe(recipe(2))
    first, seen = None, 0
    for batch in batches:
        assert batch.shape == (BATCH, LENGTH)
        if first is None:
            first = time.perf_counter()
        seen += len(batch)
        if seen >= samples:
            break
    end = time.perf_counter()
    return {"first": first - began, "rate": (seen - BATCH) / (end - first) if seen > BATCH else 0}


def measure_raw(what, folder, size):
    began = time.perf_counter()
    if what == "millrace":
        import millrace

        began = time.perf_counter()
        records = sum(1 for _ in millrace.documents(URL, template=FORM))
    elif what == "mosaicml-streaming":
        from streaming import StreamingDataset

        began = time.perf_counter()
        records = sum(1 for _ in StreamingDataset(local=f"{folder}/mds", shuffle=False, batch_size=BATCH))
    else:
        import webdataset

        began = time.perf_counter()
        records = sum(1 for _ in webdataset.WebDataset(f"{folder}/corpus.tar", shardshuffle=False).decode())
    return {"rate": size / (time.perf_counter() - began) / 1e6, "records": records}


def make_raw(corpus, folder):
    import io
    import tarfile

    from streaming import MDSWriter

    with open(corpus, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    with MDSWriter(out=f"{folder}/mds", columns={"title": "str", "text": "str"}) as out:
        for record in records:
            out.write({"title": record["title"], "text": record["text"]})
    with tarfile.open(f"{folder}/corpus.tar", "w") as tar:
        for i, record in enumerate(records):
            data = json.dumps(record, ensure_ascii=False).encode()
            member = tarfile.TarInfo(f"{i:08}.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def child(arguments):
    command = [sys.executable, __file__, "--child", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    if sys.argv[1:2] == ["--child"]:
        kind, *arguments = json.loads(sys.argv[2])
        print(json.dumps(measure(*arguments) if kind == "measure" else measure_raw(*arguments)))
        return
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("build", type=pathlib.Path)
    flags.add_argument("corpus")
    flags.add_argument("tokenizer")
    flags.add_argument("--samples", type=int, default=2000)
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--raw", action="store_true", help="raw records alone")
    options = flags.parse_args()
    program = options.build / "bin" / "millrace"
    keys = {"AWS_ACCESS_KEY_ID": "bench-key", "AWS_SECRET_ACCESS_KEY": "bench-secret", "AWS_REGION": "us-east-1",
            "MILLRACE_S3D_ACCESS_KEY": "bench-key", "MILLRACE_S3D_SECRET_KEY": "bench-secret"}  # fmt: skip
    os.environ.update(keys, BENCH_MODEL=os.path.abspath(options.tokenizer), HF_HUB_OFFLINE="1",
                      PYTHONPATH=str(options.build.resolve() / "python"))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = folder
        server = subprocess.Popen([program, "--json", "s3d", "--root", f"{folder}/s3", "--no-sync"], stdout=subprocess.PIPE,
                                  text=True)  # fmt: skip
        try:
            os.environ["AWS_ENDPOINT_URL"] = json.loads(server.stdout.readline())["endpoint"]
            for command in (["mb", "s3://bench"], ["cp", options.corpus, URL]):
                subprocess.run([program, *command], check=True, stdout=subprocess.DEVNULL)
            run(options, folder)
        finally:
            server.terminate()
            server.wait()


def best(rounds, key, better):
    return better(one[key] for one in rounds)


def run(options, folder):
    size = os.path.getsize(options.corpus)
    with open(options.corpus, "rb") as file:
        records = sum(1 for _ in file)
    print(f"{records:,} records, {size / 1e6:.1f} MB")
    if not options.raw:
        beside_recipe(options, records)
    beside_raw(options, folder, records, size)


def beside_recipe(options, records):
    index = child(["measure", "millrace", BATCH, 0])["first"]
    print(f"millrace, first opening: index built and first batch after {index:.2f} s")
    names = ["millrace", "recipe", "recipe, batched"]
    seen = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            seen[name].append(child(["measure", name, options.samples, 0]))
    for name in names:
        rate, first = best(seen[name], "rate", max), best(seen[name], "first", min)
        ratio = best(seen["millrace"], "rate", max) / rate, first / best(seen["millrace"], "first", min)
        print(f"{name:26} {rate:8.0f} samples/s ({ratio[0]:5.1f}x)   first batch {first * 1e3:7.0f} ms ({ratio[1]:5.1f}x)")
    half, resumed = records // 2, {}
    names = ["millrace", "recipe", "recipe, skipping records"]
    for name in names:
        resumed[name] = [child(["measure", name, BATCH, half]) for _ in range(options.rounds)]
    for name in names:
        first = best(resumed[name], "first", min)
        ratio = first / best(resumed["millrace"], "first", min)
        print(f"{name:26} resumed at half of the corpus: first batch {first * 1e3:7.0f} ms ({ratio:5.1f}x)")


def beside_raw(options, folder, records, size):
    make_raw(options.corpus, folder)
    names = ["millrace", "mosaicml-streaming", "webdataset"]
    raw = {name: [child(["raw", name, folder, size]) for _ in range(options.rounds)] for name in names}
    for name in names:
        assert raw[name][0]["records"] == records, (name, raw[name][0])
        rate = best(raw[name], "rate", max)
        print(f"{name:26} raw records: {rate:6.0f} MB/s ({best(raw['millrace'], 'rate', max) / rate:5.1f}x)")


if __name__ == "__main__":
    main()
