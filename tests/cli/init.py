"""`millrace init` writes job files that `millrace train --dry-run` passes, for each kind of data, model and machine.

    python3 init.py BIN_FOLDER

Exit status 77: there are no training programs.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import small_models  # noqa: E402

NOT_FOUND, USAGE, FAILED = 4, 2, 1
TURNS = [{"role": "user", "content": "what turns?"}, {"role": "assistant", "content": "the wheel"}]
RECORDS = {
    "texts": {"text": "the mill race turns the wheel"},
    "articles": {"id": 3, "body": "the mill race turns the wheel"},
    "chats": {"messages": TURNS},
    "alpaca": {"instruction": "say what turns", "input": "", "output": "the wheel"},
    "questions": {"question": "what turns?", "answer": "the wheel"},
    "pairs": {"chosen": TURNS, "rejected": [TURNS[0], {"role": "assistant", "content": "no"}]},
}
#: Of each kind of data: lines that the job file has.
KEYS = {"texts": ["sequence_length: 512"], "articles": ['template: "{body}"'], "chats": ["layout: chatml", "mode: sft", "lora:"],
        "alpaca": ["layout: alpaca", "lora:"], "questions": ['response: "{answer}"', "mode: sft"],
        "pairs": ["objective: dpo", "layout: chatml", "lora:"]}


class Millrace:
    def __init__(self, programs, folder):
        self.program, self.folder = programs / "millrace", folder
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MILLRACE_", "HF_"))}
        self.env |= {"MILLRACE_STATE_DIR": str(folder / "state"), "HOME": str(folder)}

    def run(self, *arguments, status=0, answers=""):
        ran = subprocess.run([self.program, *map(str, arguments)], env=self.env, cwd=self.folder, input=answers,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert ran.returncode == status, f"{arguments}: exit status {ran.returncode}\n{ran.stdout}"
        return ran.stdout


def lay_out(folder):
    for name, record in RECORDS.items():
        (folder / f"{name}.jsonl").write_text((json.dumps(record) + "\n") * 40, encoding="utf-8")
    for name in ("Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B", "google-bert/bert-base-uncased"):
        small_models.write(folder, name)
    (folder / "tokenizer.model").write_bytes((ROOT / "millrace/train/testdata/tokenizer.model").read_bytes())


def check_data(millrace):
    for name in RECORDS:
        millrace.run("init", f"{name}.yaml", "--data", f"{name}.jsonl", "--model", "Qwen/Qwen3-0.6B", "--machine", "cpu")
        text = (millrace.folder / f"{name}.yaml").read_text()
        missing = [key for key in KEYS[name] if key not in text]
        assert not missing, f"{name}: {missing} not in\n{text}"
        checked = millrace.run("train", f"{name}.yaml", "--dry-run")
        assert "fail" not in checked and "warn" not in checked, checked
    trained = millrace.run("train", "chats.yaml", "--set", "train.steps_this_run=1", "--set", "train.global_batch=1",
                           "--set", "train.epochs=8")
    assert "step 1 of" in trained, trained


def check_models(millrace):
    new = millrace.run("init", "new.yaml", answers="texts.jsonl\n\n\n")  # the usual model and machine
    assert "Which data?" in new and "tokenizer train" in new and "millrace train new.yaml --dry-run" in new, new
    assert "fail" not in millrace.run("train", "new.yaml", "--dry-run")
    millrace.run("init", "llama.yaml", "--data", "chats.jsonl", "--machine", "cpu", answers="meta-llama/Llama-3.2-1B\n")
    assert "layout: llama2" in (millrace.folder / "llama.yaml").read_text()  # by its small vocabulary
    refused = millrace.run("init", "bert.yaml", "--data", "texts.jsonl", "--model", "google-bert/bert-base-uncased", "--machine",
                           "cpu", status=FAILED)
    assert "bert-classifier.yaml" in refused, refused
    refused = millrace.run("init", "p.yaml", "--data", "pairs.jsonl", "--model", "new", "--machine", "cpu", status=USAGE)
    assert "--model" in refused, refused


def check_machines(millrace):
    same = ("--data", "texts.jsonl", "--model", "Qwen/Qwen3-0.6B", "--dry-run", "--machine")
    assert "processes_per_node: 1}" in millrace.run("init", "m.yaml", *same, "gpu")
    eight = millrace.run("init", "m.yaml", *same, "gpu:8")
    assert "processes_per_node: 8}" in eight and "precision: bf16" in eight and "sequence_length: 2048" in eight, eight
    slurm = millrace.run("init", "m.yaml", *same, "slurm:3x8")
    assert "launcher: slurm, nodes: 3, processes_per_node: 8" in slurm and "global_batch: 48" in slurm, slurm
    assert not (millrace.folder / "m.yaml").exists()
    (millrace.folder / "slurm.yaml").write_text(slurm)
    millrace.run("job", "plan", "slurm.yaml", "--machine", "p5.48xlarge")
    for machine in ("tpu", "gpu:0", "slurm:2", "slurm:2x", "gpu:x", "cpu:2"):
        assert "slurm:2x8" in millrace.run("init", "m.yaml", *same, machine, status=USAGE)


def check_errors(millrace):
    before = (millrace.folder / "texts.yaml").read_text()
    assert "--force" in millrace.run("init", "texts.yaml", "--data", "chats.jsonl", "--model", "new", "--machine", "cpu",
                                     status=FAILED)
    assert (millrace.folder / "texts.yaml").read_text() == before
    millrace.run("init", "texts.yaml", "--data", "texts.jsonl", "--model", "new", "--machine", "cpu", "--force", "--name", "other")
    assert "name: other" in (millrace.folder / "texts.yaml").read_text()
    assert "give --data" in millrace.run("init", "none.yaml", status=USAGE)
    millrace.run("init", "none.yaml", "--data", "absent.jsonl", "--model", "new", "--machine", "cpu", status=NOT_FOUND)
    (millrace.folder / "numbers.jsonl").write_text('{"n": 1}\n')
    assert "no field of text" in millrace.run("init", "none.yaml", "--data", "numbers.jsonl", "--model", "new", "--machine", "cpu",
                                              status=FAILED)
    assert not (millrace.folder / "none.yaml").exists()


def main(programs):
    if not (programs / "millrace-train").exists():
        print("millrace-train is not built")
        return 77
    with tempfile.TemporaryDirectory(prefix="millrace-init-") as folder:
        lay_out(pathlib.Path(folder))
        millrace = Millrace(programs, pathlib.Path(folder))
        for check in (check_data, check_models, check_machines, check_errors):
            check(millrace)
            print(f"ok {check.__name__}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
