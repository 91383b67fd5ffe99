"""Saves random nested states in every way, loads them, and compares them with the originals.

Compares types, types of keys, the order of dicts, and values bit by bit. test_fidelity.py tests some hundred states with
fixed seeds. To test more by hand, with an endpoint of its own:

    MILLRACE_BIN=build/release/bin PYTHONPATH=build/release/python python3 python/tests/state_fidelity.py --seconds 600
"""

import argparse
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections import OrderedDict

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

import millrace.checkpoint as checkpoint

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool,
]  # fmt: skip
ARRAY_TYPES = ["<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1"]
SCALAR_TYPES = [*ARRAY_TYPES, "<c16", "<c8"]
# Keys that need care: separators and marks of paths, text like an escape, digits, an empty text, other scripts.
KEYS = ["a", "b", "x/y", "%", "%2F", "%00", "#1", "@0", "(", "(3", "", " ", "ä", "水", "zz", "Z", "10", "step", "\x00", "a\nb"]
TEXTS = ["", "text", "ä水🎉", "\x00\x7f", '"\\', "#1", "None"]


class States:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tensors = []

    def bytes(self, count):
        return self.random.randbytes(count)

    def tensor(self):
        if self.tensors and self.random.random() < 0.15:
            return self.random.choice(self.tensors)  # tied: one tensor at several places
        shape = [self.random.randint(0 if self.random.random() < 0.2 else 1, 4) for _ in range(self.random.randint(0, 3))]
        dtype = self.random.choice(DTYPES)
        count = math.prod(shape)
        if dtype == torch.bool:
            made = torch.tensor([self.random.random() < 0.5 for _ in range(count)], dtype=dtype).reshape(shape)
        else:
            raw = torch.frombuffer(bytearray(self.bytes(8 * count) or b"\0" * 8), dtype=torch.uint8)
            made = raw.view(dtype)[:count].reshape(shape).clone()
        kind = self.random.randrange(6)
        if kind == 0 and made.dim() > 1:
            made = made.transpose(0, 1)
        elif kind == 1 and made.dim() and made.shape[0] > 1:
            made = made[::2]
        elif kind == 2 and made.dim():
            made = made[1:]
        elif kind == 3 and made.dim() and made.shape[0] == 1:
            made = made.expand(3, *made.shape[1:])
        self.tensors.append(made)
        return made

    def array(self):
        shape = [self.random.randint(0, 3) for _ in range(self.random.randint(0, 2))]
        name = self.random.choice(ARRAY_TYPES)
        count = math.prod(shape)
        if name == "|b1":
            return np.array([self.random.random() < 0.5 for _ in range(count)], dtype=bool).reshape(shape)
        return np.frombuffer(self.bytes(8 * count), dtype=name)[:count].reshape(shape).copy()

    def scalar(self):
        name = self.random.choice(SCALAR_TYPES)
        if name == "|b1":
            return np.bool_(self.random.random() < 0.5)
        return np.frombuffer(self.bytes(16), dtype=name)[0]

    def number(self):
        bits = self.random.choice([3, 8, 31, 32, 63, 64, 65, 127, 200, 1000])
        return self.random.choice([1, -1]) * (2**bits + self.random.randint(-2, 2))

    def plain(self):
        r = self.random
        return r.choice([
            lambda: None, lambda: r.random() < 0.5, self.number, lambda: r.choice([0, -1, 255, -(2**63), 2**63 - 1]),
            lambda: r.uniform(-1e6, 1e6), lambda: r.choice([0.0, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan]),
            lambda: r.choice(TEXTS), lambda: self.bytes(r.choice([0, 1, 5, 300])), self.scalar,
            lambda: torch.Size([r.randint(0, 9) for _ in range(r.randint(0, 3))]), lambda: r.choice(DTYPES),
        ])()  # fmt: skip

    def leaf(self):
        draw = self.random.random()
        return self.tensor() if draw < 0.4 else self.array() if draw < 0.5 else self.plain()

    def keys(self, count):
        texts = self.random.sample(KEYS, min(count, len(KEYS)))
        ints = self.random.sample(range(-5, 200), count)
        kind = self.random.random()
        keys = texts if kind < 0.6 else ints if kind < 0.8 else [self.random.choice(pair) for pair in zip(texts, ints)]
        # In torch's format 10 and "10" are the same key.
        return list({str(key): key for key in keys}.values())

    def odd_dict(self):
        """Returns a dict with keys that are neither str nor int. Such a dict has no tensors."""
        keys = self.random.sample([True, 2.5, None, (1, "a"), b"k", 2**70, "t"], self.random.randint(1, 3))
        return {key: self.plain() for key in keys}

    def state(self, depth=0):
        draw = self.random.random()
        if depth and (depth > 3 or draw < 0.45):
            return self.leaf()
        if depth and draw < 0.5:
            return self.odd_dict()
        size = self.random.randint(0 if depth else 1, 5)
        kind = 0 if not depth else self.random.randrange(4)
        if kind > 1:
            inner = [self.state(depth + 1) for _ in range(size)]
            return inner if kind == 2 else tuple(inner)
        keys = self.keys(size)
        made = OrderedDict() if kind == 1 else {}
        for key in keys:
            made[key] = self.state(depth + 1)
        return made


