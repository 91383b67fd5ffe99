#!/usr/bin/env python3
"""A container of SageMaker, without SageMaker: lays out /opt/ml as it does, in a folder for each host, and starts `train`
where that folder has the same path on all hosts (in a mount namespace of its own).

    sagemaker_container.py --millrace PROGRAM

Losses on two hosts, with files and with pipes, are those of a job on this machine, bit for bit. The variables and the
command line of a script are those that AWS's toolkit (sagemaker-training) makes of the same files, where that is installed.

Exit status 77: there can be no mount namespace here.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

# Steps of some milliseconds: a job takes long enough to be stopped.
STEPS, WAIT_S = 300, 150
NAMESPACE = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
HOSTS = ("127.0.0.1", "127.0.0.2")  # SageMaker's have names: algo-1, algo-2
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1",
        "MILLRACE_S3D_ACCESS_KEY": "test", "MILLRACE_S3D_SECRET_KEY": "test-secret"}
TRAINING = {
    "model": {"config": {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 128}},
    "data.sequence_length": 128,
    "train.steps": STEPS,
    "train.global_batch": 4,
    "train.threads": 1,
    "checkpoint.every_steps": 50,
}
DUMP = """import json, os, sys
with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], f"seen-{os.environ['RANK']}.json"), "w") as file:
    json.dump({"variables": {k: v for k, v in os.environ.items() if k.startswith("SM_")}, "words": sys.argv[1:],
               "folder": os.getcwd(), "ranks": os.environ["WORLD_SIZE"], "helper": __import__("helper").VALUE}, file)
