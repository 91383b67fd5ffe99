#!/usr/bin/env python3
"""`millrace job schema` in jsonschema, a validator that knows nothing of Millrace.

    job_schema.py --millrace PROGRAM

Every job file of the repository, and what `job render` makes of it, satisfies the schema. Wrong files are refused by the
validator and by `job render` alike.
Runs in $MILLRACE_PEERS/venv where that is. Exit status: 0 all the same, 77 a library is missing (named), 1 otherwise.
"""
import argparse
import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]

venv = pathlib.Path(os.environ.get("MILLRACE_PEERS", ROOT / "build" / "peers")) / "venv" / "bin" / "python"
if venv.exists() and pathlib.Path(sys.prefix) != venv.parents[1]:
    os.execv(venv, [str(venv), *sys.argv])
try:
    import jsonschema
    import yaml
except ImportError as error:
    print(f"{error.name} is not installed")
    sys.exit(SKIPPED)


class Loader(yaml.SafeLoader):
    """YAML 1.2's numbers and words: `on` is a text, and 3e-4 a number."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|false)$"), list("tf"))
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?$"), list("-+.0123456789"))

SMALL = {
    "name": "small",
    "data": {"sources": [{"url": "s3://corpus/wiki/*.jsonl"}], "tokenizer": "s3://models/tokenizer.model"},
    "train": {"steps": 100},
}

#: Changes of SMALL that neither may accept: the path of a key, and its value.
WRONG = [
    ("nmae", "x"), ("name", ""), ("data.sources", []), ("data.sources", None), ("data.tokenizer", None),
    ("data.sequence_length", 1), ("data.sequence_length", "long"), ("data.mode", "packed"), ("data.split_long", "maybe"),
    ("data.mlm", {"probability": 0.2}), ("data.response_template", "A:"), ("data.layout", "turns"),
    ("data.cache", {"size": "big"}), ("data.split", {"held_out": 2}), ("data.sources", [{"url": "s3://a/b", "wight": 1}]),
    ("train", {}), ("train.epochs", 2), ("train.max_steps", 5), ("train.precision", "bf8"), ("train.global_batch", 0),
    ("train.optimizer", {"name": "sgd", "betas": [0.9, 0.9]}), ("train.optimizer", {"momentum": 0.9}),
    ("train.optimizer", {"betas": [0.9]}), ("train.optimizer", {"learning_rate": 1}),
    ("train.schedule", {"name": "constant", "min_lr": 0}), ("train.schedule", {"power": 2}),
    ("train.parallel", "best"), ("train.parallel", {"layout": "auto", "tensor": 2}), ("train.parallel", {"zero": 4}),
    ("train.dpo", {"beta": 0.2}), ("train.profile", {}), ("train.profile", {"steps": [1]}),
    ("model", {"from": "s3://models/x", "config": {"num_layers": 2}}), ("model", {"family": "lama"}),
    ("model", {"config": {"rotary_dim": 8}}), ("model", {"config": {"rope_thetta": 1}}),
    ("lora", {"adapter": "s3://a/b", "r": 4}), ("eval", {"held_out": False}),
    ("eval", {"sources": [{"url": "s3://a/b"}], "held_out": True}), ("eval", {"metrics": []}),
    ("checkpoint", {"path": "/mnt"}), ("checkpoint", {"when_busy": "stop"}), ("checkpoint", {"upload_limit": "long"}),
    ("run", {"launcher": "pbs"}), ("run", {"partition": "gpu"}), ("run", {"spares": 1}),
    ("run", {"launcher": "sagemaker", "elastic": {"min": 1}}), ("run", {"mounts": {"s3://a/": "/a"}}),
    ("run", {"command": ["python"]}), ("log", {"histograms": {"every": 5}}), ("log", {"metric_definitions": [{"Name": "x"}]}),
]  # fmt: skip

#: Changes that both accept.
RIGHT = [
    ("train.optimizer", {"name": "lamb", "betas": [0.9, 0.99]}), ("train.schedule", {"name": "wsd", "decay": "linear"}),
    ("train.parallel", "auto"), ("train.parallel", {"partitions": 1, "pipeline": "simple", "microbatches": 8}),
    ("train.compile", "on"), ("train.profile", None), ("model", {"family": "gptj", "config": {"rotary_dim": 16}}),
    ("data.cache", {"path": "/nvme/x", "size": "20GiB"}), ("data.sources", [{"url": "@s3://corpus/list", "weight": 2}]),
    ("run", {"launcher": "slurm", "partition": "gpu", "nodes": 2, "spares": 1, "time": "2h"}),
    ("run", {"launcher": "kubernetes", "image": "x:1", "resources": {"cpu": 8}, "namespace": "a"}),
    ("run", {"health_checks": ["clock"], "hang_timeout": "90s"}), ("run", {"health_checks": False}),
]  # fmt: skip


def job_files():
    """Every job file of the repository: its name, and its text."""
    for path in sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("tests/**/*.yaml")]):
        text = path.read_text(encoding="utf-8")
        try:
            content = yaml.load(text, Loader)
        except yaml.YAMLError:
            continue
        if isinstance(content, dict) and "name" in content and content.keys() & {"data", "run"}:
            yield str(path.relative_to(ROOT)), text
    for guide in sorted(ROOT.glob("docs/guide/*.md")):
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", guide.read_text(encoding="utf-8"), re.S)):
            try:
                content = yaml.load(block, Loader)
            except yaml.YAMLError:
                continue
            if isinstance(content, dict) and "name" in content and content.keys() & {"data", "run"}:
                yield f"{guide.name} block {number}", block


def changed(path, value):
    """SMALL with another value; None removes the key."""
    job = copy.deepcopy(SMALL)
    *sections, last = path.split(".")
    place = job
    for section in sections:
        place = place.setdefault(section, {})
    if value is None:
        place.pop(last, None)
    else:
        place[last] = value
    return job


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    program = parser.parse_args().millrace
    schema = json.loads(subprocess.run([program, "job", "schema"], capture_output=True, check=True).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    failures = []

    def render(text):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            return subprocess.run([program, "job", "render", file.name], capture_output=True, text=True, check=False)

    def refusal(content):
        error = jsonschema.exceptions.best_match(validator.iter_errors(content))
        return error and f"{error.json_path}: {error.message}"

    files = 0
    for name, text in job_files():
        rendered = render(text)
        if rendered.returncode != 0:
            # A file that needs another one beside it, such as a hostfile; or the part of a guide that shows an error.
            print(f"{name}: {rendered.stderr.strip()}")
            continue
        files += 1
        for what, content in ((name, text), (f"{name}, rendered", rendered.stdout)):
            if (error := refusal(yaml.load(content, Loader))) is not None:
                failures.append(f"{what} is refused: {error}")
    if files < 10:
        failures.append(f"only {files} job files were found")
    for path, value in WRONG:
        job = changed(path, value)
        if refusal(job) is None:
            failures.append(f"the schema accepts {path}={value!r}")
        if render(json.dumps(job)).returncode == 0:
            failures.append(f"millrace accepts {path}={value!r}")
    for path, value in RIGHT:
        job = changed(path, value)
        if (error := refusal(job)) is not None:
            failures.append(f"the schema refuses {path}={value!r}: {error}")
        if (rendered := render(json.dumps(job))).returncode != 0:
            failures.append(f"millrace refuses {path}={value!r}: {rendered.stderr}")
        elif (error := refusal(yaml.load(rendered.stdout, Loader))) is not None:
            failures.append(f"the schema refuses what {path}={value!r} is rendered as: {error}")
    print(*failures, sep="\n")
    print(f"{files} job files, {len(WRONG)} wrong and {len(RIGHT)} right ones: {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
