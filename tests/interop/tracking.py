#!/usr/bin/env python3
"""Tests that runs arrive in trackers of experiments: in a server of MLflow, and in the offline files of Weights &
Biases. Their own libraries read both.

    tracking.py (mlflow|wandb|programs) --millrace PROGRAM

Exit status: 0 success, 77 MLflow or W&B is not installed (printed), anything else a failure.
"""
import argparse
import contextlib
import json
import math
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

SKIPPED = 77
PYTHON = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent")) / "tracking/bin/python"
STEPS = 12
PATIENCE = 300  # seconds: the server loads for half a minute on a busy machine

JOB = """name: {name}
model: {{config: {{hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}}}}
data:
  sources: [{{url: "{folder}/train.jsonl"}}]
  tokenizer: "{folder}/tokenizer.model"
  sequence_length: 64
  split: {{held_out: 0.1}}
train: {{steps: {steps}, global_batch: 4, optimizer: {{lr: 0.003}}}}
eval: {{every_steps: 6, samples: 8}}
checkpoint: {{url: "{folder}/{name}", every_steps: 3}}
run: {{processes_per_node: 2, max_restarts: 2}}
log: {{python: "{python}", {log}}}
"""

PROGRAM = """name: {name}
run:
  command: [{python}, -c, "{code}"]
log:
  python: "{python}"
  {log}
  metric_definitions: [{{Name: step, Regex: "step ([0-9]+)"}}, {{Name: "loss:main", Regex: "loss ([0-9.]+)"}}]
"""
CODE = "[print(f'step {i} loss {1/i}', flush=True) for i in range(1, 6)]"


def need(*modules):
    """Restarts with the Python that has the trackers."""
    try:
        for module in modules:
            __import__(module)
    except ImportError as missing:
        if PYTHON.exists() and pathlib.Path(sys.prefix) != PYTHON.parent.parent:
            os.execv(PYTHON, [str(PYTHON), *sys.argv])
        print(f"skipped: {missing}")
        sys.exit(SKIPPED)


