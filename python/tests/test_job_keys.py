"""The keys of a job file in Python: the types that tools/job_keys.py makes, and the arguments that mean the same."""

import inspect
import json
import os
import subprocess
import typing

import pytest

from conftest import BIN

import millrace
from millrace import hyperparameters, job

#: Arguments of Dataset, and the keys that mean the same.
ARGUMENTS = {
    "template": "data.template",
    "objective": "train.objective",
    "mode": "data.mode",
    "response": "data.response",
    "instruction_template": "data.instruction_template",
    "best_fit": "data.best_fit",
    "split_long": "data.split_long",
    "boundaries": "data.boundaries",
    "held_out": "data.split.held_out",
    "part": "data.split.part",
    "split_seed": "data.split.seed",
    "shuffle_seed": "data.shuffle.seed",
    "shuffle_window": "data.shuffle.window",
    "index_cache": "data.index_cache",
    "threads": "data.threads",
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_dataset_has_the_defaults_of_the_job_file(argument):
    parameter = inspect.signature(millrace.Dataset.__init__).parameters[argument]
    assert parameter.default == job.DEFAULTS[ARGUMENTS[argument]]


def test_sections_are_dicts_with_keyword_arguments():
    train = job.Train(steps=5, precision="bf16", parallel="auto", optimizer=job.TrainOptimizer(lr=1e-4))
    assert job.Job(name="a", train=train) == {
        "name": "a",
        "train": {"steps": 5, "precision": "bf16", "parallel": "auto", "optimizer": {"lr": 1e-4}},
    }
    assert set(typing.get_args(job.TrainPrecision)) == {"f32", "tf32", "bf16", "fp16", "fp8"}
    assert "from" in job.Model.__annotations__


def test_an_estimator_takes_a_typed_job(monkeypatch):
    monkeypatch.setenv("MILLRACE_PROGRAM", os.path.join(BIN, "millrace"))
    made = job.Job(
        name="typed",
        data=job.Data(sources=[job.DataSource(url="s3://corpus/wiki/")], tokenizer="s3://models/tokenizer.model"),
        train=job.Train(steps=7),
    )
    rendered = millrace.Estimator(job=made, checkpoint_s3_uri="s3://runs/x").render()
    assert "steps: 7" in rendered


def test_hyperparameters_know_the_words_of_the_errors():
    for word, key in job.WORDS.items():
        if word not in hyperparameters.IGNORED:
            assert hyperparameters.DIRECT[word][0] == key


def test_the_module_has_the_keys_of_the_program():
    printed = subprocess.run([os.path.join(BIN, "millrace"), "job", "schema"], capture_output=True, check=True).stdout
    words = {word["word"]: word["key"] for word in json.loads(printed)["x-words"] if "key" in word}
    assert job.WORDS == words
