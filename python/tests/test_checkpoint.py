"""Saving and loading nested states, and the errors."""

import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import millrace.checkpoint as checkpoint
from conftest import BIN
from millrace import _state, errors


@pytest.fixture
def root(endpoint, request):
    return "s3://corpus/runs/" + re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, dict):
        assert list(a) == list(b) or set(a) == set(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b):
            same(one, other)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    else:
        assert a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def random_state(random_, depth=0):
    """Returns a random nesting of arrays and plain values, with keys that need escaping."""
    keys = ["a", "b.c", "x/y", "%", "%2F", "#1", "@0", "(", "", "ä", 0, 7, -3]
    values = [None, True, 3, -(2**70), 1.5, float("nan"), float("-inf"), "text", b"\x00\xff", [], {}, (), [1, (2.5, None)], {5: "five"}]
    if depth < 3 and random_.random() < 0.6 or depth == 0:
        size = random_.randint(1, 5)
        kind = 0 if depth == 0 else random_.randint(0, 2)
        inner = [random_state(random_, depth + 1) for _ in range(size)]
        return inner if kind == 1 else tuple(inner) if kind == 2 else dict(zip(random_.sample(keys, size), inner))
    if random_.random() < 0.5:
        return random_.choice(values)
    shape = [random_.randint(0, 4) for _ in range(random_.randint(0, 3))]
    dtype = random_.choice(["float32", "float64", "float16", "int64", "int8", "uint16", "bool"])
    return np.frombuffer(random_.randbytes(64 * 8), dtype=dtype)[: math.prod(shape)].reshape(shape).copy() if dtype != "bool" else (
        np.zeros(shape, bool)
    )


@pytest.mark.skipif("torch" in sys.modules, reason="numpy arrays come back where torch is not imported")
def test_any_state_comes_back(root):
    random_ = random.Random(3)
    with checkpoint.Saver(root, keep_last=100) as saver:
        states = [random_state(random_) for _ in range(20)]
        for step, state in enumerate(states):
            saver.save(state, step)
    assert [one.step for one in checkpoint.ls(root)] == list(range(20))
    for step, state in enumerate(states):
        same(checkpoint.load(root, step=step), state)


def test_paths_tell_keys_apart():
    random_ = random.Random(4)
    for _ in range(300):
        state = {"top": random_state(random_)}
        tensors, values = _state.flatten(state)
        flat = {leaf.name: leaf.value for leaf in tensors}
        flat.update({name: _state.decode_value(value) for name, value in values.items()})
        assert len(flat) == len(tensors) + len(values)
        same(_state.nest(flat), state)


def test_loads_into_what_is_there(root):
    saved = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "n": {"lr": 0.5, "steps": [1, 2]}, "t": (np.ones(2), 9)}
    checkpoint.save(saved, root, 7, metadata={"job": "tiny"}, metrics={"loss": 2.5})
    state = {"w": np.zeros((3, 4), np.float32), "n": {"lr": 0.0}, "t": (np.zeros(2), 0)}
    weights = state["w"]
    loaded = checkpoint.load(root, into=state)
    same(loaded["w"], saved["w"])
    assert loaded["w"] is weights, "filled in place"
    assert loaded["n"] == {"lr": 0.5} and loaded["t"][1] == 9
    assert checkpoint.metadata(root) == {"job": "tiny", "step": 7, "metrics": {"loss": 2.5}}

    columns = np.zeros((4, 3), np.float64).T  # not contiguous, and not of the saved type
    checkpoint.load(root, into={"w": columns})
    assert (columns == saved["w"]).all()

    empty = checkpoint.load(root, into={"t": []})
    same(empty["t"], saved["t"])

    with pytest.raises(errors.NotFoundError, match='has no gone, other'):
        checkpoint.load(root, into={"w": columns, "gone": np.zeros(3), "other": 1})
    untouched = np.full(3, 5.0)
    checkpoint.load(root, into={"w": columns, "gone": untouched}, strict=False)
    assert (untouched == 5).all()
    with pytest.raises(errors.InvalidArgumentError, match=r'"w" has the shape \(3, 4\), and \(4, 3\) is to be filled'):
        checkpoint.load(root, into={"w": np.zeros((4, 3), np.float32)})