class Jobs:
    """Runs jobs in a folder."""

    def __init__(self, millrace, folder):
        self.millrace, self.folder = millrace, folder
        draw = random.Random(3)
        words = ["bucket", "stream", "of", "tokens", "the", "mill", "race", "runs"]
        texts = [" ".join(draw.choices(words, k=60)) for _ in range(300)]
        (folder / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.env = {**os.environ, "MILLRACE_STATE_DIR": str(folder / "state"), "OMP_NUM_THREADS": "1"}
        for name in [name for name in self.env if name.startswith(("WANDB_", "MLFLOW_"))]:
            del self.env[name]
        self.env["NETRC"] = str(folder / "no-netrc")
        subprocess.run([millrace, "tokenizer", "train", "--input", folder / "train.jsonl", "--vocab-size", "300",
                        "--output", folder / "tokenizer.model"], check=True, capture_output=True, timeout=PATIENCE)

    def write(self, name, log, form=JOB, steps=STEPS):
        file = self.folder / f"{name}.yaml"
        file.write_text(form.format(name=name, folder=self.folder, python=sys.executable, steps=steps, log=log,
                                    code=CODE))
        return file

    def start(self, file, *more, env=None):
        return subprocess.Popen([self.millrace, "job", "run", file, *more], env={**self.env, **(env or {})},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, file, *more, env=None, status=0):
        """Runs a job and returns what it printed: its standard output and its standard error."""
        process = self.start(file, *more, env=env)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == status, (process.returncode, out[-2000:], err[-4000:])
        return out, err

    def losses(self, out):
        """Returns the losses of the lines that a job printed with --json, by step."""
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return {line["step"]: line["loss"] for line in lines if "loss" in line and "event" not in line}

    def kill_a_rank(self, name):
        status = json.loads(subprocess.run([self.millrace, "--json", "job", "status", name], env=self.env, check=True,
                                           capture_output=True, text=True).stdout)
        os.kill(status["ranks"][0]["pid"], signal.SIGKILL)


@contextlib.contextmanager
def mlflow_server(folder):
    """Yields the URL of a server of MLflow."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = open(folder / "mlflow.log", "w", encoding="utf-8")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
               "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--default-artifact-root", f"{folder}/artifacts"]
    server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
            except OSError:
                text = (folder / "mlflow.log").read_text()
                assert server.poll() is None and time.monotonic() < end, text[-2000:]
                time.sleep(0.2)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()


def test_mlflow(millrace, folder):
    """A run that is stopped, goes on, loses a rank and ends is one run of MLflow, with all of its steps."""
    need("mlflow")
    from mlflow import MlflowClient
    jobs = Jobs(millrace, folder)
    with mlflow_server(folder) as url:
        client = MlflowClient(url)
        file = jobs.write("tracked", f'mlflow: {{url: "{url}", experiment: "llama & co", tags: {{team: nlp}}}}')
        out, _ = jobs.run(file, "--json", "--set", "train.steps_this_run=4")
        losses = jobs.losses(out)
        experiment = client.get_experiment_by_name("llama & co")
        [first] = client.search_runs([experiment.experiment_id])
        assert first.info.status == "FINISHED" and first.info.run_name == "tracked", first
        assert first.data.params["train.optimizer.lr"] == "0.003", first.data.params
        assert first.data.params["data.sources.0.url"] == f"{folder}/train.jsonl", first.data.params
        assert first.data.tags["team"] == "nlp" and first.data.tags["checkpoint.step"] == "4", first.data.tags

        out, _ = jobs.run(file, "--json")
        losses.update(jobs.losses(out))
        [run] = client.search_runs([experiment.experiment_id])
        assert run.info.run_id == first.info.run_id and run.info.status == "FINISHED", run
        assert run.data.tags["millrace.resumed_from"] == "4" and run.data.tags["checkpoint.step"] == str(STEPS)
        history = client.get_metric_history(run.info.run_id, "train/loss")
        logged = {metric.step: metric.value for metric in history}
        assert len(history) == STEPS
        expect_losses(logged, losses)
        for name, steps in (("eval/loss", [4, 6, 12]), ("speed/tokens_per_s", list(range(1, STEPS + 1)))):
            found = [metric.step for metric in client.get_metric_history(run.info.run_id, name)]
            assert sorted(found) == steps, (name, found)
        assert client.get_metric_history(run.info.run_id, "checkpoint/bytes"), run
        print("ok: a run that goes on is one run of MLflow")

        # A rank is killed: the next attempt goes on with the run.
        file = jobs.write("killed", f'mlflow: {{url: "{url}"}}', steps=4000)
        process = jobs.start(file)
        wait_for(lambda: runs_of(client, "killed") and
                 client.get_metric_history(runs_of(client, "killed")[0].info.run_id, "train/loss"), process)
        jobs.kill_a_rank("killed")
        wait_for(lambda: runs_of(client, "killed")[0].data.tags["millrace.attempt"] == "2", process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
        [run] = runs_of(client, "killed")
        assert run.info.status == "KILLED", run
        print("ok: an attempt that was killed, and the next one, are one run")

        # A parameter that changed, and a server that is not there.
        jobs.run(jobs.write("tracked", f'mlflow: {{url: "{url}", experiment: "llama & co"}}', steps=STEPS + 1))
        run = client.get_run(first.info.run_id)
        assert run.data.params["train.steps"] == str(STEPS), run.data.params
        assert run.data.tags["changed.train.steps"] == str(STEPS + 1), run.data.tags
        print("ok: a parameter that changed is a tag")
    _, err = jobs.run(jobs.write("away", f'mlflow: {{url: "{url}"}}'), "--set", "run.max_restarts=0", status=1)
    assert f"MLflow at {url} does not answer" in err, err
    print("ok: a server that is not there ends a new run before its first step")


def expect_losses(logged, printed):
    """Printed losses have nine digits."""
    assert logged.keys() == printed.keys(), (logged, printed)
    assert all(math.isclose(logged[step], printed[step], rel_tol=1e-8) for step in printed), (logged, printed)


def runs_of(client, name):
    experiment = client.get_experiment_by_name(name)
    return client.search_runs([experiment.experiment_id]) if experiment else []


def wait_for(holds, process):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.1)


def records_in(file):
    """Returns the records of one of W&B's offline files."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore
    store = DataStore()
    store.open_for_scan(str(file))
    records = []
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        records.append(record)
    return records


def summary_of(file):
    """Returns the run, its configuration, its rows by step, and its exit code; -1: there is none."""
    run, config, rows, code = None, {}, {}, -1
    for record in records_in(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = run or record.run
            config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
        elif kind == "config":
            config.update({item.key: json.loads(item.value_json) for item in record.config.update})
        elif kind == "history":
            row = {"".join([item.key, *item.nested_key]): json.loads(item.value_json) for item in record.history.item}
            rows.setdefault(int(row.get("step", -1)), {}).update(row)
        elif kind == "exit":
            code = record.exit.exit_code
    return run, config, rows, code


def offline_files(folder):
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime)


def test_wandb(millrace, folder):
    """All attempts of a run have one id in W&B's offline files, and all of its steps."""
    need("wandb")
    jobs = Jobs(millrace, folder)
    records = folder / "records"
    log = f'wandb: {{project: llama, group: g, tags: [a, b], folder: "{records}"}}'
    file = jobs.write("tracked", log)
    out, err = jobs.run(file, "--json", "--set", "train.steps_this_run=4")
    losses = jobs.losses(out)
    assert "no key of W&B was found" in err, err
    out, _ = jobs.run(file, "--json")
    losses.update(jobs.losses(out))
    files = offline_files(records)
    assert len(files) == 2, files
    rows = {}
    for number, name in enumerate(files):
        run, config, found, code = summary_of(name)
        assert code == 0 and run.project == "llama" and run.display_name == "tracked", (run, code)
        assert run.run_group == "g" and list(run.tags) == ["a", "b"], run
        assert config["train.optimizer.lr"] == 0.003 and config["train.steps"] == STEPS, config
        assert config["resumed_from"] == 4 * number, config
        rows.update(found)
    assert len({summary_of(name)[0].run_id for name in files}) == 1
    expect_losses({step: row["train/loss"] for step, row in rows.items() if step > 0}, losses)
    assert all(row["_step"] == step for step, row in rows.items() if step > 0), rows
    assert {step for step, row in rows.items() if "eval/loss" in row} == {4, 6, 12}, rows
    assert any(row.get("checkpoint/step") == STEPS for row in rows.values()), rows
    print("ok: a run that goes on has one id and all steps")

    # A rank is killed: its file is closed as a failure, and the next attempt has the same id.
    process = jobs.start(jobs.write("killed", f'wandb: {{folder: "{folder}/killed-records"}}', steps=4000))
    killed = folder / "killed-records"
    wait_for(lambda: offline_files(killed) and summary_of(offline_files(killed)[0])[2], process)
    jobs.kill_a_rank("killed")
    wait_for(lambda: len(offline_files(killed)) == 2 and summary_of(offline_files(killed)[1])[2], process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    (one, _, _, failed), (two, _, _, stopped) = map(summary_of, offline_files(killed))
    assert one.run_id == two.run_id and one.project == "killed" and failed == 1 and stopped == 1, (one, failed, stopped)
    print("ok: an attempt that was killed is closed, and the next one goes on")

    # No key leaves the environment, and a Python without wandb is told before the first step.
    secret = "0123456789abcdef0123456789abcdef01234567"
    out, err = jobs.run(jobs.write("secret", log), env={"WANDB_API_KEY": secret, "WANDB_MODE": "offline"})
    kept = [file for file in (folder / "state").rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]
    assert secret not in out + err and not kept, kept
    file = jobs.write("without", log)
    for more in ([], ["--no-check"]):
        _, err = jobs.run(file, "--set", "log.python=/usr/bin/python3", *more, env={"PYTHONPATH": ""}, status=2)
        assert "-m pip install wandb" in err and ("started 2 ranks" in err) == bool(more), err
    print("ok: what is missing is told")


def test_programs(millrace, folder):
    """The metrics of a program of the user's own are in both trackers."""
    need("mlflow", "wandb")
    from mlflow import MlflowClient
    jobs = Jobs(millrace, folder)
    with mlflow_server(folder) as url:
        records = folder / "records"
        file = jobs.write("own", f'mlflow: {{url: "{url}"}}\n  wandb: {{folder: "{records}"}}', form=PROGRAM)
        jobs.run(file)
        client = MlflowClient(url)
        [run] = runs_of(client, "own")
        assert run.info.status == "FINISHED" and run.data.params["run.nodes"] == "1", run
        logged = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "loss_main")}
        assert set(logged) == {1, 2, 3, 4, 5} and math.isclose(logged[4], 0.25), logged
        [name] = offline_files(records)
        run, _, rows, code = summary_of(name)
        assert code == 0 and run.project == "own", (run, code)
        assert {step: row["loss:main"] for step, row in rows.items()} == logged, (rows, logged)
        print("ok: metrics of log.metric_definitions are in MLflow and W&B")

        failing = CODE + "; raise SystemExit(3)"
        text = file.read_text().replace(CODE, failing).replace("name: own", "name: fails")
        (folder / "fails.yaml").write_text(text)
        jobs.run(folder / "fails.yaml", "--set", "run.max_restarts=0", status=1)
        [run] = runs_of(client, "fails")
        assert run.info.status == "FAILED" and "exit status 3" in run.data.tags["millrace.error"], run
        print("ok: a program that fails is a run that failed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("test", choices=["mlflow", "wandb", "programs"])
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        globals()[f"test_{arguments.test}"](arguments.millrace, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
