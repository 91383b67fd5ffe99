#!/usr/bin/env python3
"""How long training stands still for a checkpoint, and how fast it is stored, verified and loaded: Millrace beside
torch.save and safetensors, in one go. Run with a Python that has torch and safetensors:

    cmake --preset release -DMILLRACE_BENCHMARKS=ON && cmake --build build/release --target checkpoint_save millrace
    python benchmarks/checkpoint_save/run.py build/release/bin [MIB]

Files go to /dev/shm, so that no disk is measured; the S3 endpoint is `millrace s3d` with its folder there too."""
import json, os, pathlib, shutil, statistics, subprocess, sys, tempfile, time

import torch
from safetensors.torch import load_file, save_file

BIN = pathlib.Path(sys.argv[1])
MIB = int(sys.argv[2]) if len(sys.argv) > 2 else 512
ROUNDS = 4


def millrace(url, env):
    out = subprocess.run([BIN / "checkpoint_save", url, str(MIB), str(ROUNDS)], env=os.environ | env, check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    of = lambda event, key: [line[key] for line in lines if line["event"] == event][1 if event != "load" else 0:]
    return {"blocked_ms": of("save", "blocked_ms"), "total_ms": of("save", "total_ms"),
            "verify_mb_per_s": of("verify", "mb_per_s"), "load_mb_per_s": of("load", "mb_per_s")}


def timed(action):
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1e3)
    return times[1:]  # the first run finds fresh pages


def peers(folder):
    state = {f"layer.{i}.weight": torch.randn(1 << 20) for i in range(MIB // 4)}
    size = MIB * 1.048576
    saved = timed(lambda: torch.save(state, folder / "torch.pt"))
    stored = timed(lambda: save_file(state, folder / "s.safetensors"))
    mb_per_s = lambda times: [size / t * 1e3 for t in times]
    return {"torch.save": {"blocked_ms": saved, "total_ms": saved,
                           "load_mb_per_s": mb_per_s(timed(lambda: torch.load(folder / "torch.pt")))},
            "safetensors": {"blocked_ms": stored, "total_ms": stored,
                            "load_mb_per_s": mb_per_s(timed(lambda: {k: v.clone() for k, v in
                                                                     load_file(folder / "s.safetensors").items()}))}}


def main():
    folder = pathlib.Path(tempfile.mkdtemp(dir="/dev/shm"))
    server = None
    try:
        results = peers(folder)
        for file in folder.iterdir():
            file.unlink()
        results["millrace file"] = millrace(f"file://{folder}/run", {})
        shutil.rmtree(folder / "run")
        keys = {"MILLRACE_S3D_ACCESS_KEY": "benchmark", "MILLRACE_S3D_SECRET_KEY": "benchmark-secret"}
        server = subprocess.Popen([BIN / "millrace", "s3d", "--root", folder, "--port-file", folder / "port"],
                                  env=os.environ | keys, stdout=subprocess.DEVNULL)
        while not (folder / "port").exists():
            time.sleep(0.05)
        env = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{(folder / 'port').read_text().strip()}",
               "AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark-secret", "AWS_REGION": "us-east-1"}
        subprocess.run([BIN / "millrace", "mb", "s3://bench", "--quiet"], env=os.environ | env, check=True)
        results["millrace s3d"] = millrace("s3://bench/run", env)
    finally:
        if server:
            server.terminate()
            server.wait()
        shutil.rmtree(folder)
    print(f"{MIB} MiB, median (min to max) of {ROUNDS - 1} after one run unmeasured")
    for name, result in results.items():
        print(f"{name:14}", "  ".join(f"{key} {statistics.median(v):.0f} ({min(v):.0f} to {max(v):.0f})"
                                      for key, v in result.items()))
    for peer in ("torch.save", "safetensors"):
        for ours in ("millrace file", "millrace s3d"):
            ratio = lambda key: statistics.median(results[peer][key]) / statistics.median(results[ours][key])
            print(f"{peer} / {ours}: blocked {ratio('blocked_ms'):.1f}x, total {ratio('total_ms'):.2f}x, "
                  f"load speed of ours {1 / ratio('load_mb_per_s'):.2f}x")


main()
