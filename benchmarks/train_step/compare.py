#!/usr/bin/env python3
"""Runs train_step and its PyTorch peer in turns, and prints the ratios of their speeds: medians over the rounds.

    compare.py PROGRAM PYTHON [--rounds N] [--cases NAME,…] [--forms compiled,eager] [--threads N] [--steps N]

PROGRAM is build/release/bin/train_step; PYTHON has torch. Let nothing else run meanwhile. Where other work runs, take one
thread and compare the tokens per CPU second: threads that wait for one another use CPU, too."""
import argparse
import json
import os
import statistics
import subprocess

LLAMA = []
GPT2 = "--family gpt2 --hidden 768 --intermediate 3072 --layers 12 --heads 12 --vocab 50257".split()
CASES = {"llama-58M": LLAMA, "llama-58M-bf16": LLAMA + ["--bf16"], "gpt2-124M": GPT2, "gpt2-124M-bf16": GPT2 + ["--bf16"],
         "llama-58M-lora": LLAMA + ["--lora", "16"]}
# Beside Millrace with other options.
OWN = {"llama-58M-qlora": (LLAMA + ["--lora", "16", "--nf4"], LLAMA + ["--lora", "16"])}
PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_peer.py")


def run(command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("python")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--forms", default="compiled,eager")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--steps", type=int, default=5)
    o = p.parse_args()
    for case in o.cases.split(","):
        arguments, *own = OWN.get(case) or [CASES[case]]
        both = ["--threads", str(o.threads), "--steps", str(o.steps)]
        forms = {form: [o.python, PEER, *arguments, *both] + ["--compile"] * (form == "compiled")
                 for form in o.forms.split(",")}
        if own:
            forms = {"own": [o.program, *own[0], *both]}
        ratios = {form: [] for form in forms}
        for _ in range(o.rounds):
            ours = run([o.program, *arguments, *both])
            for form, command in forms.items():
                ratios[form].append((ours, run(command)))
        for form, pairs in ratios.items():
            speed = statistics.median(a["tokens_per_s"] / b["tokens_per_s"] for a, b in pairs)
            cpu = statistics.median(b["cpu_s"] / a["cpu_s"] for a, b in pairs)
            memory = statistics.median(a["peak_mib"] / b["peak_mib"] for a, b in pairs)
            ours, peer = pairs[-1]
            print(f"{case} / {peer['program']}: {speed:.2f} in tokens/s, {cpu:.2f} in tokens per CPU second, "
                  f"{memory:.2f} of its peak memory ({ours['tokens_per_s']:.0f} tokens/s, {ours['gflops']:.0f} GFLOP/s, "
                  f"{ours['peak_mib']} MiB)", flush=True)


main()
