#!/usr/bin/env python3
"""`millrace data compact --dedup near` beside a script with datasketch, which does the same: MinHash of 128 values over runs of 5
words, bands for a similarity of 0.8, candidates judged by their signatures, the first of duplicates stays. Both read the same
JSON lines from a local disk and write one file. The texts are made up; a third of them are copies of earlier ones with some words
changed. Run with a Python that has datasketch and numpy, and nothing else running:

    python benchmarks/data_compact/beside_datasketch.py build/release/bin/millrace [--documents 20000] [--rounds 3]

Prints the median seconds of the script, of one thread of Millrace and of all, and their ratios. Then, by the true Jaccard
similarity of each copy to its original, the share that each program removed.
"""
import argparse
import collections
import json
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

RUN, HASHES, SIMILARITY = 5, 128, 0.8
WORD = re.compile(r"[^\W_]+")


def runs(text):
    words = WORD.findall(text.lower())
    return {" ".join(words[i:i + RUN]) for i in range(max(1, len(words) - RUN + 1))}


def make_corpus(folder, count, objects):
    """Writes the corpus. Returns the true similarity of each copy to its original, by the copy's id."""
    rng = random.Random(5)
    vocabulary = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(40000)]
    weights = [1 / (rank + 10) for rank in range(len(vocabulary))]
    originals, truth, texts = [], {}, []
    for number in range(count):
        if originals and rng.random() < 1 / 3:
            original = rng.choice(originals)
            words = original.split()
            for _ in range(rng.randint(0, max(1, len(words) // 15))):
                words[rng.randrange(len(words))] = rng.choice(vocabulary)
            text = " ".join(words)
            a, b = runs(original), runs(text)
            truth[number] = len(a & b) / len(a | b)
        else:
            text = " ".join(rng.choices(vocabulary, weights, k=rng.randint(50, 800)))
            originals.append(text)
        texts.append(text)
    folder.mkdir()
    for at in range(objects):
        with open(folder / f"{at:05}.jsonl", "w") as out:
            for number in range(at * count // objects, (at + 1) * count // objects):
                out.write(json.dumps({"id": number, "text": texts[number]}) + "\n")
    return truth


def with_datasketch(source, output):
    from datasketch import MinHash, MinHashLSH

    lsh, signatures = MinHashLSH(threshold=SIMILARITY, num_perm=HASHES), {}
    with open(output, "w") as out:
        for path in sorted(pathlib.Path(source).iterdir()):
            for line in open(path):
                record = json.loads(line)
                signature = MinHash(num_perm=HASHES)
                signature.update_batch([run.encode() for run in runs(record["text"])])
                if any(signatures[other].jaccard(signature) >= SIMILARITY for other in lsh.query(signature)):
                    continue
                lsh.insert(record["id"], signature)
                signatures[record["id"]] = signature
                out.write(line)


def timed(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


def kept_ids(paths):
    return {json.loads(line)["id"] for path in paths for line in open(path)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("millrace")
    parser.add_argument("--documents", type=int, default=20000)
    parser.add_argument("--objects", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--script", nargs=2, help=argparse.SUPPRESS)  # how this program runs the script in a process
    options = parser.parse_args()
    if options.script:
        return with_datasketch(*options.script)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="compact-"))
    truth = make_corpus(folder / "in", options.documents, options.objects)
    size = sum(path.stat().st_size for path in (folder / "in").iterdir())
    print(f"{options.documents} documents, {size / 1e6:.0f} MB, {options.objects} objects", flush=True)
    millrace = [options.millrace, "data", "compact", folder / "in/", "--output", folder / "out/", "--dedup", "near",
                "--similarity", str(SIMILARITY), "--force", "--quiet"]
    script = [sys.executable, __file__, options.millrace, "--script", folder / "in", folder / "script.jsonl"]
    seconds = collections.defaultdict(list)
    for _ in range(options.rounds):
        for name, command in (("script", script), ("one thread", [*millrace, "--threads", "1"]), ("all threads", millrace)):
            seconds[name].append(timed(lambda: subprocess.run([str(word) for word in command], check=True)))
    median = {name: statistics.median(all_of_it) for name, all_of_it in seconds.items()}
    for name, value in median.items():
        print(f"{name}: {value:.2f} s, {size / 1e6 / value:.1f} MB/s, {median['script'] / value:.1f}×")
    kept = {"script": kept_ids([folder / "script.jsonl"]), "millrace": kept_ids(sorted((folder / "out").glob("shard-*")))}
    for low, high in ((0, 0.6), (0.6, 0.7), (0.7, 0.75), (0.75, 0.8), (0.8, 0.85), (0.85, 0.9), (0.9, 1.01)):
        copies = [number for number, similarity in truth.items() if low <= similarity < high]
        if copies:
            shares = ", ".join(f"{name} {sum(number not in ids for number in copies) / len(copies):.3f}" for name, ids in kept.items())
            print(f"similarity {low:.2f} to {min(high, 1):.2f}, {len(copies)} copies, removed: {shares}")
    lost = {name: sum(number not in ids and number not in truth for number in range(options.documents)) for name, ids in kept.items()}
    print(f"originals removed: {lost}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
