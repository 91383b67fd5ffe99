"""CPU seconds of a training step of four ranks in each layout, beside those of four data-parallel ranks.

    python3 benchmarks/layouts/cpu_seconds.py [BIN_FOLDER] [ROUNDS]

CPU seconds hardly depend on other load, and start-up cancels out: a run of 8 steps less one of 2. Each rank has one thread.
"""
import json
import os
import pathlib
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RANKS = 4
FEW, MANY = 2, 8
LAYOUTS = ("tensor: 4", "tensor: 4, sequence: true", "pipeline: 4", "pipeline: 4, schedule: zero_bubble",
           "zero: 1", "zero: 2", "zero: 3")
JOB = """name: layouts
model:
  config: {{hidden_size: 512, num_layers: 8, num_heads: 8, num_kv_heads: 8, intermediate_size: 1376, vocab_size: 8192}}
data: {{sources: [{{url: "{folder}/corpus.jsonl"}}], tokenizer: "{tokenizer}", sequence_length: 256}}
train: {{steps: {steps}, global_batch: 16, micro_batch: 1, threads: 1, parallel: {{{parallel}}}}}
run: {{processes_per_node: {ranks}}}
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def cpu_seconds(program: pathlib.Path, folder: pathlib.Path, steps: int, parallel: str) -> float:
    """Returns those of all ranks of one run."""
    job = folder / "job.yaml"
    job.write_text(JOB.format(folder=folder, tokenizer=ROOT / "millrace/train/testdata/tokenizer.model", steps=steps,
                              parallel=parallel, ranks=RANKS), encoding="utf-8")
    port = str(free_port())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ranks = [subprocess.Popen([program, job], stdout=subprocess.DEVNULL,
                              env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
                                                "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                                                "MASTER_PORT": port})
             for rank in range(RANKS)]
    if any([rank.wait() for rank in ranks]):
        raise SystemExit(f"a rank failed with parallel: {{{parallel}}}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    programs = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/bin")
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        words = random.Random(1)
        lines = [json.dumps({"text": " ".join(f"w{words.randrange(50)}" for _ in range(60))}) for _ in range(3000)]
        (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")

        def step(parallel: str) -> float:
            program = programs / "millrace-train"
            return (cpu_seconds(program, folder, MANY, parallel) - cpu_seconds(program, folder, FEW, parallel)) / (MANY - FEW)

        ratios: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
        for _ in range(rounds):
            base = step(f"data: {RANKS}")
            for layout in LAYOUTS:
                ratios[layout].append(step(layout) / base)
        print(f"CPU seconds a step beside data: {RANKS}, median of {rounds}")
        for layout, each in ratios.items():
            print(f"  {layout:40} {statistics.median(each):.2f}")


if __name__ == "__main__":
    main()
