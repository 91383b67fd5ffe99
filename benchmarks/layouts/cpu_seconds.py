"""CPU seconds of a training step of four ranks in each layout, beside those of four data-parallel ranks.

    python3 benchmarks/layouts/cpu_seconds.py [BIN_FOLDER] [--rounds N] [--steps N] [--layouts TEXT] [--micro-batch N]

CPU seconds hardly depend on other load, and start-up cancels out: a run of 8 steps less one of 2. Each rank has one thread.
In a round each layout takes its turn, between two runs of the data-parallel ranks. The user's and the system's shares
are printed beside each ratio, so that one sees what costs: computation, or waiting and copying in the kernel.
"""
import argparse
import json
import os
import pathlib
import random
import resource
import socket
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RANKS = 4
FEW = 2  # steps of the run that is subtracted
LAYOUTS = ("tensor: 4", "tensor: 4, sequence: true", "pipeline: 4", "pipeline: 4, schedule: zero_bubble",
           "zero: 1", "zero: 2", "zero: 3")
JOB = """name: layouts
model:
  config: {{hidden_size: 512, num_layers: 8, num_heads: 8, num_kv_heads: 8, intermediate_size: 1376, vocab_size: 8192}}
data: {{sources: [{{url: "{folder}/corpus.jsonl"}}], tokenizer: "{tokenizer}", sequence_length: 256}}
train: {{steps: {steps}, global_batch: 16, micro_batch: {micro_batch}, threads: 1, parallel: {{{parallel}}}}}
run: {{processes_per_node: {ranks}}}
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def cpu_seconds(program: pathlib.Path, folder: pathlib.Path, steps: int, parallel: str,
                micro_batch: int) -> tuple[float, float]:
    """Returns those of all ranks of one run: the user's and the system's."""
    job = folder / "job.yaml"
    job.write_text(JOB.format(folder=folder, tokenizer=ROOT / "millrace/train/testdata/tokenizer.model", steps=steps,
                              parallel=parallel, micro_batch=micro_batch, ranks=RANKS), encoding="utf-8")
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
    return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="?", default=ROOT / "build/release/bin", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help=f"of the long run; the short one has {FEW}")
    parser.add_argument("--layouts", default="", help="only those that contain this")
    parser.add_argument("--micro-batch", type=int, default=1, help="sequences, in all layouts; at most 4")
    arguments = parser.parse_args()
    layouts = [layout for layout in LAYOUTS if arguments.layouts in layout]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        words = random.Random(1)
        lines = [json.dumps({"text": " ".join(f"w{words.randrange(50)}" for _ in range(60))}) for _ in range(3000)]
        (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")

        def step(parallel: str) -> tuple[float, float]:
            long, short = (cpu_seconds(arguments.programs / "millrace-train", folder, steps, parallel, arguments.micro_batch)
                           for steps in (arguments.steps, FEW))
            return tuple((a - b) / (arguments.steps - FEW) for a, b in zip(long, short))

        ratios: dict[str, list[float]] = {layout: [] for layout in layouts}
        base = step(f"data: {RANKS}")
        for _ in range(arguments.rounds):
            for layout in layouts:
                took, before, base = step(layout), base, step(f"data: {RANKS}")
                ratios[layout].append(2 * sum(took) / (sum(before) + sum(base)))
                print(f"  {layout:40} {ratios[layout][-1]:.2f}: {took[0]:.2f} s + {took[1]:.2f} s of the system, beside "
                      f"{base[0]:.2f} s + {base[1]:.2f} s", flush=True)
        print(f"CPU seconds a step beside data: {RANKS}, median of {arguments.rounds}")
        for layout, each in ratios.items():
            print(f"  {layout:40} {statistics.median(each):.2f}")


if __name__ == "__main__":
    main()
