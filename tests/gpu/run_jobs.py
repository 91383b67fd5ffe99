#!/usr/bin/env python3
"""Trains small models on the CPU and on an NVIDIA GPU, and compares what they learn. Serves one of them on both.

    run_jobs.py BIN_FOLDER [--only REGEX] [--device cuda] [--workers 5] [--report FILE]

BIN_FOLDER has millrace-train and millrace-serve, built for GPUs (docs/guide/gpu.md). Needs Python's own library only, no
network, and one GPU, which all ranks share. Takes about two minutes on 16 cores.

| test    | what must hold                                                                                   |
|---------|--------------------------------------------------------------------------------------------------|
| compare | each loss of the run on the GPU is that of the same run on the CPU, within the case's tolerance  |
| resume  | a run that is killed and started again has the losses of an undisturbed one, bit for bit         |
| cross   | a checkpoint of one device goes on on the other                                                  |
| serve   | greedy answers are the same text on both                                                         |
| memory  | a model that is too large for the GPU is an error that says how much is missing and what to do   |

Exit status: 0 all hold, 1 one does not, 77 there is no GPU, or the programs are not built for one.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

TOKENIZER = pathlib.Path(__file__).parents[2] / "millrace/train/testdata/tokenizer.model"
STEPS = 10
TIMEOUT = 400  # seconds of a run; the slowest takes a small part of it
PROMPTS = ["the mill", "water turns the", "grain flour bread", "stone"]

LLAMA = dict(family="llama", hidden_size=64, num_layers=4, num_heads=4, num_kv_heads=2, intermediate_size=96)
GPT2 = dict(family="gpt2", hidden_size=64, num_layers=4, num_heads=4, intermediate_size=128)
BERT = dict(family="bert", hidden_size=64, num_layers=2, num_heads=4, intermediate_size=96)
PLAIN_GPT2 = GPT2 | dict(embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)

# Of a loss, relative. float32 rounds to 6e-8, and both sides add in other orders; AdamW makes the differences of small
# gradients larger. bfloat16 has 8 bits, TF32 and float16 have 11. FP8 has 4, but in products of numbers alone, whose errors
# average out.
F32, TF32, HALF = 1e-4, 1e-2, 3e-2


def case(model, tolerance=F32, ranks=1, parallel="{}", precision="f32", compare_precision=None, data="", train="",
         length=64, records="corpus.jsonl", tokenizer="tokenizer.model", lora="", falls=0.9, fp8="current"):
    """A job, and how close its losses on both devices are. compare_precision: of the CPU's run, where that has no other.
    falls: the most that the last loss is, divided by the first. lora: the job adapts a model that was trained before."""
    return dict(model=model, tolerance=tolerance, ranks=ranks, parallel=parallel, precision=precision,
                compare_precision=compare_precision or precision, data=data, train=train, length=length,
                records=records, tokenizer=tokenizer, lora=lora, falls=falls, fp8=fp8)


CASES = {
    "llama": case(LLAMA),
    "llama-bf16": case(LLAMA, HALF, precision="bf16"),
    "llama-tf32": case(LLAMA, TF32, precision="tf32", compare_precision="f32"),
    "llama-fp16": case(LLAMA, HALF, precision="fp16", compare_precision="f32"),
    "llama-fp8": case(LLAMA, HALF, precision="fp8", compare_precision="bf16"),
    "llama-fp8-delayed": case(LLAMA, HALF, precision="fp8", compare_precision="bf16", fp8="delayed"),
    "llama-fp8-block": case(LLAMA, HALF, precision="fp8", compare_precision="bf16", fp8="block"),
    "llama-documents": case(LLAMA, data="boundaries: true"),
    "llama-recompute": case(LLAMA, parallel="{recompute: full}"),
    "gpt2": case(PLAIN_GPT2),
    "gpt2-bf16": case(PLAIN_GPT2, HALF, precision="bf16"),
    "gpt2-dropout": case(GPT2),
    "data": case(LLAMA, ranks=2),
    "data-bf16": case(PLAIN_GPT2, HALF, ranks=2, precision="bf16"),
    "zero2": case(LLAMA, ranks=2, parallel="{zero: 2}"),
    "zero2-bf16": case(LLAMA, HALF, ranks=2, parallel="{zero: 2}", precision="bf16"),
    "zero3": case(PLAIN_GPT2, ranks=2, parallel="{zero: 3}"),
    "tensor": case(LLAMA, ranks=2, parallel="{tensor: 2}"),
    "tensor-sequence": case(PLAIN_GPT2, ranks=2, parallel="{tensor: 2, sequence: true}"),
    "pipeline": case(LLAMA, ranks=2, parallel="{pipeline: 2}"),
    "pipeline-zero-bubble": case(PLAIN_GPT2, ranks=2, parallel="{pipeline: 2, schedule: zero_bubble}"),
    "lamb": case(LLAMA, train="optimizer: {name: lamb, lr: 3.0e-2}"),
    "long-bf16": case(LLAMA, HALF, precision="bf16", length=512),  # attention's gradients are sums over blocks of tokens
    "long-documents-bf16": case(LLAMA, HALF, precision="bf16", length=512, data="boundaries: true"),
    "bert": case(BERT, tokenizer="vocab.txt", train="objective: mlm", falls=2),
    "bert-bf16": case(BERT, HALF, tokenizer="vocab.txt", train="objective: mlm", precision="bf16", falls=2),
    "bert-tensor": case(BERT, tokenizer="vocab.txt", train="objective: mlm", falls=2, ranks=2, parallel="{tensor: 2}"),
    "classes": case(BERT, tokenizer="vocab.txt", train="objective: classification", records="classes.tsv", falls=2),
    "lora": case(LLAMA, lora="{r: 4, alpha: 8, dropout: 0.1}", falls=1.1),
    "lora-nf4": case(LLAMA, 1e-3, lora="{r: 4, alpha: 8, base: nf4}", falls=1.1),
    "dora": case(LLAMA, lora="{r: 4, alpha: 8, dora: true}", falls=1.1),
    "dpo": case(LLAMA, lora="{r: 4, alpha: 8}", train="objective: dpo", records="pairs.jsonl", falls=1.1),
    "noise": case(LLAMA, train="neftune_alpha: 5"),
    "sgd": case(LLAMA, train="optimizer: {name: sgd, lr: 5.0e-2, momentum: 0.9}"),
}


WORDS = "the mill race turns water wheel stone grain flour bread".split()


def sentences(draw, words):
    """Words with some order in them, so that a model has something to learn."""
    word, text = draw.randrange(10), ""
    for place in range(words):
        text += WORDS[word] + (" . " if place % 7 == 6 else " ")
        word = (word * 3 + draw.randrange(2)) % 10
    return text


def write_records(folder):
    draw = random.Random(5)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS, ""]))
    with (folder / "corpus.jsonl").open("w") as lines:
        for _ in range(400):
            lines.write(json.dumps({"text": sentences(draw, draw.randrange(10, 50))}) + "\n")
    with (folder / "pairs.jsonl").open("w") as lines:
        for _ in range(200):
            pair = {"prompt": sentences(draw, 4), "chosen": sentences(draw, 8), "rejected": "stone " * draw.randrange(3, 9)}
            lines.write(json.dumps(pair) + "\n")
    with (folder / "classes.tsv").open("w") as lines:
        lines.write("sentence\tlabel\n")
        for _ in range(200):
            bread = draw.randrange(2)
            lines.write(f"{sentences(draw, 3)}{'bread' if bread else 'water'} {sentences(draw, 2)}\t{bread}\n")


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


class Failed(Exception):
    pass


class Runs:
    """Starts jobs in a folder of their own."""

    def __init__(self, programs, folder):
        self.programs, self.folder, self.lock, self.has_base = programs, folder, threading.Lock(), False
        write_records(folder)
        shutil.copy(TOKENIZER, folder / "tokenizer.model")
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "MILLRACE_"))}
        self.env |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}

    def job(self, name, of, device, checkpoint=None):
        sizes = ", ".join(f"{key}: {value}" for key, value in of["model"].items() if key != "family")
        model = f"family: {of['model']['family']}, config: {{{sizes}}}" if not of["lora"] else f"from: {self.base()}"
        precision = of["compare_precision"] if device == "cpu" else of["precision"]
        optimizer = "" if "optimizer" in of["train"] else "optimizer: {lr: 5.0e-3}"
        text = f"""
