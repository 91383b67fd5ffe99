#!/usr/bin/env python3
"""The table that people choose checkpoint storage by: a model and its optimizer state, whole and in 8 shards, saved to a local
disk and copied with s5cmd, through s3fs, through Millrace's mount, and by Millrace's engine. Sizes are those of a Llama-3-8B
in float32 (29.93 GB and 59.85 GB), divided by SCALE. The programs that save to files are unmodified torch.save and
torch.distributed.checkpoint. One MinIO, its data in memory. Run with a Python that has torch, $MILLRACE_PEERS set, and
nothing else running:

    python benchmarks/checkpoint_table/run.py build/release [--scale 16] [--picture FILE.svg]
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "mount"))
import bench  # noqa: E402

STATES = {"Model": 29.93e9, "Optimizer": 59.85e9}
ROUTES = ["disk", "disk + s5cmd", "s3fs", "mount", "engine", "engine: stands still"]
COLOURS = ["#b9bec7", "#8a93a3", "#d09a5b", "#5b8fd0", "#1f4e9c", "#2b7a4b"]
SHARDS = 8


def run(build, shards, route, place, mib, environment):
    """The median seconds that training stood still, and until the state was saved."""
    command = [sys.executable, str(HERE / "save.py"), route, str(place), str(mib)]
    if shards > 1:
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={shards}"]
    environment = dict(environment, PYTHONPATH=str(build / "python"), OMP_NUM_THREADS="1")
    out = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    times = json.loads(next(line for line in out.stdout.splitlines() if line.startswith("{")))
    return statistics.median(times["blocked"]), statistics.median(times["saved"])


@contextlib.contextmanager
def sweeping(server):
    """What is deleted is freed within a second: rounds that replace checkpoints would fill the machine's memory."""
    stopped = threading.Event()

    def sweep():
        while not stopped.wait(1):
            server.sweep()

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def measure(build, server, folder, shards, mib):
    seconds, millrace = {}, build / "bin/millrace"

    def remove(key):
        subprocess.run([millrace, "--quiet", "rm", "--recursive", f"s3://{bench.BUCKET}/{key}"], env=server.environment,
                       check=True)

    disk = folder / "disk"
    disk.mkdir()
    _, seconds["disk"] = run(build, shards, "file", disk, mib, server.environment)
    begin = time.perf_counter()
    subprocess.run([bench.find("s5cmd"), "cp", f"{disk}/", f"s3://{bench.BUCKET}/disk/"], stdout=subprocess.DEVNULL,
                   env=dict(server.environment, S3_ENDPOINT_URL=server.url), check=True)
    seconds["disk + s5cmd"] = seconds["disk"] + time.perf_counter() - begin
    shutil.rmtree(disk)
    remove("disk/")
    for name, mounter in (("s3fs", "s3fs"), ("mount", "millrace")):
        with bench.stopping(bench.mount(mounter, millrace, server.url, folder / name, server.environment)) as mounted:
            (mounted.point / "saved").mkdir()
            _, seconds[name] = run(build, shards, "file", mounted.point / "saved", mib, server.environment)
            shutil.rmtree(mounted.point / "saved")
    seconds["engine: stands still"], seconds["engine"] = run(
        build, shards, "engine", f"s3://{bench.BUCKET}/engine", mib, server.environment)
    remove("engine/")
    return seconds


def picture(rows, caption):
    left, bar, gap, width = 220, 15, 22, 900
    height = 60 + len(rows) * (len(ROUTES) * bar + gap)
    most = max(max(seconds.values()) for _, seconds in rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
           f'<rect width="{width}" height="{height}" fill="#ffffff"/><text x="16" y="26" font-size="15">{caption}</text>']
    y = 48
    for name, seconds in rows:
        out.append(f'<text x="16" y="{y + len(ROUTES) * bar / 2:.0f}" font-size="13">{name}</text>')
        for route, colour in zip(ROUTES, COLOURS):
            length = (width - left - 240) * seconds[route] / most
            out.append(f'<rect x="{left}" y="{y}" width="{max(length, 1):.1f}" height="{bar - 3}" fill="{colour}"/>'
                       f'<text x="{left + length + 6:.1f}" y="{y + bar - 5}">{route} {seconds[route]:.2f} s</text>')
            y += bar
        y += gap
    return "\n".join(out) + "\n</svg>\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("build", type=pathlib.Path)
    arguments.add_argument("--scale", type=float, default=16)
    arguments.add_argument("--picture", type=pathlib.Path)
    arguments.add_argument("--disk", default=tempfile.gettempdir(), help="folder on the disk that is measured")
    options = arguments.parse_args()
    build, rows = options.build.resolve(), []
    with tempfile.TemporaryDirectory(dir=options.disk) as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        with bench.stopping(bench.Server(pathlib.Path(memory))) as server, sweeping(server):
            server.make_bucket(build / "bin/millrace")
            for shards in (1, SHARDS):
                for state, size in STATES.items():
                    mib = round(size / options.scale / 2**20 / 16) * 16
                    work = pathlib.Path(folder) / f"{state}-{shards}"
                    work.mkdir()
                    name = f"{state} ({'full' if shards == 1 else f'{shards} shards'})"
                    rows.append((f"{name}, {mib * 1.048576 / 1000:.2f} GB", measure(build, server, work, shards, mib)))
                    print(rows[-1][0], {k: round(v, 2) for k, v in rows[-1][1].items()}, file=sys.stderr, flush=True)
    print("| | " + " | ".join(ROUTES) + " |\n|---|" + "---|" * len(ROUTES))
    for name, seconds in rows:
        print(f"| {name} | " + " | ".join(f"{seconds[route]:.2f} s" for route in ROUTES) + " |")
    if options.picture:
        options.picture.write_text(picture(rows, f"Seconds to save a checkpoint (Llama-3-8B at 1/{options.scale:g})"))


main()
