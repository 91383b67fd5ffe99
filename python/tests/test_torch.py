"""Tests with torch, torchdata, accelerate and transformers, if they are installed."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

import millrace  # noqa: E402


def ids(batches):
    return [row for batch in batches for row in batch["input_ids"].tolist()]


def test_is_an_iterable_dataset_of_tensors(dataset):
    data = dataset()
    assert isinstance(data, IterableDataset)
    sample = next(iter(data))
    assert sample["input_ids"].dtype == torch.int64 and sample["labels"].shape == (32,)


def test_data_loader_without_workers(dataset):
    order = [sample["input_ids"].tolist() for sample in dataset()]
    loader = DataLoader(dataset(), batch_size=8)
    assert len(loader) == (len(order) + 7) // 8
    assert ids(loader) == order


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_not_batched_again(dataset, workers):
    loader = DataLoader(dataset(batch_size=8), batch_size=8, num_workers=workers)
    with pytest.raises(millrace.Error, match="pass batch_size=None to the DataLoader"):
        next(iter(loader))


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_do_not_change_the_batches(dataset, workers):
    order = [sample["input_ids"].tolist() for sample in dataset()]
    loader = DataLoader(dataset(batch_size=8), batch_size=None, num_workers=workers)
    assert ids(loader) == order[: len(order) // 8 * 8]


@pytest.mark.parametrize("start, persistent", [("fork", False), ("fork", True), ("spawn", False), ("spawn", True)])
def test_each_epoch_of_a_loader_with_workers_is_the_next(dataset, start, persistent):
    alone = dataset(batch_size=8)
    order = [ids(alone) for _ in range(3)]
    assert order[0] != order[1]
    data = dataset(batch_size=8)
    loader = DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context=start, persistent_workers=persistent
    )
    assert ids(loader) == order[0]
    assert data.state_dict() == {"epoch": 1, "samples": 0, "fingerprint": data.fingerprint}
    assert ids(loader) == order[1]
    data.set_epoch(0)
    assert ids(loader) == order[0]
    data.load_state_dict({"epoch": 1, "samples": 24, "fingerprint": data.fingerprint})
    assert ids(loader) == order[1][24:]
    assert ids(loader) == order[2]


def test_workers_read_both_halves_of_a_source_of_half_weight(corpus, model):
    data = millrace.Dataset({corpus: 0.5}, tokenizer=model, mode="pad", sequence_length=64, batch_size=4)
    loader = DataLoader(data, batch_size=None, num_workers=1)
    halves = [{tuple(row) for row in ids(loader)} for _ in range(2)]
    assert len(halves[0]) > 200 and not halves[0] & halves[1]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_second_iterator_of_workers_begins_from_the_start(dataset, persistent):
    data = dataset(batch_size=1)
    order = ids(dataset(batch_size=1))
    loader = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=persistent)
    first = iter(loader)
    assert ids([next(first)]) == order[:1]
    with pytest.raises(millrace.Error, match="StatefulDataLoader"):
        data.state_dict()
    assert data.state_at(5)["samples"] == 5
    del first
    assert ids(loader) == order


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_data_loader_is_as_long_as_it_says(dataset, workers):
    order = [sample["input_ids"].tolist() for sample in dataset(rank=1, world_size=3)]
    for batch_size, drop_last in ((7, False), (7, True), (64, True)):
        data = dataset(rank=1, world_size=3)
        loader = DataLoader(data, batch_size=batch_size, num_workers=workers, drop_last=drop_last)
        batches = list(loader)
        assert len(batches) == len(loader)
        assert ids(batches) == order[: len(order) // batch_size * batch_size if drop_last else len(order)]


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_data_loader_resumes_exactly(dataset, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    order = [sample["input_ids"].tolist() for sample in dataset()]
    make = lambda: stateful(dataset(batch_size=4), batch_size=None, num_workers=workers)  # noqa: E731
    loader, taken = make(), []
    iterator = iter(loader)
    for _ in range(11):
        taken += next(iterator)["input_ids"].tolist()
    state = loader.state_dict()
    del iterator
    resumed = make()
    resumed.load_state_dict(state)
    assert taken + ids(resumed) == order[: len(order) // 4 * 4]
    data = dataset()
    data.set_epoch(1)
    assert ids(resumed) == [sample["input_ids"].tolist() for sample in data][: len(order) // 4 * 4]


def test_accelerate_prepares_it(dataset):
    accelerate = pytest.importorskip("accelerate")
    order = [sample["input_ids"].tolist() for sample in dataset()]
    accelerator = accelerate.Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(dataset(), batch_size=8))
    assert ids(loader) == order


def tiny_model(vocabulary):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config)


def train(data, folder, **options):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    resume = options.pop("resume", None)
    callback = options.pop("callback", "state")
    callbacks = [millrace.StateCallback(data) if callback == "state" else callback]
    options = {"save_strategy": "steps", "save_steps": 5, **options}
    losses = {}

    class Watch(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if "loss" in logs:
                losses[state.global_step] = logs["loss"]

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=8, gradient_accumulation_steps=2, logging_steps=1,
        use_cpu=True, report_to=[], disable_tqdm=True, seed=1, lr_scheduler_type="constant",
        **options,
    )  # fmt: skip
    trainer = transformers.Trainer(
        tiny_model(data.tokenizer.vocab_size), arguments, train_dataset=data,
        callbacks=[one for one in [*callbacks, Watch()] if one],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return losses, trainer.state


def test_trainer_knows_the_length_and_resumes_exactly(dataset, tmp_path):
    data = dataset()
    losses, state = train(data, tmp_path / "whole", num_train_epochs=2)
    batches = (len(data) + 7) // 8
    assert state.global_step == 2 * ((batches + 1) // 2)  # the Trainer has computed max_steps from len()
    assert losses[state.global_step] < losses[1]
    for step in (5, state.global_step // 2 // 5 * 5 + 5):  # in the first epoch and in the second
        resumed = dataset()
        checkpoint = millrace.StateCallback.restore(resumed, str(tmp_path / "whole" / f"checkpoint-{step}"))
        rest, _ = train(resumed, tmp_path / f"resumed-{step}", num_train_epochs=2, resume=checkpoint)
        assert rest == {at: loss for at, loss in losses.items() if at > step}


def test_trainer_resumes_exactly_from_the_bucket(dataset, tmp_path):
    url = "s3://corpus/runs/trainer"
    data = dataset()
    assert millrace.CheckpointCallback.restore(url, str(tmp_path), data=data) is None
    saving = millrace.CheckpointCallback(url, every_steps=7, data=data, keep_last=100)
    losses, state = train(data, tmp_path / "whole", num_train_epochs=1, callback=saving, save_strategy="no")
    assert not list((tmp_path / "whole").glob("checkpoint-*"))
    steps = [one.step for one in millrace.checkpoint.ls(url)]
    assert steps == sorted({*range(7, state.global_step, 7), state.global_step})
    resumed = dataset()
    folder = millrace.CheckpointCallback.restore(url, str(tmp_path), step=21, data=resumed)
    rest, _ = train(resumed, tmp_path / "resumed", num_train_epochs=1, resume=folder, callback=None, save_strategy="no")
    assert rest == {at: loss for at, loss in losses.items() if at > 21}


def test_empty_samples_are_for_those_who_skip(dataset):
    order = [sample["input_ids"].tolist() for sample in dataset()]
    for workers in (0, 2):
        data = dataset(batch_size=4)
        data.skip_to({"epoch": 0, "samples": 24, "fingerprint": data.fingerprint})
        batches = list(DataLoader(data, batch_size=None, num_workers=workers))
        assert len(batches) == len(data)
        assert not any(batch["input_ids"].any() for batch in batches[:6])
        assert ids(batches[6:]) == order[24 : len(order) // 4 * 4]


def test_the_example_runs_and_resumes(corpus, model, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    script = Path(__file__).parents[2] / "examples" / "trainer" / "train.py"
    command = [sys.executable, str(script), corpus, model, "--sequence-length", "32", "--output", str(tmp_path)]
    whole = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "600 records, 600 samples an epoch, 0 broken" in whole.stdout
    subprocess.run([*command, "--resume", str(tmp_path / "checkpoint-50")], check=True, capture_output=True)
