import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import millrace


def rows(samples):
    return [np.asarray(sample["input_ids"]).tolist() for sample in samples]


def numpy_dataset(dataset, **options):
    return dataset(framework="numpy", **options)


def test_an_epoch_is_the_samples_in_order(dataset):
    data = numpy_dataset(dataset)
    first = rows(data)
    assert len(first) == len(data) == data.samples_per_epoch > 100
    assert first == rows([data.sample(i) for i in range(len(data))])
    second = rows(data)
    assert second == rows([data.sample(i, epoch=1) for i in range(len(data))]) and second != first
    data.set_epoch(0)
    assert rows(data) == first


DAEMON = """
import queue, sys, threading
import millrace

data = millrace.Dataset(sys.argv[1], sys.argv[2], mode="pad", sequence_length=32, framework="numpy")
samples = queue.Queue(2)

def prefetch():
    while True:
        for sample in data:
            samples.put(sample)

for _ in range(4):
    threading.Thread(target=prefetch, daemon=True).start()
for _ in range(10):
    samples.get()
"""


def test_daemon_threads_end_with_the_interpreter(corpus, model):
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", DAEMON, corpus, model], capture_output=True, text=True, timeout=100)
        assert ended.returncode == 0, ended.stderr


def test_the_last_samples_are_read_if_they_are_wanted(corpus, model):
    def of_rank(rank, ranks, batch_size, **options):
        return millrace.Dataset(corpus, model, mode="pad", sequence_length=32, framework="numpy", shuffle_window=0,
                                rank=rank, world_size=ranks, batch_size=batch_size, drop_last=False, **options)

    whole = of_rank(0, 1, 7)
    batches = list(whole)
    assert [len(batch["input_ids"]) for batch in batches] == [7] * 85 + [5] and len(whole) == 86
    samples = [row.tolist() for batch in batches for row in batch["input_ids"]]
    assert samples == rows([whole.sample(i) for i in range(600)])
    assert whole.state_dict()["epoch"] == 1 and len(list(whole)) == 86
    seen = []
    for rank in range(4):  # steps of 28 samples: 12 are left
        data = of_rank(rank, 4, 7)
        sizes = [len(batch["input_ids"]) for batch in data]
        assert sizes == [7] * 21 + [3] and len(data) == 22
        data.set_epoch(0)
        seen += [row.tolist() for batch in data for row in batch["input_ids"]]
    assert sorted(seen) == sorted(samples)
    assert [len(list(of_rank(rank, 7, None))) for rank in range(7)] == [86] * 5 + [85] * 2  # 600 = 85 * 7 + 5
    assert [len(batch["input_ids"]) for batch in of_rank(0, 1, 1000)] == [600]


def test_samples_are_what_transformers_models_want(dataset):
    aligned, shifted = numpy_dataset(dataset).sample(3), numpy_dataset(dataset, labels="shifted").sample(3)
    assert aligned["input_ids"].dtype == np.int64 and aligned["input_ids"].shape == (32,)
    assert aligned["labels"].tolist() == aligned["input_ids"].tolist()
    assert shifted["labels"][:-1].tolist() == aligned["input_ids"][1:].tolist()
    narrow = numpy_dataset(dataset, dtype="int32").sample(3)
    assert narrow["input_ids"].dtype == np.int32 and narrow["input_ids"].tolist() == aligned["input_ids"].tolist()


def test_padding_has_a_mask(dataset):
    data = numpy_dataset(dataset, mode="pad", sequence_length=64)
    assert len(data) == data.records == 600
    lengths = set()
    for sample in data:
        length = int(sample["attention_mask"].sum())
        lengths.add(length)
        assert sample["attention_mask"].tolist() == [1] * length + [0] * (64 - length)
        assert sample["labels"][:length].tolist() == sample["input_ids"][:length].tolist()
        assert (sample["labels"][length:] == -100).all()
        assert length == 64 or sample["input_ids"][length - 1] == data.tokenizer.eos
    assert 64 in lengths and len(lengths) > 10


