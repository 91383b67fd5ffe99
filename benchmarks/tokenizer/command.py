#!/usr/bin/env python3
"""How fast `millrace tokenizer encode` turns lines into ids, as text and as JSON; with several programs, one beside the other.

    command.py MODEL DOCUMENTS.jsonl… MILLRACE [--beside OTHER_MILLRACE] [--rounds 5] [--megabytes 64]

The documents ({"text": …} a line) are repeated up to --megabytes. Input is a file in memory, output goes through a pipe and is hashed:
programs must write the same. Medians of the rounds, in which the programs take turns.
"""
import argparse
import hashlib
import itertools
import json
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time


def encode(program, model, lines, as_json):
    """Seconds, seconds of CPU and the hash of what was written."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [program, "tokenizer", "encode", "--model", model, *["--json"] * as_json]
    digest = hashlib.blake2b()
    with lines.open("rb") as given, subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE) as process:
        while block := process.stdout.read(1 << 20):
            digest.update(block)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {process.returncode}")
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("documents", nargs="+", type=pathlib.Path)
    parser.add_argument("millrace")
    parser.add_argument("--beside", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=64)
    arguments = parser.parse_args()
    texts = [json.loads(line)["text"].replace("\n", " ") for path in arguments.documents for line in path.open()]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for as_json in (False, True):
            lines, size = pathlib.Path(folder) / "lines", 0
            with lines.open("w") as file:
                for text in itertools.cycle(texts):
                    size += file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n" if as_json else text + "\n")
                    if size > arguments.megabytes * 1e6:
                        break
            size, programs = lines.stat().st_size, [arguments.millrace, *arguments.beside]
            runs = [[encode(program, arguments.model, lines, as_json) for program in programs] for _ in range(arguments.rounds)]
            if len({digest for one in runs for *_, digest in one}) != 1:
                raise SystemExit("the programs write different ids")
            for at, program in enumerate(programs):
                seconds, cpu = (statistics.median(one[at][what] for one in runs) for what in (0, 1))
                print(f"{'json' if as_json else 'text'}  {size / 1e6 / seconds:7.1f} MB/s  {size / 1e6 / cpu:7.1f} MB per second of CPU  {program}", flush=True)


if __name__ == "__main__":
    main()
