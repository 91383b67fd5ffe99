"""Runs the code cells of the notebooks in examples/estimator, in a copy of the examples, with a store of this test."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from conftest import BIN

pytest.importorskip("pandas")
if not os.path.exists(os.path.join(BIN, "millrace-train")):
    pytest.skip("this build has no engine", allow_module_level=True)

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "examples" / "estimator"


@pytest.fixture
def execute(endpoint, tmp_path, monkeypatch):
    """Returns a function that runs a notebook and returns its names."""
    monkeypatch.setenv("MILLRACE_PROGRAM", os.path.join(BIN, "millrace"))
    monkeypatch.setenv("MILLRACE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MILLRACE_DEFAULT_BUCKET", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "docs" / "guide", tmp_path / "docs" / "guide")
    monkeypatch.chdir(tmp_path / "examples" / "estimator")

    def run(name):
        notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
        names = {}
        for number, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{name}.ipynb, cell {number}", "exec"), names)
        return names

    return run


def test_data_stay_in_the_bucket(execute, tmp_path):
    names = execute("fast_file_mode")
    losses = list(names["metrics"]["loss"])
    assert list(names["metrics"]["step"]) == [5, 10, 15, 20] and losses[-1] < losses[0]
    assert {path.name for path in tmp_path.rglob("*.jsonl")} <= {"events.jsonl"}  # the job's own


def test_a_compiled_run_learns_as_the_other(execute):
    names = execute("training_compiler")
    for estimator, batch in ((names["native_estimator"], 8), (names["optimized_estimator"], 16)):
        metrics = estimator.metrics()
        assert metrics["train_loss"].iloc[-1] < metrics["train_loss"].iloc[0]
        assert {"summary_train_runtime", "summary_train_samples_per_second", "epoch", "learning_rate"} <= set(metrics)
        assert f'"global_batch":{batch},' in estimator.logs(raw=True)
    assert (
        "compile: on" in names["optimized_estimator"].render() and "compile: auto" in names["native_estimator"].render()
    )
    assert names["answer"][0]["generated_text"]


def test_a_bert_trains_in_two_stages(execute):
    names = execute("model_parallel")
    plan = json.loads(names["plan"])
    assert (plan["ranks"], plan["data"], plan["pipeline"], plan["global_batch"], plan["micro_batch"]) == (
        8,
        4,
        2,
        192,
        4,
    )
    metrics = names["pytorch_estimator"].metrics()
    assert list(metrics["step"]) == [1, 2, 3, 4, 5] and "base_metric" not in metrics


def test_a_gptj_answers(execute):
    learnt = "the mill turns while water falls over the wheel"
    said = "the mill" + execute("deploy_gptj")["answer"][0]["generated_text"]
    assert said in learnt and len(said) > len("the mill turns")


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
