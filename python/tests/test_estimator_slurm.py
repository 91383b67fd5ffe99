"""millrace.Estimator on a real Slurm of two nodes on this machine: the same losses as on one machine, and the same calls."""

import json
import os
import sys
from pathlib import Path

import pytest

from conftest import BIN

import millrace

sys.path.append(str(Path(__file__).parents[2] / "tests" / "jobs"))
from slurm_cluster import SlurmCluster, missing  # noqa: E402

if missing():
    pytest.skip(missing(), allow_module_level=True)
if not os.path.exists(os.path.join(BIN, "millrace-train")):
    pytest.skip("this build has no engine", allow_module_level=True)


@pytest.fixture
def slurm(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_PROGRAM", os.path.join(BIN, "millrace"))
    monkeypatch.setenv("MILLRACE_STATE_DIR", str(tmp_path / "state"))
    with SlurmCluster(tmp_path / "slurm", nodes=2) as cluster:
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.environment[name])
        yield cluster


def test_a_job_runs_on_two_nodes(slurm, corpus, model):
    job = {
        "name": "small",
        "model": {"config": {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 64}},
        "data": {"tokenizer": model, "sequence_length": 32, "sources": [{"url": corpus}]},
        "train": {"steps": 6, "global_batch": 8, "threads": 1},
    }
    found = []
    for kind, options in (("slurm", {"max_run": 3600}), ("local", {})):
        estimator = millrace.Estimator(
            job=job, instance_type=kind, instance_count=2, hyperparameters={"per_device_train_batch_size": 2}, **options
        )
        estimator.fit({"train": corpus}, logs="None")
        assert estimator.latest_training_job.describe()["TrainingJobStatus"] == "Completed"
        lines = map(json.loads, estimator.logs(raw=True).splitlines())
        found.append([line["loss"] for line in lines if "loss" in line and "event" not in line])
        if kind == "slurm":
            ranks = estimator.latest_training_job.status()["ranks"]
            assert len({rank["node"] for rank in ranks}) == len(ranks) == 2
    assert found[0] == found[1] and len(found[0]) == 6

    waiting = millrace.Estimator(
        job=job, instance_type="slurm", instance_count=2, hyperparameters={"max_steps": 1_000_000}
    )
    waiting.fit(wait=False)
    training = waiting.latest_training_job
    assert training.describe()["TrainingJobStatus"] == "InProgress"
    slurm.await_that(lambda: training.status().get("step"), "the first step", 240)
    waiting.stop()
    assert training.describe()["TrainingJobStatus"] == "Stopped"
