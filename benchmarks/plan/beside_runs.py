"""Predicted step times and memory beside those of real runs on this machine.

    python3 benchmarks/plan/beside_runs.py [BIN_FOLDER] [--cases REGEX] [--rounds N] [--cpu] [--measured]

Each case is a job file: `millrace job plan` predicts it, then millrace-train runs it for 6 steps. The time is the median
of steps 3 to 6 and of the rounds, the memory the largest resident set of the ranks.

Other work on the machine slows all cases. So the cases of a round take turns, and the table also has each case's time in
times of the first case of its model, from the same round: "predicted" and "measured" of one rank. With --cpu, times are
CPU seconds of all ranks, which hardly depend on other work: the prediction is that of the cores without the bubble, in
which ranks wait and use no CPU.

With --measured, `millrace job machine` measures the machine before each run, and the prediction is for the speed that the
machine has then: the table has the medians of predictions and of runs.
"""
import argparse
import json
import os
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STEPS, FIRST = 6, 3
LLAMA = ("llama", "hidden_size: 512, num_layers: 8, num_heads: 8, num_kv_heads: 8, intermediate_size: 1376, "
                  "vocab_size: 8192")
LARGE = ("llama", "hidden_size: 768, num_layers: 12, num_heads: 12, num_kv_heads: 12, intermediate_size: 2048, "
                  "vocab_size: 16384")
GPT2 = ("gpt2", "hidden_size: 512, num_layers: 8, num_heads: 8, max_position_embeddings: 256, vocab_size: 8192")
BERT = ("bert", "hidden_size: 512, num_layers: 8, num_heads: 8, max_position_embeddings: 256, vocab_size: 8192")
# Attention of long rows, and the same within a window of keys; the third member is the length of a row.
LONG = ("mistral", f"{LLAMA[1]}, max_position_embeddings: 2048, sliding_window: null", 2048)
WINDOW = ("mistral", f"{LLAMA[1]}, max_position_embeddings: 2048, sliding_window: 128", 2048)
LORA = "r: 16, alpha: 32, targets: all-linear"
# name, model, ranks, parallel, lora
CASES = (("Llama 34M", LLAMA, 1, "", ""), ("Llama 34M", LLAMA, 1, "recompute: full", ""),
         ("Llama 34M", LLAMA, 1, "recompute: selective", ""),
         ("Llama 34M", LLAMA, 2, "data: 2", ""), ("Llama 34M", LLAMA, 2, "tensor: 2", ""),
         ("Llama 34M", LLAMA, 2, "tensor: 2, sequence: true", ""),
         ("Llama 34M", LLAMA, 2, "pipeline: 2", ""), ("Llama 34M", LLAMA, 2, "pipeline: 2, schedule: simple", ""),
         ("Llama 34M", LLAMA, 2, "pipeline: 2, schedule: interleaved, virtual_stages: 2", ""),
         ("Llama 34M", LLAMA, 2, "pipeline: 2, schedule: zero_bubble", ""),
         ("Llama 34M", LLAMA, 2, "zero: 1", ""), ("Llama 34M", LLAMA, 2, "zero: 2", ""),
         ("Llama 34M", LLAMA, 2, "zero: 3", ""),
         ("Llama 34M", LLAMA, 1, "", LORA), ("Llama 34M", LLAMA, 1, "", f"{LORA}, dora: true"),
         ("Llama 34M", LLAMA, 1, "", f"{LORA}, dora: true, dropout: 0.05"),
         ("Llama 110M", LARGE, 1, "", ""), ("Llama 110M", LARGE, 2, "tensor: 2", ""),
         ("Llama 110M", LARGE, 2, "pipeline: 2", ""), ("Llama 110M", LARGE, 2, "zero: 3", ""),
         ("Mistral 34M", LONG, 1, "", ""), ("Mistral 34M, window 128", WINDOW, 1, "", ""),
         ("GPT-2 30M", GPT2, 1, "", ""), ("GPT-2 30M", GPT2, 2, "tensor: 2", ""),
         ("BERT 30M", BERT, 1, "", ""), ("BERT 30M", BERT, 2, "data: 2", ""))
