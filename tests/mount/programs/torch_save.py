"""torch.save and torch.load, mapped too; safetensors of torch; a sharded checkpoint that is fsynced, then renamed."""
# needs: python:torch, python:safetensors
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file


def state(seed):
    torch.manual_seed(seed)
    return {f"layer{i}": torch.randn(200, 300) for i in range(10)} | {"step": seed}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) if torch.is_tensor(a[k]) else a[k] == b[k] for k in a)


def load_dcp(folder):
    loaded = {k: torch.zeros_like(v) if torch.is_tensor(v) else 0 for k, v in state(3).items()}
    dcp.load(loaded, checkpoint_id=folder)
    return loaded


if sys.argv[1] == "work":
    torch.save(state(1), "model.pt")
    torch.save(state(2), "model.pt")
    torch.save(state(2), "old-format.pt", _use_new_zipfile_serialization=False)
    save_file({k: v for k, v in state(2).items() if torch.is_tensor(v)}, "model.safetensors")
    for seed in (2, 3):
        dcp.save(state(seed), checkpoint_id="sharded")  # the second replaces the first
    with open("again.pt.tmp", "wb") as file:
        torch.save(state(4), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace("again.pt.tmp", "again.pt")
assert same(torch.load("model.pt"), state(2))
assert same(torch.load("model.pt", mmap=True), state(2))
assert same(torch.load("old-format.pt"), state(2))
assert same(torch.load("again.pt"), state(4))
assert same(load_file("model.safetensors") | {"step": 2}, state(2))
assert same(load_dcp("sharded"), state(3))
