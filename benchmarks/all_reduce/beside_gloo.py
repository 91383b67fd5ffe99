"""An all-reduce over TCP beside that of PyTorch over Gloo, in turns: processes of one machine, float32, one thread each.

    build/peers/venv/bin/python benchmarks/all_reduce/beside_gloo.py [RANKS [MEGABYTES [ROUNDS]]]

The Python is one with PyTorch. Each round starts build/release/bin/all_reduce, then as many processes of PyTorch, and each
sums 5 times. A time is that of rank 0, the best of its round; the table has the median of the rounds.
"""
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TIMES = 5


def sum_over_gloo(rank: int, ranks: int, megabytes: int, port: int, found) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    tensor, best = torch.zeros(megabytes * 250_000), float("inf")
    for _ in range(TIMES):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        best = min(best, time.perf_counter() - start)
    if rank == 0:
        found.put(best)
    dist.destroy_process_group()


def main() -> None:
    ranks, megabytes, rounds = (int(given) for given in (sys.argv[1:] + ["2", "256", "5"][len(sys.argv) - 1:]))
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        ours = subprocess.run([ROOT / "build/release/bin/all_reduce", str(ranks), str(megabytes), str(TIMES)],
                              capture_output=True, text=True, check=True).stdout
        for name, milliseconds in re.findall(r"^(\S.*?) +([0-9.]+) ms", ours, re.MULTILINE):
            times.setdefault(name, []).append(float(milliseconds))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        found = mp.get_context("spawn").SimpleQueue()
        mp.spawn(sum_over_gloo, args=(ranks, megabytes, port, found), nprocs=ranks)
        times.setdefault(f"PyTorch {torch.__version__.partition('+')[0]}, Gloo", []).append(1e3 * found.get())
    base = statistics.median(times["memcpy"])
    print(f"| {ranks} processes, {megabytes} MB | time | of memcpy's speed |\n|---|---|---|")
    for name, each in times.items():
        median = statistics.median(each)
        print(f"| {name} | {median:.0f} ms ({min(each):.0f} to {max(each):.0f}) | {base / median:.2f} |")


if __name__ == "__main__":
    main()
