"""One way of saving, timed: run by run.py, alone for a whole state, under torchrun for a sharded one.

    save.py ROUTE PLACE MIB    ROUTE: file (torch.save, or torch.distributed.checkpoint under torchrun) or engine (millrace)

Rank 0 prints one JSON object: the seconds training stood still and those until it was saved, of each round."""
import json
import os
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist

ROUNDS = 3  # the first is not counted: it finds fresh pages
SIDE = 2048  # tensors of 16 MiB


def whole(mib):
    return {f"layers.{i}.weight": torch.randn(SIDE, SIDE) for i in range(mib // 16)}


def sharded(mib):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh, rows = init_device_mesh("cpu", (dist.get_world_size(),)), SIDE // dist.get_world_size()
    return {f"layers.{i}.weight": DTensor.from_local(torch.randn(rows, SIDE), mesh, [Shard(0)]) for i in range(mib // 16)}


def save_file(state, place, step):
    """As programs do that know nothing of buckets. On a disk it is saved when fsync returns; a mount, when closed."""
    folder = pathlib.Path(place) / f"step-{step}"
    begin = time.perf_counter()
    if dist.is_initialized():
        import torch.distributed.checkpoint as dcp

        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))
        dist.barrier()
    else:
        folder.mkdir()
        torch.save(state, folder / "state.pt")
        with open(folder / "state.pt", "rb") as file:
            os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    return seconds, seconds


def save_engine(savers, state, place, step):
    import millrace.checkpoint

    if not savers:
        savers.append(millrace.checkpoint.Saver(place, keep_last=1))
    begin = time.perf_counter()
    savers[0].save(state, step)
    blocked = time.perf_counter() - begin
    savers[0].wait()
    if dist.is_initialized():
        dist.barrier()
    return blocked, time.perf_counter() - begin


def main():
    route, place, mib = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, savers, times = 0, [], []
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    state = sharded(mib) if dist.is_initialized() else whole(mib)
    for step in range(1, ROUNDS + 1):
        if dist.is_initialized():
            dist.barrier()
        times.append(save_file(state, place, step) if route == "file" else save_engine(savers, state, place, step))
        if route == "file" and step < ROUNDS and rank == 0:
            shutil.rmtree(pathlib.Path(place) / f"step-{step}")
    if rank == 0:
        print(json.dumps({"blocked": [t[0] for t in times[1:]], "saved": [t[1] for t in times[1:]]}), flush=True)
    for saver in savers:
        saver.close()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


main()
