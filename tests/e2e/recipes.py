"""Runs the recipes of examples/recipes on small models of the same architectures with random weights.

    python3 recipes.py BIN_FOLDER          the test
    python3 recipes.py --data FOLDER       writes FOLDER/hub and FOLDER/training: what the recipes name

Each job file passes the checks of `millrace train --dry-run`, has a plan and, on one machine, makes two steps. The plan of
QLoRA with the published sizes fits a GPU of 8 GB. Where $MILLRACE_PEERS has transformers, the classifier is served.
"""
import gzip
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import small_models  # noqa: E402

RECIPES = ROOT / "examples/recipes"
PEERS = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent"))
MACHINE = "gpu-8gb.yaml"  # describes a machine
ELSEWHERE = {"slurm-two-nodes": "slurm", "kubernetes-two-nodes": "kubernetes"}
WORDS = "the mill race turns a wheel and grain becomes flour while water runs below".split()
#: https://huggingface.co/Qwen/Qwen3-4B-Base/blob/main/config.json
QWEN3_4B = {**small_models.QWEN3, "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936,
            "max_position_embeddings": 32768, "max_window_layers": 36, "hidden_act": "silu"}


def write_data(folder):
    """The models on a hub and the data in a bucket that the recipes name."""
    draw = random.Random(1)

    def words(count):
        return " ".join(draw.choice(WORDS) for _ in range(count))

    def turns(question):
        return [{"role": "user", "content": question}, {"role": "assistant", "content": words(6)}]

    def lines(name, records):
        path = folder / "training" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(record) + "\n" for record in records)
        path.write_bytes(gzip.compress(text.encode(), mtime=0) if name.endswith(".gz") else text.encode())

    lines("chats/1.jsonl", ({"messages": turns(words(5))} for _ in range(300)))
    questions = [words(5) for _ in range(300)]
    lines("preferences/1.jsonl", ({"chosen": turns(each), "rejected": turns(each)} for each in questions))
    lines("stories/1.jsonl", ({"text": words(60)} for _ in range(1500)))
    for name in ("field", "general"):
        lines(f"{name}/1.jsonl.gz", ({"text": words(400)} for _ in range(600)))
    subprocess.run([sys.executable, ROOT / "examples/sst2/sentences.py", folder / "training/SST-2"], check=True)
    for name in small_models.MODELS:
        small_models.write(folder / "hub/models", name)
    (folder / "hub/datasets").mkdir()