JOB = """name: plan
model: {{{model}}}
data: {{sources: [{{url: "{folder}/corpus.jsonl"}}], tokenizer: "{tokenizer}", sequence_length: {length}}}
train: {{steps: {steps}, objective: {objective}, global_batch: {global_batch}, micro_batch: {micro_batch}, threads: {threads},
  parallel: {{{parallel}}}}}
run: {{processes_per_node: {ranks}}}
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def predict(programs: pathlib.Path, job: pathlib.Path, cpu: bool, measured: bool) -> tuple[float, float]:
    """Returns seconds of a step, or CPU seconds, and bytes of the rank that needs most."""
    machine = []
    if measured:
        described = subprocess.run([programs / "millrace", "job", "machine"], capture_output=True, text=True, check=True)
        (job.parent / "here.yaml").write_text(described.stdout, encoding="utf-8")
        machine = ["--machine", job.parent / "here.yaml"]
    done = subprocess.run([programs / "millrace", "--json", "job", "plan", job, *machine], capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(done.stderr)
    plan = json.loads(done.stdout)
    seconds = plan["step"]["seconds"]
    if cpu:
        seconds = (seconds - plan["step"]["bubble_s"]) * os.cpu_count()
    return seconds, max(rank["total"] for rank in plan["memory"])


def cpu_seconds(processes: list[subprocess.Popen]) -> float:
    """Returns what running processes have used."""
    ticks = 0
    for process in processes:
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def run(programs: pathlib.Path, job: pathlib.Path, ranks: int, cpu: bool) -> tuple[float, float]:
    """Returns the same of a run."""
    port, processes = str(free_port()), []
    for rank in range(ranks):
        processes.append(subprocess.Popen(
            [programs / "millrace-train", job, "--json"], text=True,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            # Threads that wait for others of their rank would count as busy.
            env=os.environ | ({"OMP_WAIT_POLICY": "passive"} if cpu else {}) |
            {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}))
    steps, used = [], []
    for line in processes[0].stdout:
        event = json.loads(line)
        if "step_s" in event and event["step"] >= FIRST - 1:
            used.append(cpu_seconds(processes))
            steps.append(event["step_s"])
    largest = 0
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"a rank failed: {job.read_text(encoding='utf-8')}")
        largest = max(largest, 1024 * usage.ru_maxrss)
    if len(steps) < 2:
        return 0, largest
    return (used[-1] - used[0]) / (len(used) - 1) if cpu else statistics.median(steps[1:]), largest


class Case:
    def __init__(self, folder: pathlib.Path, programs: pathlib.Path, case: tuple, cpu: bool, measured: bool = False,
                 steps: int = STEPS, global_batch: int = 16) -> None:
        self.cpu, self.measured = cpu, measured
        self.name, (family, sizes, *length), self.ranks, parallel, lora = case
        length = length[0] if length else 256
        self.what = ", ".join(part for part in (parallel, f"lora: {{{lora}}}" if lora else "") if part) or "one rank"
        self.times: list[float] = []
        self.predictions: list[float] = []
        self.memory = 0.0
        model, extra = f"family: {family}, config: {{{sizes}}}", ""
        if lora:  # adapters need a model to begin with: a first run makes it
            model, extra = f'from: "{folder}/{self.name}"', f"lora: {{{lora}}}\n"
            if not (folder / self.name).exists():
                first = Case(folder, programs, (self.name, (family, sizes), 1, "", ""), cpu)
                job = folder / "first.yaml"
                job.write_text(first.job.read_text(encoding="utf-8").replace(f"steps: {STEPS}", "steps: 1") +
                               f'checkpoint: {{url: "{folder}/{self.name}"}}\n', encoding="utf-8")
                run(programs, job, 1, cpu)
        self.job = folder / f"{abs(hash(case))}.yaml"
        self.job.write_text(JOB.format(model=model, folder=folder, objective="mlm" if family == "bert" else "causal_lm",
                                       steps=steps, length=length, global_batch=max(1, global_batch * 256 // length),
                                       micro_batch=max(1, 512 // length), ranks=self.ranks, parallel=parallel,
                                       tokenizer=folder / "vocab.txt" if family == "bert" else
                                       ROOT / "millrace/train/testdata/tokenizer.model",
                                       threads=max(1, os.cpu_count() // self.ranks)) + extra, encoding="utf-8")
        self.predicted_memory = 0.0

    def run(self, programs: pathlib.Path) -> None:
        predicted, self.predicted_memory = predict(programs, self.job, self.cpu, self.measured)
        self.predictions.append(predicted)
        seconds, memory = run(programs, self.job, self.ranks, self.cpu)
        self.times.append(seconds)
        self.memory = max(self.memory, memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="?", default=ROOT / "build/release/bin", type=pathlib.Path)
    parser.add_argument("--cases", default="", help="regular expression: only cases whose model, layout and adapters match, "
                                                    "and the first of each model")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="compare CPU seconds, on a machine that does other work, too")
    parser.add_argument("--measured", action="store_true", help="predict for the speed that the machine has before each run")
    arguments = parser.parse_args()
    programs = arguments.programs.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        words = random.Random(1)
        lines = [json.dumps({"text": " ".join(f"w{words.randrange(50)}" for _ in range(60))}) for _ in range(3000)]
        (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
        marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # of a vocabulary for BERT
        (folder / "vocab.txt").write_text("\n".join(marks + [f"w{word}" for word in range(50)]) + "\n", encoding="utf-8")
        chosen = [case for case in CASES if re.search(arguments.cases, f"{case[0]}, {case[3]}, {case[4]}")]
        models = {name for name, *_ in chosen}
        bases = [case for case in CASES if case[3:] == ("", "") and case[0] in models and case not in chosen]
        cases = [Case(folder, programs, case, arguments.cpu, arguments.measured) for case in bases + chosen]
        for _ in range(arguments.rounds):
            for case in cases:
                case.run(programs)
                print(f"{case.name}, {case.what}: {case.predictions[-1]:.2f} s, {case.times[-1]:.2f} s", file=sys.stderr, flush=True)
        print("| model | layout | predicted | measured | error | of one rank: predicted | measured | error "
              "| memory predicted | measured | error |\n" + "|---" * 11 + "|")
        for case in cases:
            base = next(other for other in cases if other.name == case.name)
            took, predicted = statistics.median(case.times), statistics.median(case.predictions)
            ratio = statistics.median(mine / its for mine, its in zip(case.times, base.times))
            expected = statistics.median(mine / its for mine, its in zip(case.predictions, base.predictions))
            memory = case.predicted_memory / case.memory - 1
            print(f"| {case.name} | {case.what} | {predicted:.2f} s | {took:.2f} s | {predicted / took - 1:+.0%} "
                  f"| {expected:.2f} | {ratio:.2f} | {expected / ratio - 1:+.0%} "
                  f"| {case.predicted_memory / 1e6:.0f} MB | {case.memory / 1e6:.0f} MB | {memory:+.0%} |")


if __name__ == "__main__":
    main()
