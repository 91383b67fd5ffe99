"""Runs jobs with millrace.Estimator on this machine, against an endpoint of this test."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from conftest import BIN
from conftest import millrace as run

import millrace
from millrace.distribution import Distribution
from millrace.hyperparameters import NEVER, Keys
from millrace.programs import ProgramError
from millrace.training_job import JobFailedError, Transcript

if not os.path.exists(os.path.join(BIN, "millrace-train")):
    pytest.skip("this build has no engine", allow_module_level=True)

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "estimator.md"
LONG = {"max_steps": 1_000_000, "save_steps": 1_000_000}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_PROGRAM", os.path.join(BIN, "millrace"))
    monkeypatch.setenv("MILLRACE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("MILLRACE_DEFAULT_BUCKET", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state"


@pytest.fixture(scope="session")
def runs(endpoint):
    run("mb", "s3://runs")
    return "s3://runs"


@pytest.fixture
def job(corpus, model):
    """Returns a small job as a dict."""
    return {
        "name": "small",
        "model": {"config": {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 64}},
        "data": {"sources": [{"url": corpus}], "tokenizer": model, "sequence_length": 32},
        "train": {"steps": 6, "global_batch": 4, "threads": 1},
        "checkpoint": {"every_steps": 3},
    }


def until(condition):
    deadline = time.monotonic() + 120
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def losses(estimator):
    return [
        row["loss"]
        for row in map(json.loads, estimator.logs(raw=True).splitlines())
        if "loss" in row and "event" not in row
    ]


def test_a_fit_trains_as_the_same_job_file_does(job, runs, tmp_path):
    estimator = millrace.Estimator(
        job=job,
        instance_count=2,
        hyperparameters={"max_steps": 8, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-3,
                         "train.seed": 7, "data": {"shuffle": {"seed": 3}}},
        output_path=f"{runs}/out",
    )  # fmt: skip
    estimator.fit(logs=False)
    job["name"] = "by-hand"
    job["data"]["shuffle"] = {"seed": 3}
    job["train"] = {"steps": 8, "global_batch": 8, "micro_batch": 2, "threads": 1, "optimizer": {"lr": 1e-3}, "seed": 7}
    job["checkpoint"]["url"] = f"{runs}/by-hand"
    job["run"] = {"processes_per_node": 2}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    done = subprocess.run(
        [os.path.join(BIN, "millrace"), "--json", "job", "run", "job.yaml"], check=True, stdout=subprocess.PIPE
    )
    expected = [
        row["loss"] for row in map(json.loads, done.stdout.splitlines()) if "loss" in row and "event" not in row
    ]
    assert losses(estimator) == expected and len(expected) == 8
    name = estimator.latest_training_job.name
    assert re.fullmatch(r"small-\d{4}(-\d\d){5}-\d{3}", name)
    assert estimator.model_data == f"{runs}/out/{name}"
    described = estimator.latest_training_job.describe()
    assert described["TrainingJobStatus"] == "Completed" and described["ModelArtifacts"] == {
        "S3ModelArtifacts": estimator.model_data
    }


def test_lines_and_metrics_are_those_of_a_trainer(job, runs, capsys):
    definitions = [
        {"Name": "train_loss", "Regex": "'loss': ([0-9.]*)"},
        {"Name": "rate", "Regex": "'learning_rate': ([0-9.]*)"},
        {"Name": "summary_train_runtime", "Regex": "'train_runtime': ([0-9.]*)"},
        {"Name": "absent", "Regex": "<><><>"},
    ]
    job["train"]["schedule"] = {"name": "constant"}
    estimator = millrace.Estimator(
        job=job, metric_definitions=definitions, output_path=runs, hyperparameters={"learning_rate": 2e-7}
    )
    estimator.fit()
    shown = capsys.readouterr().out
    table = estimator.metrics()
    assert list(table["step"]) == [1, 2, 3, 4, 5, 6]
    assert list(table["loss"]) == losses(estimator) == pytest.approx(list(table["train_loss"]), rel=1e-7)
    assert list(table["rate"]) == pytest.approx(
        [2e-7] * 6, rel=1e-6
    ), "numbers have no exponents, so the expression finds all of them"
    assert "absent" not in table and list(table["summary_train_runtime"])[-1] > 0
    assert (
        f"{{'loss': {losses(estimator)[0]}" in shown
        and "checkpoint of step 6" in shown
        and "all ranks finished" in shown
    )
    assert estimator.logs() in shown
    seen = json.loads(estimator._program.output("--json", "top", estimator.latest_training_job.name))["metrics"]
    assert seen["train_loss"] == pytest.approx(losses(estimator)[-1], rel=1e-7)
    assert seen["rate"] == pytest.approx(2e-7, rel=1e-6)
    assert seen["summary_train_runtime"] > 0 and "absent" not in seen, "the supervisor finds them, too"


def test_a_default_bucket_is_made_and_kept(job, state):
    first, second = millrace.Estimator(job=job), millrace.Estimator(job=job)
    urls = [
        re.search(r'url: "(s3://millrace-us-east-1-[0-9a-f]{12})/small-', estimator.render()).group(1)
        for estimator in (first, second)
    ]
    assert urls[0] == urls[1] == f"s3://{millrace.default_bucket()}"
    run("ls", urls[0] + "/")


def test_a_named_default_bucket_is_taken(monkeypatch, endpoint):
    monkeypatch.setenv("MILLRACE_DEFAULT_BUCKET", "of-the-team")
    assert millrace.default_bucket() == millrace.default_bucket() == "of-the-team"


def test_a_manifest_reads_the_objects_that_it_names(job, runs, corpus, tmp_path):
    (tmp_path / "manifest").write_text(json.dumps([{"prefix": "s3://corpus/text/"}, "1.jsonl"]))
    run("cp", str(tmp_path / "manifest"), "s3://corpus/one.manifest")
    by_manifest = millrace.TrainingInput(
        "s3://corpus/one.manifest",
        distribution="ShardedByS3Key",
        s3_data_type="ManifestFile",
        content_type="application/jsonlines",
    )
    found = []
    for channel in (by_manifest, "s3://corpus/text/1.jsonl", "s3://corpus/text/0.jsonl"):
        estimator = millrace.Estimator(job=job, output_path=runs)
        estimator.fit({"train": channel}, logs=None)
        found.append(losses(estimator))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("content", [b"{}", b"[]", b"no json", b'[{"prefix": "s3://b/"}]', b'["a\\nb"]', b"[1]"])
def test_what_is_no_manifest_is_refused(content):
    from millrace.training_input import manifest_urls

    with pytest.raises(ValueError, match="the manifest"):
        manifest_urls(content, "the manifest")


def test_a_check_that_fails_starts_nothing(job, runs, state):
    estimator = millrace.Estimator(
        job=job, output_path=runs, hyperparameters={"tokenizer_name": "s3://corpus/absent.model"}
    )
    with pytest.raises(ProgramError, match="absent.model"):
        estimator.fit(wait=False)
    assert estimator.latest_training_job is None and not (state / "jobs").exists()


def test_stop_saves_a_checkpoint(job, runs):
    estimator = millrace.Estimator(job=job, output_path=runs, hyperparameters=LONG)
    estimator.fit(wait=False)
    training = estimator.latest_training_job
    until(lambda: training.status().get("step"))
    assert training.describe()["TrainingJobStatus"] == "InProgress"
    estimator.stop()
    training.wait(logs=False)
    assert training.describe()["TrainingJobStatus"] == "Stopped"
    assert millrace.checkpoint.load(estimator.model_data) is not None


def test_a_limit_of_time_stops_the_job(job, runs):
    estimator = millrace.Estimator(job=job, output_path=runs, hyperparameters=LONG, max_run=15)
    estimator.fit(logs=None)
    assert estimator.latest_training_job.describe()["TrainingJobStatus"] == "Stopped"


def test_a_job_that_fails_says_why(job, runs):
    estimator = millrace.Estimator(job=job, output_path=runs, hyperparameters=LONG, max_retry_attempts=0)
    estimator.fit(wait=False)
    training = estimator.latest_training_job
    until(lambda: training.status().get("step"))
    os.kill(training.status()["ranks"][0]["pid"], signal.SIGKILL)
    with pytest.raises(JobFailedError, match="killed by signal 9"):
        training.wait(logs=False)
    assert "killed by signal 9" in training.describe()["FailureReason"]


SCRIPT = """
import argparse, json, os, sys
import helper