class Recipes:
    """The recipes with a local folder in the place of their bucket and of the nodes' disks, and a hub."""

    def __init__(self, programs, folder):
        self.programs, self.folder = programs, folder
        write_data(folder)
        (folder / "home").mkdir()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MILLRACE_", "HF_"))}
        self.env |= {"MILLRACE_STATE_DIR": str(folder / "state"), "HF_TOKEN": "hf_test", "HOME": str(folder / "home"),
                     "XDG_CACHE_HOME": str(folder / "cache")}
        self.hub = subprocess.Popen([programs / "hub_server", folder / "hub", "--listen", "127.0.0.1:0", "--token", "hf_test"],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # it ends with its input
        self.env["HF_ENDPOINT"] = self.hub.stdout.readline().strip()

    def close(self):
        self.hub.stdin.close()
        self.hub.wait()

    def job(self, name):
        """The job file of a recipe, changed as said."""
        text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
        for there, here in (("s3://training", self.folder / "training"), ("/data/", self.folder / "training"),
                            ("/scratch", self.folder / "scratch"), (f"examples/recipes/{MACHINE}", RECIPES / MACHINE)):
            text = text.replace(there, f"{here}/" if there.endswith("/") else str(here))
        path = self.folder / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *arguments, ok=True):
        ran = subprocess.run([self.programs / "millrace", *map(str, arguments)], env=self.env, cwd=self.folder,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert (ran.returncode == 0) == ok, f"{arguments}: exit status {ran.returncode}\n{ran.stdout}"
        return ran.stdout


def check(recipes, name):
    job = recipes.job(name)
    checked = recipes.run("train", job, "--dry-run")
    assert "fail" not in checked and "warn" not in checked, checked
    recipes.run("job", "plan", job)
    if name in ELSEWHERE:
        assert name.split("-")[0] in recipes.run("job", "render", job, "--launcher", ELSEWHERE[name]).lower()
        return
    few = ["train.steps_this_run=2", "train.global_batch=4", "train.micro_batch=1", "eval.samples=4"]
    if "held_out:" in job.read_text(encoding="utf-8"):
        few.append("data.split.held_out=0.2")  # of small data, a small share is nothing
    done = recipes.run("train", job, *(word for each in few for word in ("--set", each)))
    assert "step 2 of" in done, done


def check_plan_of_qlora(recipes):
    """The published sizes fit 8 GB, and the page has the figures."""
    small_models.write_hole(recipes.folder / "Qwen3-4B", QWEN3_4B)
    printed = recipes.run("job", "plan", recipes.job("qwen3-4b-qlora"), "--set", f"model.from={recipes.folder / 'Qwen3-4B'}")
    figures = [line for line in printed.splitlines() if line.startswith("  ") and line.endswith("B")]
    total = next(line for line in printed.splitlines() if line.startswith("  total"))
    page = (ROOT / "docs/recipes/qwen3-4b-qlora.md").read_text(encoding="utf-8")
    missing = [line for line in [*figures, total] if line not in page]
    assert not missing, f"docs/recipes/qwen3-4b-qlora.md lacks {missing} of\n{printed}"


def check_endpoint(recipes):
    """examples/recipes/classify.py answers with the classes of the classifier that `check` trained."""
    python, packages = PEERS / "venv/bin/python", str(PEERS / "trainers")
    env = {**recipes.env, "PYTHONPATH": packages, "HF_HUB_OFFLINE": "1"}
    there = python.exists() and subprocess.run([python, "-c", "import torch, transformers"], env=env, capture_output=True)
    if not there or there.returncode != 0:
        print("left out: the endpoint of the classifier; there is no transformers in MILLRACE_PEERS")
        return
    folder = recipes.folder / "classifier"
    recipes.run("ckpt", "export", recipes.folder / "training/runs/bert-classifier", folder, "--to", "hf")
    recipes.run("cp", "hf://google-bert/bert-base-uncased/vocab.txt", folder / "vocab.txt")
    server = subprocess.Popen([python, RECIPES / "classify.py", folder, "--listen", "127.0.0.1:0"], env=env,
                              stdout=subprocess.PIPE, text=True)
    try:
        request = urllib.request.Request(server.stdout.readline().strip() + "/classify",
                                         json.dumps({"texts": ["a moving film", "dull"]}).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            classes = json.load(answer)["classes"]
        assert [each["label"] in ("LABEL_0", "LABEL_1") for each in classes] == [True, True], classes
        print("ok the endpoint of the classifier")
    finally:
        server.terminate()
        server.wait()


def main(programs):
    assert (programs / "hub_server").exists(), "hub_server is not built"
    with tempfile.TemporaryDirectory(prefix="millrace-recipes-") as folder:
        recipes = Recipes(programs, pathlib.Path(folder))
        try:
            stories = recipes.folder / "training/stories"
            recipes.run("tokenizer", "train", "--input", stories / "1.jsonl", "--vocab-size", 320,
                        "--output", stories / "tokenizer.model")
            for path in sorted(RECIPES.glob("*.yaml")):
                if path.name != MACHINE:
                    check(recipes, path.stem)
                    print(f"ok {path.stem}", flush=True)
            check_plan_of_qlora(recipes)
            check_endpoint(recipes)
        finally:
            recipes.close()


if __name__ == "__main__":
    if sys.argv[1] == "--data":
        write_data(pathlib.Path(sys.argv[2]))
    else:
        main(pathlib.Path(sys.argv[1]).resolve())
