#!/usr/bin/env python3
"""Trains a Llama-2-7B, or some of its layers, with checkpoints, and tells how long steps stand still for them.

    checkpoint_pause.py --millrace-train build/gpu/bin/millrace-train --tokenizer millrace/train/testdata/tokenizer.model
      --folder /scratch --layers 8 [--device cuda]

Weights and tokens are random. Prints one JSON object: pause_ms, the longest time that a step waited for a checkpoint; share, of
all time after the first step that was waited for checkpoints; step_s, the median time of a step. A checkpoint has 14 bytes for each
parameter, and two are kept.
"""
import argparse
import json
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys

SIZES = dict(hidden_size=4096, intermediate_size=11008, num_heads=32, num_kv_heads=32, vocab_size=32000)
TINY = dict(hidden_size=64, intermediate_size=128, num_heads=4, num_kv_heads=4, vocab_size=32000)  # to try the script


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace-train", required=True)
    parser.add_argument("--tokenizer", required=True, help="a vocabulary of at most 32,000 tokens")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    for name, value in (("--layers", 8), ("--steps", 12), ("--every", 4), ("--length", 4096), ("--micro-batches", 4)):
        parser.add_argument(name, type=int, default=value)
    o = parser.parse_args()
    folder = o.folder / "checkpoint-pause"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        draw = random.Random(1)
        count = o.steps * o.micro_batches * o.length + 1
        (folder / "tokens.bin").write_bytes(struct.pack(f"<{count}H", *(draw.randrange(256) for _ in range(count))))
        index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iqqq", count, 0, 0, 1)
        (folder / "tokens.idx").write_bytes(index)
        sizes = ", ".join(f"{key}: {value}" for key, value in (TINY if o.tiny else SIZES).items())
        (folder / "job.yaml").write_text(f"""name: checkpoint-pause
model: {{family: llama, config: {{{sizes}, num_layers: {o.layers}, max_position_embeddings: {o.length}}}}}
data: {{sources: [{{url: "{folder}/tokens"}}], tokenizer: "{o.tokenizer}", sequence_length: {o.length}}}
train:
  steps: {o.steps}
  global_batch: {o.micro_batches}
  micro_batch: 1
  precision: bf16
  device: {o.device}
  parallel: {{recompute: selective}}
checkpoint: {{url: "{folder}/checkpoints", every_steps: {o.every}, keep_last: 2}}
""")
        done = subprocess.run([o.millrace_train, folder / "job.yaml", "--json"], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"millrace-train ended with {done.returncode}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    steps = [line for line in map(json.loads, done.stdout.splitlines()) if "loss" in line and "event" not in line][1:]
    waits = [step["checkpoint_wait_s"] for step in steps[:-1]]  # the last one waits until all is in the store
    print(json.dumps(dict(layers=o.layers, pause_ms=1e3 * max(waits), share=sum(waits) / sum(s["step_s"] for s in steps[:-1]),
                          step_s=statistics.median(step["step_s"] for step in steps))))


main()
