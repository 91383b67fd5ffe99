#!/usr/bin/env python3
"""A training run on a machine that does something else: small models with 0, 1, 2 and 8 busy processes beside them, and the same
models in PyTorch. Prints how much longer than its fair share a step takes.

    run.py PROGRAM [--python PYTHON] [--neighbours 0,1,2,8] [--threads N] [--rounds N] [--set NAME=VALUE]…

PROGRAM is build/release/bin/millrace-train; PYTHON has torch. The fair share of a step is its time on the quiet machine, times
(busy processes + threads) / cores, at least once its time. Let nothing else run meanwhile. --set adds a variable to Millrace's
environment, such as GOMP_SPINCOUNT=300000, which is libgomp's own default."""
import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PEER = HERE.parent / "train_step" / "torch_peer.py"
TOKENIZER = HERE.parent.parent / "millrace" / "train" / "testdata" / "tokenizer.model"
VOCABULARY, BATCH = 512, 4
# hidden, intermediate, layers, heads, length, steps
CASES = {"tiny": (64, 172, 2, 4, 64, 100), "small": (256, 688, 4, 8, 128, 20)}
FIRST = 3  # the first step that counts


@contextlib.contextmanager
def busy(count):
    """`count` processes that compute and never wait."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def millrace(program, folder, case, threads, environment):
    """Returns the mean seconds of a step: a median would leave out those in which a thread lost its core."""
    hidden, intermediate, layers, heads, length, steps = CASES[case]
    (folder / "job.json").write_text(json.dumps({
        "name": case, "model": {"config": {"hidden_size": hidden, "intermediate_size": intermediate, "num_layers": layers, "num_heads": heads,
                                           "vocab_size": VOCABULARY}},
        "data": {"sources": [{"url": str(folder / "text.jsonl")}], "tokenizer": str(TOKENIZER), "sequence_length": length},
        "train": {"steps": steps + FIRST - 1, "global_batch": BATCH, "micro_batch": BATCH, "threads": threads}}))
    done = subprocess.run([program, folder / "job.json", "--json"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          env=os.environ | environment)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return statistics.mean(line["step_s"] for line in lines if "event" not in line and line["step"] >= FIRST)


def torch(python, case, threads):
    hidden, intermediate, layers, heads, length, steps = CASES[case]
    flags = dict(hidden=hidden, intermediate=intermediate, layers=layers, heads=heads, kv_heads=heads, vocab=VOCABULARY, batch=BATCH,
                 length=length, threads=threads, steps=steps)
    words = [word for name, value in flags.items() for word in ("--" + name.replace("_", "-"), str(value))]
    return json.loads(subprocess.run([python, PEER, *words], check=True, stdout=subprocess.PIPE).stdout)["step_s_mean"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("--python")
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--neighbours", default="0,1,2,8")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--set", action="append", default=[])
    o = p.parse_args()
    cores = len(os.sched_getaffinity(0))
    environment = dict(variable.split("=", 1) for variable in o.set)
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        words = ["".join(draw.choices("abcdefgh", k=4)) for _ in range(1000)]
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": " ".join(draw.choices(words, k=60))}) + "\n" for _ in range(2000)))
        for case in o.cases.split(","):
            programs = {"Millrace": lambda case=case: millrace(o.program, folder, case, o.threads, environment)}
            if o.python:
                programs["PyTorch"] = lambda case=case: torch(o.python, case, o.threads)
            quiet = {}
            for count in map(int, o.neighbours.split(",")):
                with busy(count):
                    rounds = [{name: run() for name, run in programs.items()} for _ in range(o.rounds)]
                for name in programs:
                    seconds = statistics.median(each[name] for each in rounds)
                    fair = quiet.setdefault(name, seconds) * max(1, (count + o.threads) / cores)
                    print(f"{case}, {count} busy: {name} {1e3 * seconds:.2f} ms a step, {seconds / fair:.2f} of its fair share", flush=True)


main()
