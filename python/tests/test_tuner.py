"""Sweeps with millrace.Tuner on this machine, against an endpoint of this test."""

import json
import os
import re

import pytest

from conftest import BIN
from conftest import millrace as run

import millrace
from millrace.errors import InvalidArgumentError, UnsupportedError
from millrace.programs import ProgramError
from millrace.training_job import JobFailedError

if not os.path.exists(os.path.join(BIN, "millrace-train")):
    pytest.skip("this build has no engine", allow_module_level=True)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_PROGRAM", os.path.join(BIN, "millrace"))
    monkeypatch.setenv("MILLRACE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state"


@pytest.fixture(scope="session")
def runs(endpoint):
    run("mb", "s3://tuned")
    return "s3://tuned"


@pytest.fixture
def estimator(corpus, model, runs):
    job = {
        "name": "small",
        "model": {"config": {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 64}},
        "data": {"sources": [{"url": corpus}], "tokenizer": model, "sequence_length": 32},
        "train": {"steps": 6, "global_batch": 4, "threads": 1},
    }
    return millrace.Estimator(job=job, output_path=f"{runs}/out")


def columns(table):
    return {name: list(table[name]) for name in table}


def test_random_values_are_drawn_and_the_best_run_is_found(estimator, corpus, capsys):
    tuner = millrace.Tuner(
        estimator,
        "loss",
        {
            "learning_rate": millrace.ContinuousParameter(1e-4, 1e-1),
            "train.seed": millrace.IntegerParameter(1, 9),
            "train.schedule.name": millrace.CategoricalParameter(["cosine", "constant"]),
        },
        objective_type="Minimize",
        max_jobs=3,
        max_parallel_jobs=2,
        base_tuning_job_name="drawn",
    )
    tuner.fit({"train": corpus})
    table = columns(tuner.analytics().dataframe())
    assert tuner.latest_tuning_job.startswith("drawn-20")
    assert table["TrainingJobName"] == [f"{tuner.latest_tuning_job}-{number}" for number in (1, 2, 3)]
    assert table["TrainingJobStatus"] == ["Completed"] * 3
    assert all(1e-4 <= value <= 1e-1 for value in table["learning_rate"]) and len(set(table["learning_rate"])) == 3
    assert all(value in range(1, 10) for value in table["train.seed"])
    assert set(table["train.schedule.name"]) <= {"cosine", "constant"}
    assert all(seconds > 0 for seconds in table["TrainingElapsedTimeSeconds"])
    best = table["FinalObjectiveValue"].index(min(table["FinalObjectiveValue"]))
    assert tuner.best_training_job() == table["TrainingJobName"][best]
    described = tuner.describe()
    assert described["HyperParameterTuningJobStatus"] == "Completed"
    assert described["BestTrainingJob"]["TunedHyperParameters"]["learning_rate"] == table["learning_rate"][best]
    # The best run is a job like others, with the value that the table has.
    job = tuner.best_job()
    assert list(job.metrics()["loss"])[-1] == pytest.approx(table["FinalObjectiveValue"][best])
    assert json.loads(job._program.output("--json", "ckpt", "ls", job.model_data).splitlines()[-1])["step"] == 6
    assert f"{tuner.best_training_job()}: done, loss " in capsys.readouterr().out


def test_a_grid_has_all_combinations(estimator):
    tuner = millrace.Tuner(
        estimator,
        "loss",
        {
            "learning_rate": millrace.CategoricalParameter([1e-3, 1e-2]),
            "seed": millrace.CategoricalParameter((1, 2)),
        },
        strategy="Grid",
        objective_type="Maximize",
        max_parallel_jobs=2,
    )
    tuner.fit()
    table = columns(tuner.analytics().dataframe())
    assert sorted(zip(table["learning_rate"], table["seed"])) == [(0.001, 1), (0.001, 2), (0.01, 1), (0.01, 2)]
    best = table["FinalObjectiveValue"].index(max(table["FinalObjectiveValue"]))
    assert tuner.best_training_job() == table["TrainingJobName"][best]


def test_a_sweep_is_stopped(estimator):
    tuner = millrace.Tuner(
        estimator,
        "loss",
        {"train.steps": millrace.IntegerParameter(1_000_000, 1_000_001)},
        max_jobs=2,
    )
    tuner.fit(wait=False)
    tuner.stop_tuning_job()
    assert tuner.describe()["HyperParameterTuningJobStatus"] == "Stopped"
    if "BestTrainingJob" in tuner.describe():  # a run had a step
        assert tuner.best_training_job().startswith(tuner.latest_tuning_job)
    else:
        with pytest.raises(InvalidArgumentError, match="no run of .* has a value of loss"):
            tuner.best_training_job()


def test_what_the_job_refuses_starts_nothing(estimator, state):
    tuner = millrace.Tuner(estimator, "loss", {"train.optimizer.lr": millrace.CategoricalParameter([1e-3, "many"])})
    with pytest.raises(ProgramError, match="train.optimizer.lr"):
        tuner.fit()
    assert not (state / "sweeps").exists()


@pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="a script's folders are mounts, and there is no /dev/fuse")
def test_a_script_gets_the_values_as_arguments(runs, corpus, tmp_path):
    (tmp_path / "train.py").write_text(
        "import argparse, os\n"
        "options = argparse.ArgumentParser()\n"
        "for name in ('--lr', '--kind', '--size'):\n"
        "    options.add_argument(name, required=True)\n"
        "options = options.parse_args()\n"
        "print('score', float(options.lr) * int(options.size) + (options.kind == 'a b'))\n"
        "open(os.path.join(os.environ['SM_MODEL_DIR'], 'model.txt'), 'w').write(options.lr)\n"
    )
    tuner = millrace.Tuner(
        millrace.Estimator(
            entry_point=str(tmp_path / "train.py"), hyperparameters={"size": 2, "lr": 7}, output_path=f"{runs}/scripts"
        ),
        "score",
        {
            "lr": millrace.ContinuousParameter(0.0, 1.0),
            "kind": millrace.CategoricalParameter(["a b", "c"]),
        },
        metric_definitions=[{"Name": "score", "Regex": "score ([0-9.]+)"}],
        max_jobs=3,
    )
    tuner.fit({"train": "s3://corpus/text"})
    table = columns(tuner.analytics().dataframe())
    assert table["TrainingJobStatus"] == ["Completed"] * 3
    for lr, kind, score in zip(table["lr"], table["kind"], table["FinalObjectiveValue"]):
        assert score == pytest.approx(2 * lr + (kind == "a b"), rel=1e-5)
    best = table["FinalObjectiveValue"].index(max(table["FinalObjectiveValue"]))
    job = tuner.best_job()
    assert job.name == table["TrainingJobName"][best]
    run("cp", f"{job.model_data}/model.txt", str(tmp_path / "model.txt"))
    assert float((tmp_path / "model.txt").read_text()) == pytest.approx(table["lr"][best])