sys.exit(int(dict(zip(sys.argv[1::2], sys.argv[2::2])).get("--status", 0)))
"""


class SageMaker:
    """Lays out what a training job sees, and runs its containers."""

    def __init__(self, millrace, folder, endpoint):
        self.millrace, self.folder, self.ml = millrace, folder, folder / "ml"
        self.ml.mkdir()
        self.environment = os.environ | KEYS | {"AWS_ENDPOINT_URL": endpoint, "MILLRACE_STATE_DIR": str(folder / "state")}
        words = random.Random(1)
        texts = (" ".join(words.choice(("mill", "race", "wheel", "water", "stone")) for _ in range(40)) for _ in range(400))
        self.records = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / "texts.jsonl").write_text(self.records)
        self.run("tokenizer", "train", "--input", folder / "texts.jsonl", "--vocab-size", "300", "--output", folder / "t.model")
        self.training = TRAINING | {"data.tokenizer": str(folder / "t.model")}

    def run(self, *words):
        return subprocess.run([self.millrace, *map(str, words)], env=self.environment, check=True, stdout=subprocess.PIPE,
                              text=True, timeout=WAIT_S).stdout

    def container(self, job, host, hyperparameters, hosts=HOSTS, mode="File", wrapper="None"):
        """The folder that stands for /opt/ml of a host."""
        base = self.folder / job / host
        config = base / "input" / "config"
        if config.exists():  # started again
            return base
        for path in (config, base / "model", base / "output" / "data", base / "checkpoints", base / "input" / "data"):
            path.mkdir(parents=True)
        # SageMaker hands on texts; its SDK makes JSON of each value before.
        (config / "hyperparameters.json").write_text(json.dumps({name: json.dumps(value) for name, value in hyperparameters.items()}))
        (config / "resourceconfig.json").write_text(json.dumps({
            "current_host": host, "current_instance_type": "ml.m5.large", "current_group_name": "homogeneousCluster",
            "hosts": list(hosts), "network_interface_name": "lo",
            "instance_groups": [{"instance_group_name": "homogeneousCluster", "instance_type": "ml.m5.large", "hosts": list(hosts)}]}))
        (config / "inputdataconfig.json").write_text(json.dumps({"train": {
            "ContentType": "application/jsonlines", "TrainingInputMode": mode, "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": wrapper}}))
        if mode == "Pipe":
            pipe = base / "input" / "data" / "train_0"
            os.mkfifo(pipe)
            content = self.records.encode() if wrapper == "None" else record_io(self.records)
            threading.Thread(target=lambda: pipe.write_bytes(content), daemon=True).start()
        else:
            (base / "input" / "data" / "train").mkdir()
            (base / "input" / "data" / "train" / "texts.jsonl").write_text(self.records)
        return base

    def inside(self, base, command):
        """The words of a command that sees the folder of a host as the one that all hosts have."""
        return [*NAMESPACE, "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', base, self.ml, *command]

    def start(self, base):
        log = open(base / "log", "a", encoding="utf-8")
        environment = {name: value for name, value in self.environment.items() if name != "MILLRACE_STATE_DIR"} | {
            "SAGEMAKER_BASE_DIR": str(self.ml), "TRAINING_JOB_NAME": base.parent.name, "MILLRACE_JSON": "true"}
        return subprocess.Popen(self.inside(base, [self.millrace, "sagemaker", "train"]), env=environment, stdout=log, stderr=log)

    def train(self, job, hyperparameters, **options):
        """Runs a training job on all its hosts. Returns their folders and exit statuses."""
        bases = [self.container(job, host, hyperparameters, **options) for host in options.get("hosts", HOSTS)]
        containers = [self.start(base) for base in bases]
        return bases, [container.wait(WAIT_S) for container in containers]


def record_io(text):
    """Wraps three objects with the text in records, as SageMaker does. The last line of an object has no end."""
    lines, framed = text.splitlines(), b""
    for begin in range(0, len(lines), -(-len(lines) // 3)):
        content = "\n".join(lines[begin:begin + -(-len(lines) // 3)]).encode()
        framed += struct.pack("<II", 0xCED7230A, len(content)) + content + bytes(-len(content) % 4)
    return framed


def losses(log):
    lines = (line for line in log.read_text().splitlines() if line.startswith("{"))
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line and "event" not in line}


def rank_0(base):
    return losses(base / "output" / "data" / "millrace" / "jobs" / base.parent.name / "logs" / "rank-0.out")


def reason(base):
    return (base / "output" / "failure").read_text()


def test_trains_on_two_hosts_and_leaves_the_model(sagemaker, wanted):
    bases, statuses = sagemaker.train("nowhere", sagemaker.training)
    assert statuses[0] != 0 and "checkpoint.url" in reason(bases[0]), (bases[0] / "log").read_text()
    bases, statuses = sagemaker.train("two", sagemaker.training | {"checkpoint.url": "s3://runs/two"})
    assert statuses == [0, 0], (bases[0] / "log").read_text()
    assert rank_0(bases[0]) == wanted
    assert (bases[0] / "model" / "model.safetensors").exists() and (bases[0] / "model" / "config.json").exists()
    assert not os.listdir(bases[1] / "model") and not (bases[0] / "output" / "failure").exists()


def test_reads_pipes(sagemaker, wanted):
    bases, statuses = sagemaker.train("pipes", sagemaker.training | {"run.processes_per_node": 2}, hosts=HOSTS[:1], mode="Pipe")
    assert statuses == [0], (bases[0] / "log").read_text()
    assert rank_0(bases[0]) == wanted


def test_reads_pipes_with_record_io(sagemaker, wanted):
    settings = sagemaker.training | {"run.processes_per_node": 2}
    bases, statuses = sagemaker.train("recordio", settings, hosts=HOSTS[:1], mode="Pipe", wrapper="RecordIO")
    assert statuses == [0], (bases[0] / "log").read_text()
    assert rank_0(bases[0]) == wanted


def test_stops_in_time_and_goes_on(sagemaker, wanted):
    base = sagemaker.container("stopped", HOSTS[0], sagemaker.training | {"run.processes_per_node": 2}, hosts=HOSTS[:1])
    log = base / "output" / "data" / "millrace" / "jobs" / "stopped" / "logs" / "rank-0.out"
    container, end = sagemaker.start(base), time.monotonic() + WAIT_S
    while not (log.exists() and max(losses(log), default=0) >= 60):
        assert container.poll() is None and time.monotonic() < end, (base / "log").read_text()
        time.sleep(0.01)
    container.send_signal(signal.SIGTERM)
    container.wait(WAIT_S)
    stopped_at = max(losses(log))
    assert stopped_at < STEPS and not (base / "output" / "failure").exists()
    # Another container gets the checkpoints, and nothing else.
    again = sagemaker.container("again", HOSTS[0], sagemaker.training | {"run.processes_per_node": 2}, hosts=HOSTS[:1])
    (again / "checkpoints").rmdir()
    (base / "checkpoints").rename(again / "checkpoints")
    assert sagemaker.start(again).wait(WAIT_S) == 0, (again / "log").read_text()
    assert rank_0(again) == {step: wanted[step] for step in range(stopped_at + 1, STEPS + 1)}


def test_says_why_it_failed(sagemaker, _):
    for name, hyperparameters, says in (("typo", sagemaker.training | {"trian.steps": 5}, "trian.steps"),
                                        ("absent", sagemaker.training | {"data.tokenizer": "/nowhere/t.model"}, "/nowhere/t.model")):
        bases, statuses = sagemaker.train(name, hyperparameters, hosts=HOSTS[:1])
        assert statuses[0] != 0 and says in reason(bases[0]), (bases[0] / "log").read_text()


    base = sagemaker.folder / "empty"
    base.mkdir()
    assert sagemaker.start(base).wait(WAIT_S) == 2 and "a channel named train" in reason(base)


def archive_script(sagemaker):
    code = sagemaker.folder / "code"
    code.mkdir()
    (code / "dump.py").write_text(DUMP)
    (code / "helper.py").write_text("VALUE = 7\n")
    with tarfile.open(sagemaker.folder / "sourcedir.tar.gz", "w:gz") as archive:
        for name in ("dump.py", "helper.py"):
            archive.add(code / name, arcname=name)
    sagemaker.run("cp", sagemaker.folder / "sourcedir.tar.gz", "s3://code/job/sourcedir.tar.gz")
    return {"sagemaker_program": "dump.py", "sagemaker_submit_directory": "s3://code/job/sourcedir.tar.gz",
            "sagemaker_job_name": "script", "sagemaker_region": "us-east-1", "sagemaker_container_log_level": 20}


def test_runs_a_script_as_the_toolkit_does(sagemaker, _):
    script = archive_script(sagemaker)
    mine = {"lr": 1e-05, "name": "a 'b' c", "flag": True, "k": 3, "sizes": [1, "x"], "map": {"b": 2, "a": None}, "none": None}
    hyperparameters = mine | script | {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}
    bases, statuses = sagemaker.train("script", hyperparameters)
    assert statuses == [0, 0], (bases[0] / "log").read_text()
    for host, base in enumerate(bases):
        for rank in (2 * host, 2 * host + 1):
            seen = json.loads((base / "output" / "data" / f"seen-{rank}.json").read_text())
            assert seen["ranks"] == "4" and seen["helper"] == 7 and seen["folder"] == str(sagemaker.ml / "code")
        toolkit(sagemaker, base, seen)
    bases, statuses = sagemaker.train("failing", hyperparameters | {"status": 3}, hosts=HOSTS[:1])
    assert statuses[0] != 0 and "exit status 3" in reason(bases[0]), (bases[0] / "log").read_text()


def toolkit(sagemaker, base, seen):
    """Compares what a script has seen with what the toolkit makes of the same files."""
    peers = os.environ.get("MILLRACE_PEERS", "")
    if not os.path.isdir(f"{peers}/sagemaker/sagemaker_training"):
        print("left out: sagemaker-training is not here")
        return
    program = """import json
