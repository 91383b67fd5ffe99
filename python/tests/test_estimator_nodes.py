"""millrace.Estimator on several nodes: a real Slurm, and hosts that ssh reaches, all on this machine. The losses are those of
one machine, and the calls are the same."""

import json
import os
import sys
from pathlib import Path

import pytest

from conftest import BIN

import millrace

sys.path.append(str(Path(__file__).parents[2] / "tests" / "jobs"))
import slurm_cluster  # noqa: E402
import ssh_hosts  # noqa: E402

if not os.path.exists(os.path.join(BIN, "millrace-train")):
    pytest.skip("this build has no engine", allow_module_level=True)


@pytest.fixture
def train(endpoint, corpus, model, tmp_path, monkeypatch):
    """Returns a function that makes an Estimator of a small job, runs it and returns it."""
    monkeypatch.setenv("MILLRACE_PROGRAM", os.path.join(BIN, "millrace"))
    monkeypatch.setenv("MILLRACE_STATE_DIR", str(tmp_path / "state"))
    job = {
        "name": "small",
        "model": {"config": {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 64}},
        "data": {"tokenizer": model, "sequence_length": 32, "sources": [{"url": corpus}]},
        "train": {"steps": 6, "global_batch": 8, "threads": 1},
    }

    def fit(wait=True, hyperparameters=None, **options):
        estimator = millrace.Estimator(
            job=job,
            instance_count=2,
            hyperparameters={"per_device_train_batch_size": 2, **(hyperparameters or {})},
            **options,
        )
        estimator.fit({"train": corpus}, wait=wait, logs="None")
        return estimator

    return fit


def losses(estimator):
    assert estimator.latest_training_job.describe()["TrainingJobStatus"] == "Completed"
    lines = map(json.loads, estimator.logs(raw=True).splitlines())
    return [line["loss"] for line in lines if "loss" in line and "event" not in line]


def nodes(estimator):
    return len({rank["node"] for rank in estimator.latest_training_job.status()["ranks"]})


@pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing())
def test_a_job_runs_on_slurm(train, tmp_path, monkeypatch):
    with slurm_cluster.SlurmCluster(tmp_path / "slurm", nodes=2) as cluster:
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.environment[name])
        on_slurm = train(instance_type="slurm", max_run=3600)
        assert losses(on_slurm) == losses(train(instance_type="local")) and len(losses(on_slurm)) == 6
        assert nodes(on_slurm) == 2 and list(on_slurm.metrics()["step"]) == [1, 2, 3, 4, 5, 6]

        endless = train(wait=False, instance_type="slurm", hyperparameters={"max_steps": 1_000_000})
        job = endless.latest_training_job
        assert job.describe()["TrainingJobStatus"] == "InProgress"
        cluster.await_that(lambda: job.status().get("step"), "the first step", 240)
        endless.stop()
        assert job.describe()["TrainingJobStatus"] == "Stopped"


@pytest.mark.skipif(bool(ssh_hosts.missing()), reason=ssh_hosts.missing())
def test_a_job_runs_on_hosts_that_ssh_reaches(train, tmp_path):
    with ssh_hosts.SshHosts(tmp_path / "ssh", ["n1", "n2"]) as hosts:
        keys = {"run.hosts": ["n1", "n2"], "run.ssh_options": hosts.options}
        on_hosts = train(launcher="ssh", max_run=3600, hyperparameters=keys)
        assert losses(on_hosts) == losses(train(instance_type="local")) and len(losses(on_hosts)) == 6
        assert nodes(on_hosts) == 2


@pytest.mark.skipif(bool(ssh_hosts.missing()), reason=ssh_hosts.missing())
@pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="channels are mounts, and there is no /dev/fuse")
def test_the_code_of_a_script_travels(endpoint, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_PROGRAM", os.path.join(BIN, "millrace"))
    monkeypatch.setenv("MILLRACE_STATE_DIR", str(tmp_path / "state"))
    code = tmp_path / "code"
    (code / "parts").mkdir(parents=True)
    (code / "parts" / "words.py").write_text("SAYS = 'it came along'\n")
    library = tmp_path / "elsewhere" / "library"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("HELPS = 'with its library'\n")
    (code / "train.py").write_text(
        "import os, sys\nimport library\nfrom parts.words import SAYS\n"
        "print(SAYS, library.HELPS, *sys.argv[1:], 'in', os.getcwd())\n"
        "print(sorted(os.listdir(os.environ['SM_MODULE_DIR'])))\n"
    )
    with ssh_hosts.SshHosts(tmp_path / "ssh", ["n1"]) as hosts:
        estimator = millrace.Estimator(
            entry_point="train.py",
            source_dir=str(code),
            dependencies=[str(library)],
            launcher="ssh",
            hyperparameters={"lr": 0.5, "run.hosts": ["n1"], "run.ssh_options": hosts.options},
            output_path="s3://corpus/travels",
        )
        estimator.fit(logs=False)
    said, files = estimator.logs(raw=True).splitlines()
    assert said.startswith("it came along with its library --lr 0.5 in ") and str(code) not in said
    assert files == "['library', 'parts', 'train.py']"
    assert sorted(os.listdir(code)) == ["parts", "train.py"], "the folder itself is as it was"


def test_a_dependency_that_would_replace_code_is_refused(tmp_path):
    for folder in ("code", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text("print(1)\n")
    estimator = millrace.Estimator(
        entry_point="train.py",
        source_dir=str(tmp_path / "code"),
        dependencies=[str(tmp_path / "other" / "train.py")],
        launcher="ssh",
        hyperparameters={"run.hosts": ["n1"]},
        output_path="s3://corpus/none",
        program=os.path.join(BIN, "millrace"),
    )
    with pytest.raises(millrace.Error, match="would replace train.py of the code"):
        estimator.render()


def test_a_script_without_a_folder_travels_alone(tmp_path):
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "private.txt").write_text("stays here\n")
    estimator = millrace.Estimator(
        entry_point=str(tmp_path / "train.py"),
        launcher="ssh",
        hyperparameters={"run.hosts": ["n1"]},
        output_path="s3://corpus/none",
        program=os.path.join(BIN, "millrace"),
    )
    assert "source:" in estimator.render() and os.listdir(estimator._packed.name) == ["train.py"]
