"""One rank of a job with a state that is sharded in every way of torch. torchrun runs it.

    sharded_state.py URL save|load|dcp-save|dcp-load...
"""

import atexit
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import millrace.checkpoint as checkpoint
import millrace.dcp


def full(name, shape):
    """Returns the saved content of a tensor, which every rank can compute."""
    generator = torch.Generator().manual_seed(hash_of(name))
    return torch.randn(shape, generator=generator)


def hash_of(name):
    return sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**31


def make(fill):
    """Returns a state that is sharded over all ranks. `fill`: with its content, else with zeros."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    two = init_device_mesh("cpu", (2, ranks // 2)) if ranks % 2 == 0 else None

    def sharded(name, shape, mesh, *placements):
        whole = full(name, shape) if fill else torch.zeros(shape)
        return distribute_tensor(whole, mesh, placements)

    state = {
        "rows": sharded("rows", (13, 6), mesh, Shard(0)),
        "columns": sharded("columns", (5, 17), mesh, Shard(1)),
        "few": sharded("few", (1, 3), mesh, Shard(0)),
        "everywhere": sharded("everywhere", (7, 3), mesh, Replicate()),
        "blocks": sharded("blocks", (9, 11), two, Shard(0), Shard(1)) if two else sharded("blocks", (9, 11), mesh, Shard(1)),
        "groups": sharded("groups", (8, 4), two, Replicate(), Shard(0)) if two else sharded("groups", (8, 4), mesh, Shard(0)),
        "plain": full("plain", (4, 4)) if fill else torch.zeros(4, 4),
        "step": 17 if fill else 0,
    }
    if fill:  # tensors that only this rank has
        state[f"stage{dist.get_rank()}"] = full(f"stage{dist.get_rank()}", (3, 2))
    return state


def check(state):
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            assert torch.equal(whole, full(name, whole.shape)), (dist.get_rank(), name)
    assert state["step"] == 17


def act(action, url):
    by_saver, by_dcp = f"{url}/saver", f"{url}/dcp"
    if action == "save":
        with checkpoint.Saver(by_saver) as saver:
            saver.save(make(True), 1)
            saver.save({"all have it": torch.zeros(2**20, dtype=torch.uint8), **make(True)}, 2)
            saver.save(make(True), 3)
            saver.save({"all have it": torch.zeros(2**23, dtype=torch.uint8)}, 4)
            written = saver.wait()["bytes"]
            assert abs(written - 2**23 / dist.get_world_size()) < 4096, "what all ranks have is shared out evenly"
            saver.save(make(True), 5)
    elif action == "dcp-save":
        dcp.save(make(True), storage_writer=millrace.dcp.Writer(by_dcp, 3))
    for saved in (by_saver, by_dcp):
        state = make(False)
        if action == "load":
            state["stage1"] = torch.zeros(3, 2)
            check(checkpoint.load(saved, into=state))
        elif action == "dcp-load":
            dcp.load(state, storage_reader=millrace.dcp.Reader(saved))
            check(state)


def main(url, *actions):
    dist.init_process_group("gloo")
    for action in actions:
        act(action, url)
        dist.barrier()
    dist.destroy_process_group()


def leave():
    """Ends the process without taking the interpreter apart.

    Groups that a device mesh knows outlive destroy_process_group, with threads that let go of tensors in their own time and
    take the interpreter's lock for it. One that waits for the lock while the interpreter ends is ended by it, in the middle of
    a destructor, and the process aborts: "terminate called without an active exception". Torch does so without Millrace too.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave()
