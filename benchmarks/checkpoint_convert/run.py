#!/usr/bin/env python3
"""Checkpoints of other programs into a bucket and out of it: `millrace ckpt import` and `export` beside s5cmd, which only copies
the bytes, and beside the way without Millrace: load in Python, save in the other format, s5cmd. Everything is in memory
(/dev/shm), the endpoint is `millrace s3d` on the same machine. Run with a Python that has torch and safetensors, $MILLRACE_PEERS
set, and nothing else running:

    python benchmarks/checkpoint_convert/run.py build/release/bin [--mib 1024] [--rounds 2] [--formats hf,torch,dcp]

Prints the median seconds, ratios beside them: above 1 Millrace is faster. Python's seconds are without its start.
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

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "tests/interop"))
from s3d_interop import Endpoint, find_program  # noqa: E402

TENSOR_BYTES = 4 << 20
SMALL = 3  # tensors of 4 KiB beside each large one, as the norms of a layer


def make_state(mib):
    import torch

    state = {}
    for i in range(mib * 2**20 // TENSOR_BYTES):
        state[f"model.layers.{i}.mlp.up_proj.weight"] = torch.randn(TENSOR_BYTES // 4096, 1024)
        for j in range(SMALL):
            state[f"model.layers.{i}.norm{j}.weight"] = torch.randn(1024)
    return state


def save(kind, state, place):
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    place.mkdir(parents=True, exist_ok=True)
    if kind == "hf":
        save_file(state, place / "model.safetensors", {"format": "pt"})
        (place / "config.json").write_text('{"model_type": "llama"}')
    elif kind == "torch":
        torch.save(state, place / "state.pt")
    else:
        dcp.save(state, checkpoint_id=place, no_dist=True)


def load(kind, place):
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file

    if kind == "hf":
        return load_file(place / "model.safetensors")
    if kind == "torch":
        return torch.load(place / "state.pt", weights_only=True)
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(place), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def in_python(action, *arguments):
    """In a process of its own, so that the memory of one round is not there in the next; its seconds."""
    out = subprocess.run([sys.executable, str(HERE), "--python", action, *map(str, arguments)], check=True,
                         stdout=subprocess.PIPE, text=True, env=dict(os.environ, OMP_NUM_THREADS="2")).stdout
    return float(out.splitlines()[-1])


def python(action, *arguments):
    if action == "make":
        kind, place, mib = arguments
        save(kind, make_state(int(mib)), pathlib.Path(place))
        return 0.0
    come, at, go, to = arguments
    for kind in (come, go):  # what is imported lazily is none of the conversion's
        with tempfile.TemporaryDirectory() as folder:
            save(kind, make_state(4), pathlib.Path(folder))
            load(kind, pathlib.Path(folder))
    begin = time.perf_counter()
    save(go, load(come, pathlib.Path(at)), pathlib.Path(to))
    return time.perf_counter() - begin


class Bench:
    def __init__(self, binary, endpoint, folder, mib):
        self.millrace, self.endpoint, self.folder, self.mib = binary / "millrace", endpoint, folder, mib
        self.environment = dict(endpoint.environment, AWS_ENDPOINT_URL=endpoint.url, S3_ENDPOINT_URL=endpoint.url)
        self.s5cmd = find_program("s5cmd")
        self.run(self.millrace, "mb", "s3://bench")

    def run(self, *command):
        begin = time.perf_counter()
        subprocess.run([str(word) for word in command], check=True, env=self.environment, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begin

    def copy(self, source, to):
        return self.run(self.s5cmd, "cp", source, to)

    def clear(self, *keys):
        for key in keys:
            self.run(self.millrace, "--quiet", "rm", "--recursive", f"s3://bench/{key}/")

    def round(self, kind):
        local, out = self.folder / kind, self.folder / "out"
        if not local.exists():
            in_python("make", kind, local, self.mib)
        name = "state.pt" if kind == "torch" else ""
        source = local / name if name else local
        seconds = {}
        seconds["s5cmd up"] = self.copy(f"{local}/", "s3://bench/copy/")
        seconds["import"] = self.run(self.millrace, "ckpt", "import", source, "s3://bench/run")
        seconds["Python and s5cmd up"] = in_python("convert", kind, local, "hf", self.folder / "hf-out") + self.copy(
            f"{self.folder}/hf-out/", "s3://bench/again/")
        self.clear("again")
        seconds["import from the bucket"] = self.run(self.millrace, "ckpt", "import", f"s3://bench/copy/{name}", "s3://bench/twice")
        self.clear("twice")
        shutil.rmtree(self.folder / "hf-out")
        out.mkdir()
        seconds["s5cmd down"] = self.copy("s3://bench/copy/*", f"{out}/")
        shutil.rmtree(out)
        # Other formats than Hugging Face's have what was imported without a group; hf wants model/.
        seconds["export"] = self.run(self.millrace, "ckpt", "export", "s3://bench/run", out / name if name else out, "--to", kind)
        shutil.rmtree(out)
        out.mkdir()
        seconds["s5cmd down and Python"] = self.copy("s3://bench/copy/*", f"{out}/") + in_python(
            "convert", kind, out, "torch" if kind == "hf" else "hf", self.folder / "converted")
        shutil.rmtree(out)
        shutil.rmtree(self.folder / "converted")
        self.clear("copy", "run")
        return seconds


def main():
    if sys.argv[1:2] == ["--python"]:
        print(python(*sys.argv[2:]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--formats", default="hf,torch,dcp")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as temporary:
        folder = pathlib.Path(temporary)
        with Endpoint(str(options.bin.resolve() / "millrace"), folder) as endpoint:
            bench = Bench(options.bin.resolve(), endpoint, folder, options.mib)
            for kind in options.formats.split(","):
                rounds = [bench.round(kind) for _ in range(options.rounds)]
                took = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
                shutil.rmtree(folder / kind)
                print(json.dumps({"format": kind, "mib": options.mib, **{name: round(s, 2) for name, s in took.items()},
                                  "import beside s5cmd": round(took["s5cmd up"] / took["import"], 2),
                                  "import beside Python": round(took["Python and s5cmd up"] / took["import"], 2),
                                  "export beside s5cmd": round(took["s5cmd down"] / took["export"], 2),
                                  "export beside Python": round(took["s5cmd down and Python"] / took["export"], 2)}), flush=True)


main()
