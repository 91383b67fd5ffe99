"""save_file, save over what is there, and lazy loading."""
# needs: python:safetensors, python:numpy
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def tensors(seed):
    random = np.random.default_rng(seed)
    return {f"layer.{i}.weight": random.standard_normal((64 + i, 512), dtype="float32") for i in range(20)}


if sys.argv[1] == "work":
    save_file(tensors(1), "model.safetensors", metadata={"format": "np"})
    save_file(tensors(2), "model.safetensors", metadata={"format": "np"})
expected = tensors(2)
loaded = load_file("model.safetensors")
assert loaded.keys() == expected.keys() and all((loaded[name] == expected[name]).all() for name in expected)
with safe_open("model.safetensors", framework="np") as file:
    assert file.metadata() == {"format": "np"}
    assert (file.get_slice("layer.7.weight")[10:20] == expected["layer.7.weight"][10:20]).all()