def test_a_sweep_whose_runs_all_fail_says_why(runs, tmp_path):
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("a script's folders are mounts, and there is no /dev/fuse")
    (tmp_path / "train.py").write_text("import sys\nsys.exit(2)\n")
    tuner = millrace.Tuner(
        millrace.Estimator(
            entry_point=str(tmp_path / "train.py"),
            hyperparameters={"run.max_restarts": 0},
            metric_definitions=[{"Name": "score", "Regex": "score ([0-9.]+)"}],
            output_path=f"{runs}/fails",
        ),
        "score",
        {"lr": millrace.ContinuousParameter(0.1, 1.0)},
        max_jobs=1,
    )
    with pytest.raises(JobFailedError, match="all runs of .* failed"):
        tuner.fit()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"strategy": "Bayesian"}, "Random, Grid or Hyperband"),
        ({"strategy": "Grid"}, "must be a CategoricalParameter"),
        ({"objective_type": "Least"}, "Maximize or Minimize"),
        ({"early_stopping_type": "On"}, "Off or Auto"),
        ({"strategy": "Hyperband", "early_stopping_type": "Auto"}, "leave it Off"),
        ({"max_jobs": 0}, "at least 1"),
        ({"hyperparameter_ranges": {}}, "at least one hyperparameter"),
        ({"hyperparameter_ranges": {"per_device_train_batch_size": None}}, "not one key of the job file"),
    ],
)
def test_what_means_nothing_here_is_refused(estimator, arguments, message):
    ranges = {"learning_rate": millrace.ContinuousParameter(0.1, 1)}
    with pytest.raises((InvalidArgumentError, UnsupportedError), match=message):
        millrace.Tuner(estimator, "loss", **{"hyperparameter_ranges": ranges, **arguments})


def test_ranges_become_the_words_of_a_sweep():
    assert millrace.ContinuousParameter(1e-5, 1e-2).values() == "log:1e-05..0.01"
    assert millrace.ContinuousParameter(0.1, 0.9).values() == "uniform:0.1..0.9"
    assert millrace.ContinuousParameter(1e-5, 1e-2, "Linear").values() == "uniform:1e-05..0.01"
    assert millrace.ContinuousParameter(0.1, 0.9, "Logarithmic").values() == "log:0.1..0.9"
    assert millrace.IntegerParameter(1, 9).values() == "int:1..9"
    assert millrace.CategoricalParameter(["a,b", 2, True]).values() == '"a,b",2,true'
    for wrong in (lambda: millrace.ContinuousParameter(2, 1), lambda: millrace.ContinuousParameter(0, 1, "Logarithmic").values(),
                  lambda: millrace.IntegerParameter(1, 9, "Logarithmic").values(), lambda: millrace.CategoricalParameter([])):  # fmt: skip
        with pytest.raises((InvalidArgumentError, UnsupportedError)):
            wrong()


def test_code_that_travels_is_there_until_the_sweep_has_packed_it(tmp_path, runs):
    (tmp_path / "fit.py").write_text("print()\n")
    estimator = millrace.Estimator(
        entry_point=str(tmp_path / "fit.py"),
        launcher="ssh",
        hyperparameters={"run.hosts": ["n1"]},
        output_path=f"{runs}/out",
    )
    text, _, _ = estimator.render_for_sweep(None, [])
    (source,) = re.findall(r"^ +source: (.+)$", text, re.MULTILINE)
    assert os.path.exists(os.path.join(source.strip('"'), "fit.py"))