def differs(a, b, path="state"):
    """Returns where and how two states differ. None if they are equal."""
    if type(a) is not type(b):
        return f"{path}: {type(a)} became {type(b)}"
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{path}: {a.dtype} {tuple(a.shape)} became {b.dtype} {tuple(b.shape)}"
        ours, theirs = (one.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for one in (a, b))
        same = torch.equal(ours, theirs)
        return None if same else f"{path}: other bytes"
    if isinstance(a, (np.ndarray, np.generic)):
        same = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return None if same else f"{path}: {a!r} became {b!r}"
    if isinstance(a, dict):
        if [(type(key), key) for key in a] != [(type(key), key) for key in b]:
            return f"{path}: keys {list(a)!r} became {list(b)!r}"
        return next(filter(None, (differs(a[key], b[key], f"{path}[{key!r}]") for key in a)), None)
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{path}: {len(a)} items became {len(b)}"
        return next(filter(None, (differs(x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b)))), None)
    if isinstance(a, float):
        same = struct.pack("<d", a) == struct.pack("<d", b) or (math.isnan(a) and math.isnan(b))
        return None if same else f"{path}: {a!r} became {b!r}"
    return None if a == b else f"{path}: {a!r} became {b!r}"


def mapped(value, change):
    """Returns the state with every leaf changed, in the same containers."""
    if isinstance(value, torch.Size):
        return change(value)
    if isinstance(value, dict):
        return type(value)((key, mapped(inner, change)) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(inner, change) for inner in value)
    return change(value)


def blank(value):
    return torch.zeros(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else None


def arrays_as_tensors(value):
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def without_odd_dicts(value):
    """Returns the state without dicts that torch loses: empty ones, and ones with keys other than str and int."""
    if isinstance(value, dict):
        if not value:
            return type(value)(none=1)
        plain = all(type(key) in (str, int) for key in value)
        return type(value)((key, without_odd_dicts(inner)) for key, inner in value.items()) if plain else None
    if type(value) in (list, tuple):
        return type(value)(without_odd_dicts(inner) for inner in value)
    return value


def of_torch(value):
    """Returns the state as torch's own format loads it, with str keys and plain dicts. It pickles tuples unchanged."""
    if isinstance(value, dict):
        return {str(key): of_torch(inner) for key, inner in value.items()}
    if type(value) is list:
        return [of_torch(inner) for inner in value]
    return value


def ckpt(*arguments):
    done = subprocess.run(
        [os.path.join(os.environ["MILLRACE_BIN"], "millrace"), "--quiet", "ckpt", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, (arguments, done.stderr)


def quietly(action):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no process group
        return action()


def saver_to_everywhere(state, folder):
    checkpoint.save(state, f"{folder}/saved", 1)
    yield "load", state, checkpoint.load(f"{folder}/saved")
    ckpt("export", f"{folder}/saved", f"{folder}/saved.pt")
    exported = torch.load(f"{folder}/saved.pt", weights_only=False)
    exported.pop("millrace_meta", None)
    yield "export to torch", mapped(state, arrays_as_tensors), exported
    ckpt("import", f"{folder}/saved.pt", f"{folder}/from-pt")
    yield "import of that", state, checkpoint.load(f"{folder}/from-pt")
    ckpt("export", f"{folder}/saved", f"{folder}/saved-dcp", "--to", "dcp")
    ckpt("import", f"{folder}/saved-dcp", f"{folder}/from-dcp")
    yield "export to DCP, import", state, checkpoint.load(f"{folder}/from-dcp")


def torch_to_torch(state, folder):
    torch.save(state, f"{folder}/original.pt")
    ckpt("import", f"{folder}/original.pt", f"{folder}/torch")
    yield "import from torch", state, checkpoint.load(f"{folder}/torch")
    ckpt("export", f"{folder}/torch", f"{folder}/again.pt")
    yield "export of that", state, torch.load(f"{folder}/again.pt", weights_only=False)


def dcp_to_dcp(state, folder):
    """Compares with torch's own format, in which int keys become str."""
    import millrace.dcp

    def loaded(**source):
        into = mapped(state, blank)
        quietly(lambda: dcp.load(into, **source))
        return into

    state = without_odd_dicts(state)
    quietly(lambda: dcp.save(state, checkpoint_id=f"{folder}/dcp"))
    expected = loaded(checkpoint_id=f"{folder}/dcp")
    ckpt("import", f"{folder}/dcp", f"{folder}/imported")
    yield "import from DCP", of_torch(state), of_torch(checkpoint.load(f"{folder}/imported"))
    ckpt("export", f"{folder}/imported", f"{folder}/dcp-again", "--to", "dcp")
    yield "export to DCP", expected, loaded(checkpoint_id=f"{folder}/dcp-again")
    yield "our reader of DCP", expected, loaded(storage_reader=millrace.dcp.Reader(f"{folder}/imported"))
    quietly(lambda: dcp.save(state, storage_writer=millrace.dcp.Writer(f"{folder}/written", 1)))
    yield "our writer for DCP", expected, loaded(storage_reader=millrace.dcp.Reader(f"{folder}/written"))
    checkpoint.save(state, f"{folder}/saved", 1)
    yield "our reader of our own", expected, loaded(storage_reader=millrace.dcp.Reader(f"{folder}/saved"))


def check(seed, count):
    """Tests several states as parts of one. Returns the differences."""
    states = States(seed)
    whole = {f"s{i}": states.state() for i in range(count)}
    for way in (saver_to_everywhere, torch_to_torch, dcp_to_dcp):
        with tempfile.TemporaryDirectory(prefix="millrace-fidelity-") as folder:
            for name, before, after in way(whole, folder):
                found = differs(before, after)
                if found:
                    return f"seed {seed}, {name}: {found}"
    return None


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--seed", type=int, default=1_000)
    arguments = options.parse_args()
    began, seed, bad = time.monotonic(), arguments.seed, 0
    while time.monotonic() - began < arguments.seconds:
        found = check(seed, 50)
        seed += 1
        if found:
            bad += 1
            print(found, flush=True)
    print(f"{(seed - arguments.seed) * 50} states, {bad} of {seed - arguments.seed} rounds differ")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