from sagemaker_training import environment
found = environment.Environment()
print(json.dumps({"variables": found.to_env_vars(), "words": found.to_cmd_args()}))"""
    ran = subprocess.run(sagemaker.inside(base, [f"{peers}/venv/bin/python", "-c", program]), check=True, stdout=subprocess.PIPE,
                         text=True, env=os.environ | {"SAGEMAKER_BASE_DIR": str(sagemaker.ml), "PYTHONPATH": f"{peers}/sagemaker", "TRAINING_JOB_NAME": base.parent.name})
    wanted = json.loads(ran.stdout.splitlines()[-1])
    assert seen["words"] == wanted["words"], (seen["words"], wanted["words"])
    # What it says of libraries that only AWS's own containers have, and of its own ways to start a script.
    ours, theirs = (json.loads(variables["variables"].pop("SM_TRAINING_ENV")) for variables in (seen, wanted))
    differing = {name: (value, theirs.get(name)) for name, value in ours.items() if value != theirs.get(name)}
    assert not differing, differing
    assert set(theirs) - set(ours) == {"is_modelparallel_enabled", "is_smddpmprun_installed", "is_smddprun_installed", "topology"}
    assert seen["variables"] == wanted["variables"], set(seen["variables"].items()) ^ set(wanted["variables"].items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    millrace = str(pathlib.Path(arguments.millrace).resolve())
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        server = subprocess.Popen([millrace, "--json", "s3d", "--root", folder / "store", "--no-sync"], env=os.environ | KEYS,
                                  stdout=subprocess.PIPE, text=True)
        stack.callback(server.wait)
        stack.callback(server.terminate)
        if subprocess.run([*NAMESPACE, "true"], check=False).returncode != 0:
            print("skipped: there can be no mount namespace here")
            sys.exit(77)
        sagemaker = SageMaker(millrace, folder, json.loads(server.stdout.readline())["endpoint"])
        sagemaker.run("mb", "s3://code", "s3://runs")
        job = folder / "here.yaml"
        job.write_text('name: here\nrun: {processes_per_node: 2}\n')
        settings = sagemaker.training | {"data.sources": [{"url": str(folder / "texts.jsonl")}]}
        sagemaker.run("--json", "job", "run", job, *(word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")))
        wanted = losses(folder / "state/jobs/here/logs/rank-0.out")
        assert len(wanted) == STEPS
        for test in (test_trains_on_two_hosts_and_leaves_the_model, test_reads_pipes, test_reads_pipes_with_record_io, test_stops_in_time_and_goes_on,
                     test_says_why_it_failed, test_runs_a_script_as_the_toolkit_does):
            begun = time.monotonic()
            test(sagemaker, wanted)
            print(f"ok {test.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
