#!/usr/bin/env python3
"""Saving and loading one state: how long training stands still, when the bytes are in the store, how fast they come
back. Millrace beside torch.save, safetensors, torch.distributed.checkpoint, s5cmd and bare requests, in one run, each round in
another order. One MinIO, its data in memory, on the same machine. Run with a Python that has torch and safetensors,
$MILLRACE_PEERS set, and nothing else running; it takes nine times MIB of memory:

    cmake --preset release -DMILLRACE_BENCHMARKS=ON && cmake --build build/release --target checkpoint_save millrace
    python benchmarks/checkpoint_save/run.py build/release [--mib 2048] [--rounds 4]
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "mount"))
import bench  # noqa: E402


class Ours:
    """The program that saves and loads with the engine. It is told what to do line by line."""

    def __init__(self, build, url, mib, environment):
        self.process = subprocess.Popen([build / "bin/checkpoint_save", url, str(mib)], env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("checkpoint_save ended")
        return json.loads(line)

    def __call__(self, command):
        print(command, file=self.process.stdin, flush=True)
        return self.answer()


def seconds(action):
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


LOAD = """
import sys, time, torch
begin = time.perf_counter()
state = torch.load(sys.argv[1])
print(time.perf_counter() - begin)
"""
LOAD_MAPPED = """
import sys, time, torch
state = {name: torch.zeros_like(tensor) for name, tensor in torch.load(sys.argv[1], mmap=True).items()}
begin = time.perf_counter()
for name, tensor in torch.load(sys.argv[1], mmap=True).items():
    state[name].copy_(tensor)
