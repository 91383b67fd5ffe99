"""What it costs to watch a run of four ranks: the exchange of their figures, a trace, histograms.

    python3 benchmarks/layouts/observation_cost.py [BIN_FOLDER] [ROUNDS] [WAYS]

WAYS is a regular expression for some of them. Traces cannot be left out of a program: what they cost while they are off is
the number of spans in a step, from a trace, times what a span costs then (span_cost).

In each round, runs that are watched in one way take turns with plain ones. The first 10 steps of a run do not count. Times
are rank 0's medians of a step; CPU seconds are those of all ranks. Each rank has one thread.
"""
import gzip
import json
import os
import pathlib
import random
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RANKS, FIRST, STEPS = 4, 11, 40
PLAIN = "nothing"
TRACE = "trace"
WAYS = (PLAIN, "exchange once a second", TRACE, "histograms every 10 steps", "histograms after each step")
JOB = """name: watched
model:
  config: {{hidden_size: 128, num_layers: 4, num_heads: 4, num_kv_heads: 4, intermediate_size: 344, vocab_size: 8192}}
data: {{sources: [{{url: "{folder}/corpus.jsonl"}}], tokenizer: "{tokenizer}", sequence_length: 128}}
train: {{steps: {steps}, global_batch: 8, micro_batch: 1, threads: 1{profile}}}
run: {{processes_per_node: {ranks}}}
log: {{url: "{folder}/log"{histograms}}}
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(program: pathlib.Path, folder: pathlib.Path, way: str) -> tuple[float, float]:
    """Returns the median time of a step and the CPU seconds of all ranks."""
    profile = f", profile: {{steps: [{FIRST}, {STEPS}]}}" if way == "trace" else ""
    every = 10 if "10 steps" in way else 1
    histograms = f', tensorboard: "{folder}/tb", histograms: {{every_steps: {every}}}' if way.startswith("hist") else ""
    job = folder / "job.yaml"
    job.write_text(JOB.format(folder=folder, tokenizer=ROOT / "millrace/train/testdata/tokenizer.model", steps=STEPS,
                              ranks=RANKS, profile=profile, histograms=histograms), encoding="utf-8")
    environment = dict(os.environ)
    environment.pop("MILLRACE_HISTORY_FILE", None)
    if way.startswith("exchange"):
        environment["MILLRACE_HISTORY_FILE"] = str(folder / "history.json")
    port = str(free_port())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ranks = [subprocess.Popen([program, job, "--json"], stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, text=True,
                              env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
                                                 "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                                                 "MASTER_PORT": port})
             for rank in range(RANKS)]
    output = ranks[0].communicate()[0]
    if any([rank.wait() for rank in ranks]):
        raise SystemExit(f"a rank failed with {way}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [json.loads(line) for line in output.splitlines()]
    steps = [line["step_s"] for line in lines if "event" not in line and line["step"] >= FIRST]
    return (statistics.median(steps),
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def off_trace(programs: pathlib.Path, folder: pathlib.Path) -> str:
    """Says what spans cost while nothing is recorded."""
    cpu = run(programs / "millrace-train", folder, TRACE)[1]
    trace = json.loads(gzip.decompress((folder / f"log/traces/steps-{FIRST}-{STEPS}.json.gz").read_bytes()))
    spans = sum(event["ph"] == "X" for event in trace["traceEvents"]) / RANKS / (STEPS - FIRST + 1)
    cost = json.loads(subprocess.run([programs / "span_cost"], check=True, stdout=subprocess.PIPE).stdout)["span_ns"]
    step_s = cpu / RANKS / STEPS  # with the start of the run, so the share is a little too small
    return (f"a trace that is off: {spans:.0f} spans a step of a rank, {cost:.1f} ns each: {spans * cost / 1e3:.1f} us of "
            f"{1e3 * step_s:.1f} ms of CPU, {spans * cost * 1e-9 / step_s:.4%}")


def main() -> None:
    programs = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/bin")
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        words = random.Random(1)
        with (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
            for _ in range(2000):
                text = " ".join("".join(words.choices("abcdefghij", k=words.randint(2, 8))) for _ in range(60))
                corpus.write(json.dumps({"text": text}) + "\n")
        run(programs / "millrace-train", folder, PLAIN)  # makes the index of the data
        print("| watched by | step beside plain | CPU seconds beside plain |\n|---|---|---|")
        wanted = sys.argv[3] if len(sys.argv) > 3 else ""
        for way in WAYS:
            if not re.search(wanted, way):
                continue
            pairs = []
            for _ in range(rounds):
                plain, watched = (run(programs / "millrace-train", folder, kind) for kind in (PLAIN, way))
                pairs.append((watched[0] / plain[0], watched[1] / plain[1]))
            cells = [f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})" for values in zip(*pairs)]
            print(f"| {way} | {cells[0]} | {cells[1]} |", flush=True)
        print(off_trace(programs, folder))


if __name__ == "__main__":
    main()
