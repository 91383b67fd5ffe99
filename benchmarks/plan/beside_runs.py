"""Predicted step times and memory beside those of real runs on this machine.

    python3 benchmarks/plan/beside_runs.py [BIN_FOLDER] [CASE_PART]

Each case is a job file: `millrace job plan` predicts it, then millrace-train runs it for 6 steps. The time is the median
of steps 3 to 6, the memory the largest resident set of the ranks. CASE_PART: only cases whose name contains it.
"""
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STEPS, FIRST = 6, 3
LLAMA = ("hidden_size: 512, num_layers: 8, num_heads: 8, num_kv_heads: 8, intermediate_size: 1376, "
         "vocab_size: 8192")
LARGE = ("hidden_size: 768, num_layers: 12, num_heads: 12, num_kv_heads: 12, "
         "intermediate_size: 2048, vocab_size: 16384")
GPT2 = "hidden_size: 512, num_layers: 8, num_heads: 8, max_position_embeddings: 256, vocab_size: 8192"
BERT = "hidden_size: 512, num_layers: 8, num_heads: 8, max_position_embeddings: 256, vocab_size: 8192"
CASES = (("Llama 34M", "llama", LLAMA, 1, ""), ("Llama 34M", "llama", LLAMA, 1, "recompute: full"),
         ("Llama 34M", "llama", LLAMA, 2, "data: 2"), ("Llama 34M", "llama", LLAMA, 2, "tensor: 2"),
         ("Llama 34M", "llama", LLAMA, 2, "pipeline: 2"), ("Llama 34M", "llama", LLAMA, 2, "zero: 3"),
         ("Llama 110M", "llama", LARGE, 1, ""), ("Llama 110M", "llama", LARGE, 2, "tensor: 2"),
         ("Llama 110M", "llama", LARGE, 2, "zero: 3"),
         ("GPT-2 30M", "gpt2", GPT2, 1, ""), ("GPT-2 30M", "gpt2", GPT2, 2, "tensor: 2"),
         ("BERT 30M", "bert", BERT, 1, ""), ("BERT 30M", "bert", BERT, 2, "data: 2"))
JOB = """name: plan
model:
  family: {family}
  config: {{{model}}}
data: {{sources: [{{url: "{folder}/corpus.jsonl"}}], tokenizer: "{tokenizer}", sequence_length: 256}}
train: {{steps: {steps}, objective: {objective}, global_batch: 16, micro_batch: 2, threads: {threads}, parallel: {{{parallel}}}}}
run: {{processes_per_node: {ranks}}}
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def predict(programs: pathlib.Path, job: pathlib.Path) -> tuple[float, float]:
    """Returns seconds of a step, and bytes of the rank that needs most."""
    done = subprocess.run([programs / "millrace", "--json", "job", "plan", job], capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(done.stderr)
    plan = json.loads(done.stdout)
    return plan["step"]["seconds"], max(rank["total"] for rank in plan["memory"])


def run(programs: pathlib.Path, job: pathlib.Path, ranks: int, output: pathlib.Path) -> tuple[float, float]:
    """Returns the same of a run."""
    port, processes = str(free_port()), []
    for rank in range(ranks):
        with open(output, "w", encoding="utf-8") if rank == 0 else open(os.devnull, "w", encoding="utf-8") as out:
            processes.append(subprocess.Popen(
                [programs / "millrace-train", job, "--json"], stdout=out,
                env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                                  "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}))
    largest = 0
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"a rank failed: {job.read_text(encoding='utf-8')}")
        largest = max(largest, 1024 * usage.ru_maxrss)
    events = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    steps = [event["step_s"] for event in events if event.get("step", 0) >= FIRST and "step_s" in event]
    return statistics.median(steps), largest


def main() -> None:
    programs = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/bin").resolve()
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    print("| model | layout | predicted | measured | error | memory predicted | measured | error |\n" + "|---" * 8 + "|")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        words = random.Random(1)
        lines = [json.dumps({"text": " ".join(f"w{words.randrange(50)}" for _ in range(60))}) for _ in range(3000)]
        (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
        job = folder / "job.yaml"
        for name, family, model, ranks, parallel in CASES:
            if part not in f"{name} {parallel}":
                continue
            job.write_text(JOB.format(family=family, model=model, folder=folder, objective="mlm" if family == "bert" else "causal_lm", steps=STEPS, ranks=ranks,
                                      tokenizer=ROOT / "millrace/train/testdata/tokenizer.model", parallel=parallel,
                                      threads=max(1, os.cpu_count() // ranks)), encoding="utf-8")
            seconds, memory = predict(programs, job)
            took, used = run(programs, job, ranks, folder / "out.jsonl")
            print(f"| {name} | {parallel or 'one rank'} | {seconds:.2f} s | {took:.2f} s | {seconds / took - 1:+.0%} "
                  f"| {memory / 1e6:.0f} MB | {used / 1e6:.0f} MB | {memory / used - 1:+.0%} |", flush=True)


if __name__ == "__main__":
    main()