print(time.perf_counter() - begin)
"""


def fresh(program, *arguments):
    return float(subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True, text=True,
                                stdout=subprocess.PIPE).stdout)


class Peers:
    def __init__(self, server, disk, mib):
        self.server, self.disk = server, disk
        self.state = {f"layer.{i}.weight": torch.randn(1 << 20) for i in range(mib // 4)}
        self.environment = dict(server.environment, S3_ENDPOINT_URL=server.url)

    def torch_save(self):
        """To the disk, as who wants to have it after a power cut; then to the store, as the way of a disk and s5cmd."""
        file = self.disk / "torch.pt"
        file.unlink(missing_ok=True)

        def save():
            with open(file, "wb") as out:
                torch.save(self.state, out)
                out.flush()
                os.fsync(out.fileno())

        saved, uploaded = seconds(save), self.s5cmd(file)  # it finds the file in the kernel's cache
        return {"torch.save to disk": saved, "s5cmd from memory": uploaded,
                "torch.save to disk, then s5cmd": saved + uploaded}

    def torch_load(self):
        """In fresh processes, as restarts are: the file out of the kernel's cache and from the disk; and at its best, mapped
        and copied out of the kernel's cache into the tensors of a model that is there."""
        file = self.disk / "torch.pt"
        times = {"torch.load, cached file": fresh(LOAD, file), "torch.load mapped, cached file": fresh(LOAD_MAPPED, file)}
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return times | {"torch.load from disk": fresh(LOAD, file)}

    def safetensors(self):
        file = self.disk / "state.safetensors"
        file.unlink(missing_ok=True)

        def save():
            save_file(self.state, file)
            with open(file, "rb") as out:
                os.fsync(out.fileno())

        return {"safetensors to disk": seconds(save),
                "safetensors from disk": seconds(lambda: {k: v.clone() for k, v in load_file(file).items()})}

    def dcp(self):
        """Its checkpoint on disk in the background, without a process group."""
        folder = self.disk / "dcp"
        shutil.rmtree(folder, ignore_errors=True)
        begin = time.perf_counter()
        saving = dcp.async_save(self.state, storage_writer=dcp.FileSystemWriter(folder, sync_files=True), no_dist=True)
        blocked = time.perf_counter() - begin
        saving.result()
        return {"DCP async_save stands still": blocked, "DCP async_save to disk": time.perf_counter() - begin}

    def s5cmd(self, file):
        """One upload; what it left in the store goes at once."""
        run = lambda *command: subprocess.run([bench.find("s5cmd"), *map(str, command)], env=self.environment, check=True,
                                              stdout=subprocess.DEVNULL)
        taken = seconds(lambda: run("cp", file, f"s3://{bench.BUCKET}/s5cmd"))
        run("rm", f"s3://{bench.BUCKET}/s5cmd")
        return taken

    def raw_download(self, millrace):
        """All of the newest checkpoint's file, eight ranges of it at a time, bytes thrown away."""
        listed = subprocess.run([millrace, "--quiet", "ls", "-r", "--json", f"s3://{bench.BUCKET}/run/"], env=self.environment,
                                check=True, stdout=subprocess.PIPE, text=True).stdout
        key, size = max(((line["key"], line["size"]) for line in map(json.loads, listed.splitlines()) if "size" in line),
                        key=lambda item: item[1])
        step = -(-size // 8)
        lines = [f'url = "{self.server.url}/{bench.BUCKET}/{key}"\nrange = "{at}-{min(at + step, size) - 1}"\n'
                 'output = "/dev/null"\nsilent\nfail\n' for at in range(0, size, step)]
        taken = seconds(lambda: subprocess.run(["curl", "-Z", "--parallel-immediate", "--parallel-max", "8", "-K", "-"],
                                               input="next\n".join(lines), text=True, check=True, stderr=subprocess.DEVNULL))
        return {"raw download": taken}


def ours_in_seconds(ours):
    def save():
        copied, times = ours("copy"), ours("save")  # one after the other: the machine is as busy for both
        return {"stands still, tensors change at once": times["blocked_ms"] / 1e3, "memcpy": copied["ms"] / 1e3,
                "stored": times["total_ms"] / 1e3}

    def overlap():
        return {"stands still, tensors change after the next step": ours("overlap")["blocked_ms"] / 1e3}

    return [save, overlap], lambda: {"load": ours("load")["ms"] / 1e3}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("build", type=pathlib.Path)
    arguments.add_argument("--mib", type=int, default=2048)
    arguments.add_argument("--rounds", type=int, default=4, help="the first is not counted")
    arguments.add_argument("--disk", default=tempfile.gettempdir(), help="folder on the disk that is measured")
    options = arguments.parse_args()
    build, rounds = options.build.resolve(), []
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(dir=options.disk) as disk, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        disk, memory = pathlib.Path(disk), pathlib.Path(memory)
        with bench.stopping(bench.Server(memory)) as server:
            server.make_bucket(build / "bin/millrace")
            peers = Peers(server, disk, options.mib)
            ours = Ours(build, f"s3://{bench.BUCKET}/run", options.mib, server.environment)
            savers, load = ours_in_seconds(ours)
            savers += [peers.torch_save, peers.safetensors, peers.dcp]
            loaders = [load, peers.torch_load, lambda: peers.raw_download(build / "bin/millrace")]
            for number in range(options.rounds):
                rounds.append({})
                for phase in (savers, loaders):
                    for i in range(len(phase)):
                        rounds[-1].update(phase[(i + number) % len(phase)]())
                        server.sweep()
                print(number, {k: round(v, 3) for k, v in rounds[-1].items()}, file=sys.stderr, flush=True)
            extra = ours("memory")["bytes"] / (options.mib << 20)
            ours.process.stdin.close()
            ours.process.wait()
    report(rounds[1:], options.mib, extra)


def report(rounds, mib, extra):
    of = lambda name: [r[name] for r in rounds]
    print(f"{mib} MiB; medians (least to most) of {len(rounds)} rounds after one that does not count; seconds\n")
    for name in rounds[0]:
        print(f"{name:50} {statistics.median(of(name)):7.3f}  ({min(of(name)):.3f} to {max(of(name)):.3f})")
    ratio = lambda a, b: statistics.median(x / y for x, y in zip(of(a), of(b)))
    print("\nratios, medians of those within a round")
    for a, b in [("stands still, tensors change at once", "memcpy"),
                 ("stands still, tensors change at once", "torch.save to disk"),
                 ("stands still, tensors change after the next step", "torch.save to disk"),
                 ("stored", "s5cmd from memory"),
                 ("torch.save to disk, then s5cmd", "stored"),
                 ("torch.load from disk", "load"),
                 ("torch.load, cached file", "load"),
                 ("torch.load mapped, cached file", "load"),
                 ("raw download", "load")]:
        print(f"{a} / {b}: {ratio(a, b):.4f}")
    print(f"memory beyond the state, at most: {extra:.3f} of it")


main()
