"""Loading never runs code of a checkpoint. The checkpoints hold pickles that would create a file."""

import base64
import io
import os
import pickle
import re
import zipfile

import pytest

torch = pytest.importorskip("torch")
import torch.distributed.checkpoint as dcp  # noqa: E402

import millrace.checkpoint as checkpoint  # noqa: E402
import millrace.dcp  # noqa: E402
from millrace import _state, errors  # noqa: E402


@pytest.fixture
def root(endpoint, request):
    return "s3://corpus/untrusted/" + re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)


class Malicious:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


class Own:
    """A class of this program."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return self.number == other.number


def pickles(path):
    """Returns pickles of torch.save of today and before 1.6, of pickle, and in archives."""
    made = {}
    for name, options in (("zip", {}), ("legacy", {"_use_new_zipfile_serialization": False})):
        file = io.BytesIO()
        torch.save(Malicious(path), file, **options)
        made[name] = file.getvalue()
    made["bare"] = pickle.dumps(Malicious(path))
    file = io.BytesIO()
    torch.save({"inside": [torch.ones(2), (Malicious(path),)]}, file)
    made["nested"] = file.getvalue()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:  # as torch.jit.save writes it, which torch.load reads, too
        archive.writestr("archive/constants.pkl", pickle.dumps(Malicious(path)))
        archive.writestr("archive/data.pkl", pickle.dumps(Malicious(path)))
    made["script"] = file.getvalue()
    return made


def save_raw(root, values, meta=None):
    """Saves a checkpoint with values as another program could write them."""
    with checkpoint.Saver(root) as saver:
        tensor = torch.ones(3)
        shard = _state.TensorShard("w", "F32", [3], [], [], tensor)
        run, owner = shard.run(0, 3)
        saver.start(1, [run], [owner], {"values": values, **(meta or {})})
        saver.wait_copied()


@pytest.mark.parametrize("kind", ["zip", "legacy", "bare", "nested", "script"])
def test_a_pickle_in_a_checkpoint_is_not_run(root, kind, tmp_path):
    target = tmp_path / "made"
    raw = {"torch": base64.b64encode(pickles(target)[kind]).decode()}
    save_raw(root, {"evil": raw, "list": {"list": [raw]}, "good": 5})

    # Other values load.
    state = {"w": torch.zeros(3), "good": 0}
    dcp.load(state, storage_reader=millrace.dcp.Reader(root))
    assert torch.equal(state["w"], torch.ones(3)) and state["good"] == 5

    with pytest.raises(BaseException, match="could run code") as raised:
        dcp.load({"w": torch.zeros(3), "evil": None}, storage_reader=millrace.dcp.Reader(root))
    assert "add_safe_globals" in str(raised.value)
    with pytest.raises(errors.UnsupportedError, match="could run code"):
        checkpoint.load(root)
    with pytest.raises(errors.UnsupportedError, match="could run code"):
        checkpoint.load(root, into={"evil": None})
    assert not target.exists()


def test_metadata_is_not_run(root, tmp_path):
    target = tmp_path / "made"
    evil = base64.b64encode(pickles(target)["zip"]).decode()
    save_raw(
        root,
        {"a/@0": {"dtype": "load"}, "b": {"numpy": ["O", evil]}, "c": {"numpy": ["<f4", "AA=="]}, "d": {"unknown": evil}, "e": {"a": 1, "b": 2}},
        {"dicts": {"": {"order": evil, "type": "os.mkdir"}}, "arrays": [evil]},
    )
    for name in ("a", "b", "c", "d", "e"):
        with pytest.raises((errors.CorruptError, errors.UnsupportedError)):
            checkpoint.load(root, into={name: [None] if name == "a" else None})
    with pytest.raises((errors.CorruptError, errors.UnsupportedError)):
        millrace.dcp.Reader(root)
    assert checkpoint.metadata(root) == {"step": 1, "metrics": {}}
    assert not target.exists()


def test_a_folder_of_torch_that_would_run_code_is_refused(tmp_path, endpoint):
    from conftest import BIN
    import subprocess

    target = tmp_path / "made"
    for name, content in pickles(target).items():
        folder = tmp_path / name
        dcp.save({"w": torch.ones(3), "n": 1}, checkpoint_id=str(folder))
        (folder / ".metadata").write_bytes(content)
        done = subprocess.run(
            [os.path.join(BIN, "millrace"), "ckpt", "import", str(folder), f"{tmp_path}/out"], capture_output=True, text=True
        )
        assert done.returncode == 1 and not target.exists(), (name, done.stderr)


def test_a_class_that_the_program_names_is_loaded(root):
    dcp.save({"w": torch.ones(3), "own": Own(7)}, storage_writer=millrace.dcp.Writer(root, 1))
    with pytest.raises(BaseException, match="could run code"):
        dcp.load({"own": None}, storage_reader=millrace.dcp.Reader(root))
    with torch.serialization.safe_globals([Own]):
        state = {"own": None}
        dcp.load(state, storage_reader=millrace.dcp.Reader(root))
        assert state["own"] == Own(7)
        assert checkpoint.load(root)["own"] == Own(7)


def test_what_a_reader_hands_to_planners_is_pickled_here(root, monkeypatch):
    """Planners load pickles without weights_only, so they must not get a pickle of a checkpoint."""
    raw = io.BytesIO()
    torch.save({1, 2, 3}, raw, _use_new_zipfile_serialization=False)
    save_raw(root, {"set": {"torch": base64.b64encode(raw.getvalue()).decode()}, "n": 1})
    reader = millrace.dcp.Reader(root)
    handed = []
    monkeypatch.setattr(
        dcp.DefaultLoadPlanner, "load_bytes", lambda self, item, value: handed.append((item.dest_index.fqn, value.getvalue()))
    )
    dcp.load({"set": None, "n": 0}, storage_reader=reader)
    assert sorted(name for name, _ in handed) == ["n", "set"]
    assert all(content != raw.getvalue() for _, content in handed)
    assert torch.load(io.BytesIO(dict(handed)["set"]), weights_only=True) == {1, 2, 3}