def test_batches_and_ranks_divide_the_same_order(dataset):
    data = numpy_dataset(dataset)
    order = rows(data)
    batched = numpy_dataset(dataset, batch_size=6)
    batches = [batch["input_ids"].tolist() for batch in batched]
    assert len(batches) == len(batched) == len(order) // 6
    assert [row for batch in batches for row in batch] == order[: len(batches) * 6]
    shares = [rows(numpy_dataset(dataset, rank=rank, world_size=3)) for rank in range(3)]
    assert [row for step in zip(*shares) for row in step] == order[: len(order) // 3 * 3]


def test_resumes_exactly_on_other_ranks_and_batches(dataset):
    order = rows(numpy_dataset(dataset))
    data = numpy_dataset(dataset, batch_size=4)
    batches, taken = iter(data), []
    for _ in range(9):
        taken += next(batches)["input_ids"].tolist()
    state = pickle.loads(pickle.dumps(data.state_dict()))
    del batches
    assert state["samples"] == 36 and len(str(state)) < 1024
    resumed = [numpy_dataset(dataset, rank=rank, world_size=2, batch_size=2) for rank in range(2)]
    for one in resumed:
        one.load_state_dict(state)
    rest = [
        row
        for step in zip(*([batch["input_ids"].tolist() for batch in one] for one in resumed))
        for share in step
        for row in share
    ]
    assert taken + rest == order[: len(taken) + len(rest)] and len(order) - len(taken) - len(rest) < 4


def test_a_second_iterator_begins_from_the_start(dataset):
    data = numpy_dataset(dataset, batch_size=4)
    peeked = next(iter(data))["input_ids"].tolist()
    assert data.state_dict()["samples"] == 4
    epoch = [batch["input_ids"].tolist() for batch in data]
    assert len(epoch) == len(data) and epoch[0] == peeked
    assert data.state_dict() == {"epoch": 1, "samples": 0, "fingerprint": data.fingerprint}
    data.load_state_dict({"epoch": 0, "samples": 8, "fingerprint": data.fingerprint})
    assert next(iter(data))["input_ids"].tolist() == epoch[2]
    assert [batch["input_ids"].tolist() for batch in data] == epoch, "a state counts once"


def test_a_position_in_other_data_is_refused(dataset):
    state = numpy_dataset(dataset).state_dict()
    with pytest.raises(millrace.Error, match="length") as raised:
        numpy_dataset(dataset, sequence_length=16).load_state_dict(state)
    assert raised.value.code == "precondition_failed"
    with pytest.raises(ValueError, match="inside a step"):
        numpy_dataset(dataset, batch_size=7).load_state_dict({**state, "samples": 3})


def test_mistakes_are_named(corpus, model):
    for wrong, word in (
        ({"mode": "fold"}, "mode"),
        ({"labels": "both"}, "labels"),
        ({"dtype": "float"}, "dtype"),
        ({"rank": 2, "world_size": 2}, "rank 2"),
        ({"batch_size": 0}, "batch"),
        ({"template": "{text"}, "template|brace"),
    ):
        with pytest.raises(ValueError, match=word):
            millrace.Dataset(corpus, tokenizer=model, **wrong)
        with pytest.raises(millrace.Error) as raised:
            millrace.Dataset(corpus, tokenizer=model, **wrong)
        assert raised.value.code == "invalid_argument"
    with pytest.raises(FileNotFoundError, match="s3://corpus/none"):
        millrace.Dataset("s3://corpus/none/", tokenizer=model)


def test_an_argument_of_another_type_is_named(corpus, model, dataset):
    for name, value in (
        ("sequence_length", "64"),
        ("sequence_length", 64.0),
        ("batch_size", "8"),
        ("threads", None),
        ("held_out", "0.1"),
        ("template", None),
    ):
        with pytest.raises(TypeError, match=f"{name} must be an? .*{re.escape(repr(value))}"):
            millrace.Dataset(corpus, tokenizer=model, **{name: value})
    data = numpy_dataset(dataset)
    with pytest.raises(IndexError, match="there is no sample -1 in epochs of"):
        data.sample(-1)
    with pytest.raises(TypeError, match="index must be an int"):
        data.sample("1")
    with pytest.raises(TypeError, match="epoch must be an int, not 'x'"):
        data.set_epoch("x")
    with pytest.raises(millrace.Error, match="the state has no fingerprint, samples: give what state_dict"):
        data.load_state_dict({"epoch": 0})
    with pytest.raises(millrace.Error, match=r"length differs \(\d+ then, 16 now\)"):
        numpy_dataset(dataset, sequence_length=16).load_state_dict(data.state_dict())


def test_names_are_listed_without_their_modules():
    listed = dir(millrace)
    assert {"Dataset", "CheckpointCallback", "checkpoint", "register_s3"} <= set(listed)
    assert not {"Any", "TYPE_CHECKING", "annotations"} & set(listed)


def test_a_missing_package_is_named_with_its_extra():
    program = "import sys; sys.modules['fsspec'] = None; import millrace; millrace.register_s3"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode != 0
    assert "millrace.register_s3 needs the package fsspec: pip install 'millrace[fsspec]'" in ran.stderr


def test_pickles_without_what_is_open(dataset):
    data = numpy_dataset(dataset)
    assert rows(pickle.loads(pickle.dumps(data))) == rows(data)


def test_boundaries_tell_documents_apart(dataset):
    data = numpy_dataset(dataset, boundaries=True, batch_size=4)
    for batch in data:
        positions, starts = batch["position_ids"].reshape(-1), batch["cu_seqlens"]
        assert starts.dtype == np.int32 and starts[0] == 0 and starts[-1] == 4 * 32
        for first, last in zip(starts, starts[1:]):
            assert positions[first:last].tolist() == list(range(last - first))
    assert "cu_seqlens" not in next(iter(numpy_dataset(dataset, boundaries=True)))


def test_answers_alone_are_learned(dataset):
    data = numpy_dataset(dataset, mode="sft", template="{title}", response="\n{text}", sequence_length=128)
    tokenizer = data.tokenizer
    for sample in data:
        learned = sample["labels"] != -100
        assert sample["labels"][learned].tolist() == sample["input_ids"][learned].tolist()
        prompt = tokenizer.decode(sample["input_ids"][: int(learned.argmax())])
        assert prompt.strip().startswith("record") and learned.any()
        assert not (learned & (sample["attention_mask"] == 0)).any()


def test_what_is_held_out_is_disjoint_and_complete(dataset):
    parts = {}
    for part in ("train", "held_out"):
        data = numpy_dataset(dataset, mode="pad", sequence_length=128, held_out=0.2, part=part)
        parts[part] = {tuple(row) for row in rows(data)}
        assert len(parts[part]) == len(data)
    whole = {tuple(row) for row in rows(numpy_dataset(dataset, mode="pad", sequence_length=128))}
    assert parts["train"] | parts["held_out"] == whole and not parts["train"] & parts["held_out"]
    assert 0.1 < len(parts["held_out"]) / len(whole) < 0.3


def test_documents_are_the_records_in_order(corpus):
    from conftest import records

    expected = [f"{record['title']}: {record['text']}" for part in range(2) for record in records(300, part)]
    assert list(millrace.documents(corpus, template="{title}: {text}")) == expected
    assert list(millrace.documents([corpus], template="{title}: {text}", at_once=7)) == expected
    with pytest.raises(FileNotFoundError):
        list(millrace.documents("s3://corpus/none/"))


def test_a_split_is_said_in_the_url_or_beside_it(endpoint, tmp_path):
    import json

    from conftest import millrace as run

    for split in ("train", "test"):
        path = tmp_path / f"{split}.jsonl"
        path.write_text("".join(json.dumps({"text": f"{split} {i}"}) + "\n" for i in range(3)))
        run("cp", str(path), f"s3://corpus/splits/{split}.jsonl")
    expected = [f"test {i}" for i in range(3)]
    assert list(millrace.documents("s3://corpus/splits/#test")) == expected
    assert list(millrace.documents("s3://corpus/splits/", split="test")) == expected
    assert list(millrace.documents(millrace.Source("s3://corpus/splits/", split="test"), split="train")) == expected
    with pytest.raises(FileNotFoundError, match='did you mean "train"'):
        list(millrace.documents("s3://corpus/splits/", split="trian"))


@pytest.fixture(scope="module")
def alpaca(endpoint, tmp_path_factory):
    """Returns the URL of an array of records, two of them unusable, under a name without a format."""
    import json

    from conftest import millrace as run

    path = tmp_path_factory.mktemp("alpaca") / "alpaca.dat"
    answers = [{"text": f"answer number {i}"} for i in range(300)]
    answers[7], answers[9] = {"text": [7]}, None
    path.write_text(json.dumps({"version": 1, "data": answers}, indent=2))
    run("cp", str(path), "s3://corpus/sft/alpaca.dat")
    return "s3://corpus/sft/alpaca.dat"


def test_formats_are_said_for_all_sources_or_for_each(alpaca, corpus, model):
    texts = [f"answer number {i}" for i in range(300) if i not in (7, 9)]
    assert list(millrace.documents(alpaca, format="json:data")) == texts
    assert list(millrace.documents(millrace.Source(alpaca, format="json:data"))) == texts
    sources = [millrace.Source(alpaca, 0.5, "json:data"), (corpus, 1.0)]
    data = millrace.Dataset(sources, model, mode="pad", sequence_length=32, framework="numpy")
    assert data.records == 298 + 600 and data.broken_records == 2
    assert data.source_shares[0] == (298, 149) and data.source_shares[1].samples_per_epoch == 600
    assert len(data) == 149 + 600
    with pytest.raises(millrace.Error, match="field of json"):
        millrace.Dataset(corpus, model, format="jsonl:data")


def test_broken_records_are_an_error_beyond_their_limit(alpaca, model):
    options = {"format": "json:data", "mode": "pad", "sequence_length": 32, "framework": "numpy"}
    with pytest.raises(millrace.errors.CorruptError, match="2 of 300 records cannot be used"):
        millrace.Dataset(alpaca, model, max_broken=1, **options)
    assert millrace.Dataset(alpaca, model, max_broken=2, **options).broken_records == 2
    with pytest.raises(ValueError):
        millrace.Dataset(alpaca, model, max_broken=-1, **options)
    with pytest.raises(millrace.errors.CorruptError, match="2 records cannot be used, and 1 are allowed"):
        list(millrace.documents(alpaca, format="json:data", max_broken=1))
    assert len(list(millrace.documents(alpaca, format="json:data", max_broken=2))) == 298


def test_what_was_read_is_kept_on_disk(alpaca, model, tmp_path):
    options = {"format": "json:data", "mode": "pad", "sequence_length": 32, "framework": "numpy"}
    kept = millrace.Dataset(
        alpaca, model, disk_cache=tmp_path / "cache", disk_cache_bytes="256MiB", patience=5, **options
    )
    assert rows(kept) == rows(millrace.Dataset(alpaca, model, **options))
    assert any((tmp_path / "cache").rglob("*"))


def test_a_cache_folder_of_others_is_refused_and_left_alone(alpaca, model, tmp_path):
    options = {"format": "json:data", "mode": "pad", "sequence_length": 32, "framework": "numpy", "patience": 5}
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in ("index.html", "blocks-of-wood"):
        (theirs / name).write_text("theirs")
    with pytest.raises(ValueError, match="theirs.* was not made by Millrace.*disk_cache"):
        millrace.Dataset(alpaca, model, disk_cache=theirs, **options)
    assert {file.name: file.read_text() for file in theirs.iterdir()} == {
        "index.html": "theirs",
        "blocks-of-wood": "theirs",
    }
    (tmp_path / "cache").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    with pytest.raises(PermissionError, match="symbolic link"):
        millrace.Dataset(alpaca, model, disk_cache=tmp_path / "link", **options)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(PermissionError, match="other users may write to it"):
        millrace.Dataset(alpaca, model, disk_cache=tmp_path / "cache", **options)


def test_indices_are_samples(dataset):
    data = numpy_dataset(dataset)
    same = lambda one, other: all((one[name] == other[name]).all() for name in one)  # noqa: E731
    assert same(data[5], data.sample(5)) and same(data[np.int64(5)], data.sample(5))
    assert same(data[-1], data.sample(data.samples_per_epoch - 1))
    assert [sample["input_ids"].tolist() for sample in data[2:9:3]] == rows([data.sample(i) for i in (2, 5, 8)])
    for beyond in (data.samples_per_epoch, -data.samples_per_epoch - 1):
        with pytest.raises(IndexError, match="there is no sample"):
            data[beyond]
    with pytest.raises(TypeError):
        data["5"]