name: {name}
model: {{{model}}}
{"lora: " + of["lora"] if of["lora"] else ""}
data:
  sources: [{{url: "{self.folder}/{of["records"]}"}}]
  tokenizer: {self.folder}/{of["tokenizer"]}
  sequence_length: {of["length"]}
  {of["data"]}
train:
  steps: {STEPS}
  global_batch: 16
  micro_batch: 2
  precision: {precision}
  {"fp8_scaling: " + of["fp8"] if precision == "fp8" else ""}
  device: {device}
  {of["train"]}
  {optimizer}
  schedule: {{name: cosine, warmup_steps: 2, min_lr: 1.0e-4}}
  parallel: {of["parallel"]}
  threads: 1
eval: {{every_steps: 5, samples: 20, sources: [{{url: "{self.folder}/{of["records"]}"}}]}}
checkpoint: {{url: "{self.folder}/runs/{checkpoint or name}", every_steps: 3, keep_last: 9}}
run: {{processes_per_node: {of["ranks"]}}}
"""
        path = self.folder / f"{name}.yaml"
        path.write_text(text)
        return path

    def base(self):
        """The run of a model that others adapt."""
        with self.lock:
            if not self.has_base:
                self.train(self.job("base", case(LLAMA), "cpu"), 1)
                self.has_base = True
        return self.folder / "runs/base"

    def start(self, job, ranks, *options):
        """Starts the ranks. Rank 0's output is a pipe."""
        port, processes = free_port(), []
        for rank in range(ranks):
            env = self.env | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                              "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            with open(f"{job}.{rank}.err", "a") as errors:
                processes.append(subprocess.Popen(
                    [self.programs / "millrace-train", job, "--json", *options], env=env, stderr=errors, text=True,
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))
        return processes

    def train(self, job, ranks, *options, kill_after=None):
        """Runs a job to its end, or kills its ranks after a step. Returns its plan and {step: loss as it was printed}.
        The loss of an evaluation after a step is that of step + 0.5."""
        processes = self.start(job, ranks, *options)
        plan, losses, times = {}, {}, []
        deadline = time.monotonic() + TIMEOUT
        timer = concurrent.futures.ThreadPoolExecutor(1)
        waiting = timer.submit(self.read, processes[0].stdout, plan, losses, times, kill_after)
        try:
            waiting.result(timeout=deadline - time.monotonic())
            if kill_after is not None:
                for process in processes:
                    process.send_signal(signal.SIGKILL)
            statuses = [process.wait(timeout=max(1, deadline - time.monotonic())) for process in processes]
        except (concurrent.futures.TimeoutError, subprocess.TimeoutExpired):
            raise Failed(f"{job.stem}: does not end\n{self.errors(job, ranks)}") from None
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            timer.shutdown()
        if kill_after is None and any(statuses):
            raise Failed(f"{job.stem}: status {statuses}\n{self.errors(job, ranks)}")
        return plan, losses, times

    @staticmethod
    def read(lines, plan, losses, times, kill_after):
        for line in lines:
            event = json.loads(line)
            if event.get("event") == "plan":
                plan |= event
            if event.get("event") == "eval":
                losses[event["step"] + 0.5] = event["loss"]  # behind the step's
            if "event" not in event:
                losses[event["step"]] = event["loss"]
                times.append(event["step_s"])
                if event["step"] == kill_after:
                    return

    def errors(self, job, ranks):
        return "\n".join(f"  rank {rank}: " + line for rank in range(ranks)
                         for line in pathlib.Path(f"{job}.{rank}.err").read_text().splitlines()[-6:])

    def answers(self, model, device):
        """Returns greedy completions of the prompts."""
        port_file = self.folder / f"serve-{device}.port"
        port_file.unlink(missing_ok=True)
        log = self.folder / f"serve-{device}.err"
        with log.open("w") as errors:
            server = subprocess.Popen(
                [self.programs / "millrace-serve", model, "--device", device, "--listen", "127.0.0.1:0", "--port-file",
                 port_file, "--json"], env=self.env, stderr=errors, stdout=subprocess.PIPE, text=True)
        try:
            ready = json.loads(server.stdout.readline() or "{}")
            if not ready.get("device", "").startswith(device):
                raise Failed(f"serve: computes on {ready.get('device')}, not on {device}\n{log.read_text()[-1000:]}")
            texts = []
            for prompt in PROMPTS:
                body = json.dumps({"prompt": prompt, "max_tokens": 24, "temperature": 0}).encode()
                request = urllib.request.Request(f"http://{ready['address']}/v1/completions", body,
                                                 {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as answer:
                    texts.append(json.load(answer)["choices"][0]["text"])
            return texts
        finally:
            server.terminate()
            server.wait(timeout=30)


def number(loss):
    return math.nan if loss is None else loss


def furthest(these, those):
    """The largest relative difference of two runs' losses."""
    if sorted(these) != sorted(those):
        raise Failed(f"steps {sorted(these)} and {sorted(those)}")
    differences = [abs(number(these[step]) - number(those[step])) / abs(number(those[step])) for step in these]
    return math.inf if any(math.isnan(each) for each in differences) else max(differences)


def compare(runs, name, of, device):
    _, expected, _ = runs.train(runs.job(f"{name}-cpu", of, "cpu"), of["ranks"])
    plan, losses, times = runs.train(runs.job(f"{name}-{device}-run", of, device), of["ranks"])
    if not plan.get("device", "").startswith(device):
        raise Failed(f"computes on {plan.get('device')}, not on {device}")
    if not number(losses[STEPS]) < of["falls"] * number(losses[1]):
        raise Failed(f"learns nothing: {losses}")
    far = furthest(losses, expected)
    if not far <= of["tolerance"]:
        raise Failed(f"losses differ by {far:.1e}, more than {of['tolerance']:.0e}:\n  {losses}\n  {expected}")
    return f"differs by {far:.1e}, step {1e3 * sorted(times)[len(times) // 2]:.1f} ms"


def resume(runs, name, of, device):
    _, whole, _ = runs.train(runs.job(f"{name}-{device}-whole", of, device), of["ranks"])
    job = runs.job(f"{name}-{device}-killed", of, device)
    runs.train(job, of["ranks"], kill_after=7)  # behind the save of step 6, and as far from the end as may be
    plan, rest, _ = runs.train(job, of["ranks"])
    if not 0 < plan["resumed_from"] < STEPS:
        raise Failed(f"goes on after step {plan['resumed_from']}")
    for step, loss in rest.items():
        if loss != whole[step]:
            raise Failed(f"step {step}: loss {loss} in place of {whole[step]}, from step {plan['resumed_from']} on")
    return f"the same bits from step {plan['resumed_from'] + 1} on"


def cross(runs, name, of, device):
    _, whole, _ = runs.train(runs.job(f"{name}-cross-whole", of, "cpu"), of["ranks"])
    told = []
    for turn, (first, then) in enumerate((("cpu", device), (device, "cpu"))):
        where = f"{name}-cross{turn}"
        runs.train(runs.job(f"{where}-1", of, first, where), of["ranks"], "--set", "train.steps_this_run=5")
        plan, rest, _ = runs.train(runs.job(f"{where}-2", of, then, where), of["ranks"])
        if plan["resumed_from"] != 5:
            raise Failed(f"{first} to {then}: goes on after step {plan['resumed_from']}")
        far = furthest(rest, {step: whole[step] for step in rest})
        if not far <= of["tolerance"]:
            raise Failed(f"{first} to {then}: losses differ by {far:.1e}")
        told.append(f"{first} to {then} {far:.1e}")
    return "differs by " + ", ".join(told)


def serve(runs, name, of, device):
    runs.train(runs.job(f"{name}-served", of, "cpu"), of["ranks"], "--set", "train.steps=60")  # so that it says words
    model = runs.folder / "runs" / f"{name}-served"
    expected, got = runs.answers(model, "cpu"), runs.answers(model, device)
    if got != expected:
        raise Failed(f"answers {got}\n  in place of {expected}")
    return f"the same {len(got)} answers: {got[0]!r}"


def memory(runs, name, of, device):
    if device != "cuda":
        return "only on a GPU"
    job = runs.job(f"{name}-large", of | dict(model=LLAMA | dict(hidden_size=2048, intermediate_size=5632)), device)
    limited = dict(PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.002")
    ended = subprocess.run([runs.programs / "millrace-train", job], env=runs.env | limited, capture_output=True, text=True,
                           timeout=TIMEOUT)
    if ended.returncode != 1 or not all(part in ended.stderr for part in (
            "out of GPU memory", "were asked for", "are free", "train.micro_batch", "train.parallel.recompute", "lora")):
        raise Failed(f"status {ended.returncode}: {ended.stderr[-1000:]}")
    return ended.stderr.strip().splitlines()[-1]


def tests():
    yield from (("compare", compare, name) for name in CASES)
    yield from (("resume", resume, name) for name in ("llama", "zero2-bf16", "llama-fp16", "llama-fp8", "llama-fp8-delayed",
                                                      "llama-fp8-block", "long-bf16",
                                                      "long-documents-bf16", "lora", "bert-bf16"))
    yield from (("cross", cross, name) for name in ("llama", "zero2", "lora"))
    yield from (("serve", serve, name) for name in ("llama", "gpt2"))
    yield "memory", memory, "llama"


def has_gpu(programs, folder, device):
    """Asks for a model that does not exist: without a GPU, the device is what fails."""
    asked = subprocess.run([programs / "millrace-serve", folder / "none", "--device", device, "--listen", "127.0.0.1:0"],
                           capture_output=True, text=True, timeout=TIMEOUT)
    return f"device {device}" not in asked.stderr, asked.stderr.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--only", default="", help="regular expression over names such as compare/llama-bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=5, help="tests at a time")
    parser.add_argument("--report", type=pathlib.Path, help="where the results go as JSON")
    given = parser.parse_args()
    programs = given.programs.resolve()
    started, results = time.monotonic(), {}
    with tempfile.TemporaryDirectory(prefix="millrace-gpu-") as folder:
        runs = Runs(programs, pathlib.Path(folder))
        there, why = has_gpu(programs, runs.folder, given.device)
        if not there:
            print(f"not run: {why}")
            return 77

        def run(kind, test, name):
            begin = time.monotonic()
            try:
                return True, test(runs, name, CASES[name], given.device), time.monotonic() - begin
            except Exception as error:  # of any test: the others still count
                text = str(error) if isinstance(error, Failed) else repr(error)
                if "fp8 needs a GPU" in text or "block scaling needs" in text:
                    return True, "not run: the GPU has no such products", time.monotonic() - begin
                return False, text, time.monotonic() - begin

        with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:
            chosen = {pool.submit(run, *each): f"{each[0]}/{each[2]}" for each in tests()
                      if re.search(given.only, f"{each[0]}/{each[2]}")}
            for done in concurrent.futures.as_completed(chosen):
                holds, text, seconds = done.result()
                results[chosen[done]] = dict(holds=holds, text=text, seconds=round(seconds, 1))
                print(f"{'ok    ' if holds else 'FAILED'} {chosen[done]:34} {seconds:5.1f} s  {text}", flush=True)
    if given.report:
        given.report.write_text(json.dumps(results, indent=1, sort_keys=True))
    failed = sorted(name for name, result in results.items() if not result["holds"])
    print(f"{len(results) - len(failed)} of {len(results)} hold, in {time.monotonic() - started:.0f} s"
          + (f"; not: {', '.join(failed)}" if failed else ""))
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