options = argparse.ArgumentParser()
options.add_argument("--lr", type=float)
options.add_argument("--epochs", type=int)
options = options.parse_args()
channel, checkpoints = os.environ["SM_CHANNEL_TRAIN"], os.environ["MILLRACE_CHECKPOINTS"]
first = os.environ["RANK"] == "0"
done = os.path.join(checkpoints, "epoch")
# Only the first rank fails, and only it has a checkpoint: the other is killed anywhere.
begin = int(open(done).read()) if first and os.path.exists(done) else 0
for epoch in range(begin, options.epochs):
    print("epoch", epoch + 1, "loss", 1 / (epoch + 1))
    if first:
        with open(done, "w") as file:
            file.write(str(epoch + 1))
        if epoch == 1 and os.environ["MILLRACE_ATTEMPT"] == "1":
            sys.exit(5)
if first:
    seen = {"files": sorted(os.listdir(channel)), "lr": options.lr, "helper": helper.VALUE, "ranks": os.environ["WORLD_SIZE"],
            "hps": json.loads(os.environ["SM_HPS"]), "said": os.environ["SAID"], "begin": begin, "folder": os.getcwd()}
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "model.json"), "w") as file:
        json.dump(seen, file)
"""


@pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="channels are mounts, and there is no /dev/fuse")
def test_a_script_runs_as_sagemaker_would_run_it(runs, corpus, tmp_path):
    code, library = tmp_path / "code", tmp_path / "library"
    code.mkdir()
    library.mkdir()
    (code / "train.py").write_text(SCRIPT)
    (library / "helper.py").write_text("VALUE = 7\n")
    estimator = millrace.Estimator(
        entry_point="train.py",
        source_dir=str(code),
        dependencies=[str(library / "helper.py")],
        instance_count=2,
        hyperparameters={"lr": 1e-4, "epochs": 4, "run.max_restarts": 2},
        environment={"SAID": "it"},
        metric_definitions=[{"Name": "loss", "Regex": "loss ([0-9.]+)"}, {"Name": "step", "Regex": "epoch ([0-9]+)"}],
        checkpoint_s3_uri=f"{runs}/script/checkpoints",
        output_path=f"{runs}/script",
    )
    estimator.fit({"train": "s3://corpus/text"}, logs=False)
    described = estimator.latest_training_job.describe()
    assert described["TrainingJobStatus"] == "Completed"
    name = estimator.latest_training_job.name
    assert re.fullmatch(r"train-\d{4}(-\d\d){5}-\d{3}", name)
    assert estimator.model_data == f"{runs}/script/{name}/model/"
    run("cp", f"{estimator.model_data}model.json", str(tmp_path / "model.json"))
    seen = json.loads((tmp_path / "model.json").read_text())
    assert seen == {"files": ["0.jsonl", "1.jsonl"], "lr": 1e-4, "helper": 7, "ranks": "2", "said": "it", "begin": 2,
                    "hps": {"epochs": 4, "lr": 1e-4}, "folder": str(code)}  # fmt: skip
    assert "epoch 4 loss 0.25" in estimator.logs()
    top = json.loads(estimator._program.output("--json", "top", name))["metrics"]
    assert top["loss"] == 0.25, "the supervisor finds them in its lines"
    left = [entry for entry in os.listdir(tempfile.gettempdir()) if entry == f"millrace-{name}"]
    assert not left, "the folders were made for the mounts"


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({"train": "s3://corpus/text/*.jsonl"}, "is a pattern"),
        ({"a/b": "s3://corpus/text/"}, 'channel "a/b"'),
        ({"train": "s3://corpus/text", "more": "s3://corpus/text/"}, "two channels"),
        ({"train": millrace.TrainingInput("s3://c/m", s3_data_type="ManifestFile")}, "in place of a manifest"),
    ],
)
def test_channels_that_a_script_cannot_have_are_refused(inputs, message, runs, tmp_path):
    (tmp_path / "train.py").write_text("")
    with pytest.raises((ValueError, NotImplementedError), match=re.escape(message)):
        millrace.Estimator(entry_point="train.py", output_path=f"{runs}/refused").render(inputs)


def test_a_script_in_pods_has_volumes(runs, tmp_path):
    (tmp_path / "train.py").write_text("")
    options = {
        "entry_point": str(tmp_path / "train.py"),
        "launcher": "kubernetes",
        "image_uri": "registry.example/mine:1",
        "output_path": f"{runs}/pods",
        "checkpoint_s3_uri": f"{runs}/pods/checkpoints",
    }
    inputs = {"train": "s3://corpus/text"}
    with pytest.raises(ProgramError, match="run.mounts_secret"):
        millrace.Estimator(**options).render(inputs)
    text = millrace.Estimator(**options, hyperparameters={"run.mounts_secret": "keys", "lr": 0.1}).render(inputs)
    assert 'command: ["python3", "train.py", "--lr", "0.1"]' in text, text
    assert re.search(r'"s3://corpus/text/": ?"/.*/input/train:ro"', text) and 'mounts_secret: "keys"' in text, text


def test_an_endpoint_answers_until_it_is_deleted(job, runs):
    estimator = millrace.Estimator(job=job, output_path=runs)
    with pytest.raises(ValueError, match="fit"):
        estimator.deploy()
    estimator.fit(logs=False)
    predictor = estimator.deploy(initial_instance_count=1, instance_type="ml.g4dn.xlarge")
    try:
        answer = predictor.predict(
            {"inputs": "the river mill", "parameters": {"max_new_tokens": 4, "do_sample": False}}
        )
        assert list(answer[0]) == ["generated_text"] and predictor.predict("the river mill")
        with pytest.raises(millrace.Error, match="prompt"):
            predictor.predict({"nothing": 1})
    finally:
        predictor.delete_endpoint()
        predictor.delete_endpoint()
    with pytest.raises(millrace.Error, match="does not answer"):
        predictor.predict("the")


def test_a_model_that_cannot_be_served_says_why(runs):
    from millrace.endpoint import serve
    from millrace.programs import Program

    with pytest.raises(millrace.Error, match="did not start.*s3://runs/absent"):
        serve(Program(), "s3://runs/absent", name="absent")


BERT_PARAMETERS = {
    "optimize": "speed", "microbatches": 12, "partitions": 2, "ddp": True, "pipeline": "interleaved",
    "overlapping_allreduce": True, "placement_strategy": "cluster", "memory_weight": 0.3,
}  # fmt: skip


def test_model_parallelism_becomes_a_layout(job):
    estimator = millrace.Estimator(
        job=job,
        instance_type="ml.p3.16xlarge",
        distribution={
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": BERT_PARAMETERS}},
            "mpi": {
                "enabled": True,
                "processes_per_host": 8,
                "custom_mpi_options": "-verbose --mca orte_base_help_aggregate 0 -x A=1",
            },
        },
        hyperparameters={
            "train_batch_size": 48,
            "warmup_proportion": 0.2843,
            "allreduce_post_accumulation_fp16": 1,
            "skip_checkpoint": 1,
        },
        output_path="s3://runs",
    )
    text = estimator.render()
    for line in ("processes_per_node: 8", "pipeline: 2", "microbatches: 12", "schedule: 1f1b", "overlap: true", "placement: cluster",
                 "global_batch: 192", "micro_batch: 4", "warmup_proportion: 0.2843", "reduce: bf16", f"every_steps: {NEVER}"):  # fmt: skip
        assert re.search(rf"^ *{line}$", text, re.MULTILINE), f"{line} is not in\n{text}"
    assert estimator._program.environment == {"A": "1"}


def test_gpus_are_processes_only_with_a_distribution(job):
    for distribution, expected in (
        (None, 1),
        ({"pytorchddp": {"enabled": False}}, 1),
        ({"pytorchddp": {"enabled": True}}, 8),
    ):
        estimator = millrace.Estimator(job=job, instance_type="ml.g4dn.12xlarge", instance_count=2, distribution=distribution,
                                       hyperparameters={"per_device_train_batch_size": 5}, output_path="s3://runs")  # fmt: skip
        text = estimator.render()
        ranks = expected if expected > 1 else 2
        assert f"processes_per_node: {ranks}\n" in text and f"global_batch: {5 * ranks}\n" in text


def test_slurm_takes_nodes_and_a_limit(job):
    estimator = millrace.Estimator(job=job, instance_type="slurm", instance_count=3, processes_per_instance=2, max_run=3600,
                                   compiler_config=millrace.TrainingCompilerConfig(), output_path="s3://runs",
                                   hyperparameters={"run.partition": "gpu", "train.global_batch": 6})  # fmt: skip
    text = estimator.render()
    for line in (
        "launcher: slurm",
        "nodes: 3",
        "processes_per_node: 2",
        "time: 3600000ms",
        'partition: "gpu"',
        "compile: on",
    ):
        assert f"  {line}\n" in text, text


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"entry_point": "train.py", "job": None}, "there is no file train.py"),
        ({"entry_point": "job.yaml"}, "not both"),
        ({"instance_type": "p4d.24xlarge"}, "a name of AWS such as ml.p4d.24xlarge"),
        ({"instance_counts": 2}, "did you mean instance_count"),
        ({"input_mode": "Fast"}, "File, FastFile or Pipe"),
        ({"use_spot_instances": True, "max_run": 10}, "max_wait"),
        ({"max_wait": 10}, "use_spot_instances"),
        ({"encrypt_inter_container_traffic": True}, "encrypt_inter_container_traffic=True is not supported"),
        ({"debugger_hook_config": object()}, "debugger_hook_config"),
        ({"subnets": ["a"]}, "subnets"),
        ({"dependencies": ["lib"]}, "dependencies"),
        ({"metric_definitions": [{"Name": "a"}]}, "Name and Regex"),
        ({"distribution": {"horovod": {"enabled": True}}}, "horovod is unknown"),
        ({"distribution": {"mpi": {"enabled": True, "custom_mpi_options": "--host a"}}}, "--host is not supported"),
        ({"distribution": {"pytorchddp": {"enable": True}}}, "does not have enable"),
        ({"hyperparameters": {"learning_rat": 1}}, "did you mean learning_rate"),
        ({"hyperparameters": {"learning_rate": "fast"}}, "'fast' is not a value"),
        ({"hyperparameters": {"do_train": False}}, "do_train: must be True"),
        ({"hyperparameters": {"lr_scheduler_type": "step"}}, "one of constant"),
        ({"hyperparameters": {"save_strategy": "epoch"}}, "give the steps"),
        ({"dependencies": ["lib"]}, "imports no code of yours"),
    ],
)
def test_what_means_nothing_here_is_refused_by_name(job, arguments, message):
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=re.escape(message)):
        millrace.Estimator(**{"job": job, **arguments})


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({"trian": "s3://corpus/text/"}, "did you mean train"),
        ({"train": "s3://corpus/text/", "training": "s3://corpus/text/"}, "another channel is for data.sources"),
        ({"validation": "s3://corpus/text/"}, "eval_steps"),
        (
            {"train": millrace.TrainingInput("s3://corpus/text/", s3_data_type="AugmentedManifestFile")},
            "S3Prefix, ManifestFile",
        ),
        ({"train": millrace.TrainingInput("s3://corpus/text/", content_type="image/png")}, "content_type='image/png'"),
    ],
)
def test_channels_that_no_job_reads_are_refused(job, inputs, message):
    with pytest.raises((ValueError, NotImplementedError), match=message):
        millrace.Estimator(job=job, output_path="s3://runs").render(inputs)


def test_arguments_without_a_meaning_are_ignored(job):
    plain = millrace.Estimator(job=job, output_path="s3://runs").render(job_name="same")
    full = millrace.Estimator(
        job=job, output_path="s3://runs", role="arn:aws:iam::1:role/x", image_uri="image", py_version="py38", framework_version="1.11",
        pytorch_version="1.11", transformers_version="4.21", sagemaker_session=None, volume_size=100, disable_profiler=True,
        debugger_hook_config=False, input_mode="FastFile", max_run=60, max_wait=60, use_spot_instances=True, tags=[],
        hyperparameters={"output_dir": "/opt/ml/model", "do_train": True, "do_eval": False, "overwrite_output_dir": True},
    ).render(job_name="same")  # fmt: skip
    assert full == plain


def test_hyperparameters_may_be_texts_as_sagemaker_sends_them(tmp_path):
    (tmp_path / "bert_config.json").write_text(
        json.dumps({"hidden_size": 64, "num_hidden_layers": 2, "architectures": ["x"]})
    )
    keys = Keys(
        {"learning_rate": "5e-5", "max_steps": "10", "fp16": "true", "bf16": "0", "adam_beta2": "0.98", "evaluation_strategy": "no",
         "max_predictions_per_seq": "20", "optim": "adamw_torch", "config_file": "bert_config.json"},
        str(tmp_path),
    )  # fmt: skip
    assert keys.keys == {
        "train.optimizer.lr": 5e-5, "train.steps": 10, "train.precision": "bf16", "train.optimizer.betas": [0.9, 0.98],
        "eval.every_steps": 0, "data.mlm.max_predictions": 20, "train.optimizer.name": "adamw",
        "model.config.hidden_size": 64, "model.config.num_layers": 2,
    }  # fmt: skip
    assert Keys({"train_batch_size": 48, "gradient_accumulation_steps": 4}).batch(4, False) == {
        "train.global_batch": 192,
        "train.micro_batch": 12,
    }


def test_words_of_the_newer_library_become_ours():
    shape = Distribution({"smdistributed": {"modelparallel": {"enabled": True, "parameters": {
        "tensor_parallel_degree": 2, "pipeline_parallel_degree": 4, "sharded_data_parallel_degree": 8, "shard_optimizer_state": True,
        "prescaled_batch": True, "offload_activations": False}}}})  # fmt: skip
    assert shape.enabled and shape.parallel == {"tensor": 2, "pipeline": 4, "zero": 3, "shard": 8}
    offloaded = {"enabled": True, "parameters": {"tensor_parallel_degree": 2, "offload_activations": True}}
    assert Distribution({"smdistributed": {"modelparallel": offloaded}}).parallel == {
        "tensor": 2, "recompute": "full", "offload_activations": True}  # fmt: skip


def test_other_lines_pass_a_transcript_unchanged():
    transcript = Transcript()
    for line in ("text", "[1, 2]", "{broken", '{"event":"restart","attempt":2}', "5"):
        assert transcript.line(line) == line
    assert transcript.rows() == []


def test_the_guide_runs_as_it_is_printed(job, runs, corpus, model, tmp_path):
    run("cp", "s3://corpus/text/0.jsonl", "s3://corpus/wiki/0.jsonl")
    subprocess.run([os.path.join(BIN, "millrace"), "mb", "s3://models"], stderr=subprocess.DEVNULL)
    run("cp", model, "s3://models/tokenizer.model")
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('loss 0.5')\n")
    text = GUIDE.read_text(encoding="utf-8")
    names = {}
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(compile("\n" * text[: found.start(1)].count("\n") + found.group(1), str(GUIDE), "exec"), names)
    assert len(names["table"]["step"]) == 6 and "pipeline: 2" in names["parallel"].render()
    assert len(names["tuner"].analytics().rows()) == 3 and names["tuner"].best_training_job()


def test_the_guide_names_all_arguments_and_hyperparameters():
    from millrace import estimator, hyperparameters

    text = GUIDE.read_text(encoding="utf-8") + (GUIDE.parent / "job-file.md").read_text(encoding="utf-8")
    known = {*estimator._parameters(), *estimator.IGNORED_ARGUMENTS, *estimator.OFF_ARGUMENTS, *hyperparameters.DIRECT}
    known |= set(hyperparameters._OTHERS) | set(hyperparameters.FIXED) - {"apply_optimizer"}
    assert [name for name in sorted(known) if f"`{name}" not in text] == []