def test_copies_before_it_returns_and_keeps_what_it_is_told(root):
    array = np.zeros(300_000, np.float32)
    with checkpoint.Saver(root, keep_last=2, keep_every=4, keep_best=1, metric="loss") as saver:
        for step in range(1, 10):
            array[:] = step
            saver.save({"a": array}, step, metrics={"loss": abs(step - 3)})
            array[:] = -1
    assert [one.step for one in checkpoint.ls(root)] == [3, 4, 8, 9]
    for step in (3, 4, 8, 9):
        assert (checkpoint.load(root, step=step)["a"] == step).all()
    run("ckpt", "verify", root)


def run(*arguments):
    return subprocess.run([os.path.join(BIN, "millrace"), *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def test_overlapped_saves_are_of_the_moment_before_the_tensors_change(root):
    array = np.zeros(300_000, np.float32)
    with checkpoint.Saver(root) as saver:
        for step in range(1, 5):
            array += 1
            saver.save({"a": array}, step, overlap=True)
            saver.wait_copied()
    assert (checkpoint.load(root)["a"] == 4).all()


def test_async_saves_follow_each_other(root):
    first = checkpoint.async_save({"a": np.ones(1000)}, root, 1)
    second = checkpoint.async_save({"a": np.ones(1000) * 2}, root, 2)
    assert second.result()["step"] == 2
    assert first.result() is None
    assert [one.step for one in checkpoint.ls(root)] == [1, 2]


def test_a_failed_save_is_told_once(root):
    with checkpoint.Saver(root) as saver:
        saver.save({"a": np.ones(10)}, 1)
        saver.wait()
        saver.save({"a": np.zeros(10)}, 1)
        with pytest.raises(errors.AlreadyExistsError):
            saver.wait()
        saver.save({"a": np.zeros(10)}, 2)
        assert saver.wait()["step"] == 2
    assert (checkpoint.load(root, step=1)["a"] == 1).all()


def test_what_no_checkpoint_can_hold_is_named(root):
    saver = checkpoint.Saver(root)
    for state, says in [
        ({"a": {"b": [1, object()]}}, '"a/b/1" is a builtins.object'),
        ({"a": {(1, 2): np.ones(3)}}, "has the key (1, 2)"),
        ({"a": np.ones(3, complex)}, 'elements of type complex128'),
        ([1, 2], "not a list"),
    ]:
        with pytest.raises(errors.Error) as raised:
            saver.save(state, 1)
        assert says in str(raised.value)
    with pytest.raises(errors.InvalidArgumentError, match='metadata has a key "values"'):
        saver.save({"a": np.ones(3)}, 1, metadata={"values": 1})
    with pytest.raises(errors.NotFoundError):
        checkpoint.load(root)
    assert checkpoint.ls(root) == []


def test_damage_is_found(root, endpoint, tmp_path):
    checkpoint.save({"a": np.arange(100_000)}, root, 1)
    import millrace

    (key,) = [line.split()[-1] for line in run("ls", root + "/step-00000001/", "--recursive").splitlines() if "rank-" in line]
    url = f"{root}/step-00000001/{key}"
    with millrace.open(url) as file:
        content = bytearray(file.read())
    content[500_000] ^= 4
    with millrace.open(url, "wb") as file:
        file.write(content)
    with pytest.raises(errors.Error):
        checkpoint.load(root)


# With torch, if it is installed


def test_optimizers_and_models_resume_exactly(root):
    torch = pytest.importorskip("torch")

    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)).to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def train(model, optimizer, scheduler, steps):
        for _ in range(steps):
            loss = model(torch.randn(4, 8, dtype=torch.bfloat16)).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()

    def state(model, optimizer, scheduler):
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
            "python": random.getstate(),
        }

    whole = make()
    train(*whole, 3)
    checkpoint.save(state(*whole), root, 3)
    train(*whole, 3)

    parts = make()
    loaded = checkpoint.load(root, into=state(*parts))
    parts[0].load_state_dict(loaded["model"])
    parts[1].load_state_dict(loaded["optimizer"])
    parts[2].load_state_dict(loaded["scheduler"])
    torch.set_rng_state(loaded["rng"])
    random.setstate(loaded["python"])
    train(*parts, 3)
    for name, tensor in whole[0].state_dict().items():
        assert torch.equal(tensor, parts[0].state_dict()[name]), name


def test_other_ranks_load_what_ranks_saved(root):
    pytest.importorskip("torch")
    program = Path(__file__).with_name("sharded_state.py")
    for ranks, actions in ((4, ["save", "dcp-save"]), (2, ["load", "dcp-load"]), (3, ["load", "dcp-load"])):
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", program, root, *actions],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
