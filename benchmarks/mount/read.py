#!/usr/bin/env python3
"""Reads and listings through `millrace mount`, beside s3fs and rclone mounts and the raw server, in one run.

  read.py --build build/release --data DIR --prepare [NAME…]  fills a MinIO with all sets of data, or these (DIR is kept)
  read.py --build build/release --data DIR [--case NAME…] [--subject NAME…] [--repeat N] [-- MOUNT FLAGS…]

Every run has a fresh mount. Printed are the best of the repeats, all of them, the daemon's CPU seconds a GiB (or in
all, where no bytes matter) and its peak memory. With `--server s3d`: `millrace s3d` instead of MinIO. Let nothing else run meanwhile. Needs minio, curl and fio; peers that
are absent are left out.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import time

import bench
from bench import BUCKET, MB

BIG, STREAM, STREAMS = 2 << 30, 256 << 20, 4
SMALL, SMALL_COUNT = 570_000, 3000
FLAT, TREE_DIRS, TREE_FILES = 100_000, 200, 1000
GIB = 1 << 30


# --- data ---

def random_file(path, size):
    with open(path, "wb") as file:
        while size > 0:
            size -= file.write(os.urandom(min(size, 16 << 20)))


def make_big(folder):
    random_file(folder / "one", BIG)


def make_streams(folder):
    for i in range(STREAMS):
        random_file(folder / str(i), STREAM)


def make_small(folder):
    for i in range(SMALL_COUNT):
        (folder / f"f{i:05}").write_bytes(os.urandom(SMALL))


def make_flat(folder):
    for i in range(FLAT):
        (folder / f"key-{i:06}").write_bytes(b"0123456789")


def make_tree(folder):
    for i in range(TREE_DIRS):
        (folder / f"dir-{i:03}").mkdir()
        for k in range(TREE_FILES):
            (folder / f"dir-{i:03}" / f"key-{k:04}").write_bytes(b"0123456789")


def prepare(server, millrace, data, wanted):
    sets = {"big": make_big, "four": make_streams, "small": make_small, "flat": make_flat, "tree": make_tree}
    server.make_bucket(millrace)
    for name, make in sets.items():
        if (wanted and name not in wanted) or (data / f"{name}.ready").exists():
            continue
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            make(pathlib.Path(folder))
            subprocess.run([millrace, "--quiet", "cp", "-r", folder + "/", f"s3://{BUCKET}/{name}/"],
                           env=server.environment, check=True)
        (data / f"{name}.ready").touch()
        print("made", name, flush=True)


# --- cases: each returns (figure, bytes moved) for a mounted folder ---

def dd(path):
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none"], check=True)


def timed(action):
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


def sequential(root):
    return BIG / MB / timed(lambda: dd(root / "big/one")), BIG


def in_parallel(actions):
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def streams(root):
    seconds = timed(lambda: in_parallel([lambda i=i: dd(root / f"four/{i}") for i in range(STREAMS)]))
    return STREAMS * STREAM / MB / seconds, STREAMS * STREAM


def read_files(root, names, work=0.0):
    for name in names:
        with open(root / "small" / name, "rb") as file:
            if len(file.read()) != SMALL:
                raise RuntimeError(f"{name} is not whole")
        if work > 0:
            time.sleep(work)


def small_names(count=SMALL_COUNT):
    return [f"f{i:05}" for i in range(count)]


def small(root):
    return SMALL_COUNT / timed(lambda: read_files(root, small_names())), SMALL_COUNT * SMALL


def small_few(root):
    """Fewer, for latencies at which all of them would take minutes."""
    return 600 / timed(lambda: read_files(root, small_names(600))), 600 * SMALL


def small_shuffled(root):
    names = small_names()
    import random
    random.Random(7).shuffle(names)
    return SMALL_COUNT / timed(lambda: read_files(root, names)), SMALL_COUNT * SMALL


def small_eight(root):
    names = small_names()
    parts = [names[i::8] for i in range(8)]
    seconds = timed(lambda: in_parallel([lambda p=p: read_files(root, p) for p in parts]))
    return SMALL_COUNT / seconds, SMALL_COUNT * SMALL


def loop(root):
    """Files a second with 10 ms of work for each, which needs no CPU here."""
    return 500 / timed(lambda: read_files(root, small_names(500), work=0.010)), 500 * SMALL


def fio(root, jobs):
    out = subprocess.run(
        ["fio", "--name=r", f"--filename={root}/big/one", "--rw=randread", "--bs=256k", f"--numjobs={jobs}",
         "--runtime=5", "--time_based", "--group_reporting", "--output-format=json", "--invalidate=0",
         "--randrepeat=0", "--readonly", f"--size={BIG}"], check=True, capture_output=True, text=True).stdout
    read = json.loads(out[out.index("{"):])["jobs"][0]["read"]
    return read["iops"], read["io_bytes"]


def lines_of(*command):
    return subprocess.run(command, check=True, capture_output=True).stdout.count(b"\n")


def expect(count, wanted):
    if count != wanted:
        raise RuntimeError(f"{count} names instead of {wanted}")


def ls_l(root):
    return timed(lambda: expect(lines_of("ls", "-l", str(root / "flat")), FLAT + 1)), 0


def ls_f(root):
    return timed(lambda: expect(lines_of("ls", "-f", str(root / "flat")), FLAT + 2)), 0


def find_all(root):
    return timed(lambda: expect(lines_of("find", str(root / "tree"), "-type", "f"), TREE_DIRS * TREE_FILES)), 0


def first_stat(root):
    os.stat(root / "small/f00000")
    return 0.0, 0


# --- the raw server ---

def raw_get(url, ranges):
    step = BIG // ranges
    return BIG / MB / timed(lambda: in_parallel([
        lambda i=i: subprocess.run(["curl", "-s", "-f", "-o", "/dev/null", "-r", f"{i * step}-{(i + 1) * step - 1}",
                                    f"{url}/{BUCKET}/big/one"], check=True) for i in range(ranges)]))


def raw_small(url, parallel, count=SMALL_COUNT):
    flags = ["-Z", "--parallel-max", str(parallel)] if parallel > 1 else []
    return count / timed(lambda: subprocess.run(
        ["curl", "-s", "-f", "--no-progress-meter", *flags, "-o", "/dev/null", f"{url}/{BUCKET}/small/f[00000-{count - 1:05}]"],
        check=True, stderr=subprocess.DEVNULL))


def raw_list(url, prefix):
    """The pages of one listing over one connection, not parsed."""
    def go():
        host = url.removeprefix("http://")
        connection, token, done = http.client.HTTPConnection(host), "", False
        while not done:
            query = f"/{BUCKET}?list-type=2&prefix={prefix}" + (f"&continuation-token={token}" if token else "")
            connection.request("GET", query)
            page = connection.getresponse().read()
            found = re.search(rb"<NextContinuationToken>([^<]*)<", page)
            done = not found
            token = "" if done else found.group(1).decode().replace("+", "%2B").replace("=", "%3D").replace("/", "%2F")
    return timed(go)


# name: (unit, higher is better, action on a mount, latency in ms, raw figures by name)
CASES = {
    "seq": ("MB/s", True, sequential, 0, {"1 raw GET": lambda u: raw_get(u, 1), "8 raw GETs": lambda u: raw_get(u, 8)}),
    "four": ("MB/s", True, streams, 0, {}),
    "small": ("files/s", True, small, 0, {"curl, 1 connection": lambda u: raw_small(u, 1),
                                          "curl, 8 connections": lambda u: raw_small(u, 8)}),
    "small8": ("files/s", True, small_eight, 0, {}),
    "shuffled": ("files/s", True, small_shuffled, 0, {}),
    "loop": ("files/s", True, loop, 0, {}),
    "rand1": ("reads/s", True, lambda root: fio(root, 1), 0, {}),
    "rand8": ("reads/s", True, lambda root: fio(root, 8), 0, {}),
    "ls": ("s", False, ls_l, 0, {"one bare listing": lambda u: raw_list(u, "flat/")}),
    "find": ("s", False, find_all, 0, {"one bare listing": lambda u: raw_list(u, "tree/")}),
    "stat": ("s", False, first_stat, 0, {}),
    "seq-20ms": ("MB/s", True, sequential, 20, {"1 raw GET": lambda u: raw_get(u, 1),
                                                "8 raw GETs": lambda u: raw_get(u, 8)}),
    "small-20ms": ("files/s", True, small_few, 20, {"curl, 1 connection": lambda u: raw_small(u, 1, 600)}),
    "ls-20ms": ("s", False, ls_l, 20, {"one bare listing": lambda u: raw_list(u, "flat/")}),
    "find-20ms": ("s", False, find_all, 20, {"one bare listing": lambda u: raw_list(u, "tree/")}),
    # With `-- --parallel-listing N`: what reading a listing in pieces saves, by how far the store is.
    "names-20ms": ("s", False, ls_f, 20, {}),
    "names-50ms": ("s", False, ls_f, 50, {}),
    "names-100ms": ("s", False, ls_f, 100, {}),
}
SLOW = {("ls", "s3fs"), ("ls", "rclone"), ("ls-20ms", "s3fs"), ("ls-20ms", "rclone"), ("find", "s3fs"),
        ("find-20ms", "s3fs"), ("find-20ms", "rclone")}  # over a minute each


def measure(case, subject, args, server, url, point):
    unit, _, action, _, _ = CASES[case]
    flags = ["--read-only", *args.mount_flags] if subject == "millrace" else []
    begin = time.monotonic()
    with bench.stopping(bench.mount(subject, args.millrace, url, point, server.environment, *flags)) as mounted:
        figure, moved = action(mounted.point)
        if case == "stat":
            figure = time.monotonic() - begin
        cpu = mounted.usage.cpu()
        if moved:
            cpu /= moved / GIB
        return figure, cpu, mounted.usage.peak_mb()


def show(case, subject, figures, unit, best, notes=""):
    rest = " ".join(f"{figure:.4g}" for figure in figures)
    print(f"{case:11} {subject:20} {best(figures):9.4g} {unit:8} [{rest}] {notes}", flush=True)


def run_case(case, args, server, point):
    unit, higher, _, latency, raw = CASES[case]
    best = max if higher else min
    proxy = bench.Proxy(args.proxy, server, latency) if latency else None
    url = proxy.url if proxy else server.url
    try:
        results = {}
        for _ in range(args.repeat):
            if "raw" in args.subject:
                for name, action in raw.items():
                    results.setdefault(name, []).append((action(url), 0, 0))
            for subject in args.subject:
                if subject == "raw" or (case, subject) in SLOW:
                    continue
                try:
                    results.setdefault(subject, []).append(measure(case, subject, args, server, url, point))
                except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                    print(f"{case:11} {subject:20} failed: {error}", flush=True)
        results = {name: runs for name, runs in results.items() if runs}
        for name, runs in results.items():
            cpu, peak = min(run[1] for run in runs), max(run[2] for run in runs)
            per = "s" if unit == "s" else "s/GiB"
            show(case, name, [run[0] for run in runs], unit, best, f"CPU {cpu:.2f} {per}, {peak:.0f} MB" if peak else "")
        ours = results.get("millrace")
        for name, runs in results.items():
            if ours and name != "millrace":
                a, b = best(run[0] for run in ours), best(run[0] for run in runs)
                print(f"{case:11} millrace / {name}: {a / b if higher else b / a:.2f}", flush=True)
    finally:
        if proxy:
            proxy.stop()


def disk_cache(args, server, point):
    """Hits of the disk cache beside a file on the same disk, both after dropping the kernel's cache."""
    folder = pathlib.Path(args.data) / "cache"
    shutil.rmtree(folder, ignore_errors=True)
    local = pathlib.Path(args.data) / "local"
    if not local.exists():
        random_file(local, BIG)
    flags = ["--read-only", "--cache", str(folder), "--max-cache-size", "8GiB", *args.mount_flags]
    figures = {"filling": [], "from the disk cache": [], "local file": []}
    cpu = 0.0
    for i in range(args.repeat + 1):
        os.sync()
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
        with bench.stopping(bench.mount("millrace", args.millrace, server.url, point, server.environment,
                                        *flags)) as mounted:
            figures["filling" if i == 0 else "from the disk cache"].append(sequential(mounted.point)[0])
            cpu = mounted.usage.cpu() / BIG * GIB
            ready = mounted.seconds_to_mount
        if i > 0:
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
            figures["local file"].append(BIG / MB / timed(lambda: dd(local)))
    for name, runs in figures.items():
        show("cache", name, runs, "MB/s", max)
    print(f"cache       ratio {max(figures['from the disk cache']) / max(figures['local file']):.2f}, "
          f"CPU {cpu:.2f} s/GiB, mounted in {ready * 1000:.0f} ms")


def memory(args, server, point):
    """What the daemon's resident memory grows by for each name that the kernel remembers."""
    half = TREE_DIRS // 2
    for _ in range(args.repeat):
        flags = ["--read-only", *args.mount_flags]
        with bench.stopping(bench.mount("millrace", args.millrace, server.url, point, server.environment,
                                        *flags)) as mounted:
            def walk(first, last):
                folders = [str(mounted.point / f"tree/dir-{i:03}") for i in range(first, last)]
                expect(lines_of("find", *folders, "-type", "f"), (last - first) * TREE_FILES)
                return mounted.usage.resident()
            empty = mounted.usage.resident()
            middle, full = walk(0, half), walk(half, TREE_DIRS)
            print(f"memory      {(middle - empty) / half / TREE_FILES:.0f} bytes a name for the first {half * TREE_FILES:,}, "
                  f"{(full - middle) / (TREE_DIRS - half) / TREE_FILES:.0f} for as many more", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--prepare", nargs="*")
    parser.add_argument("--server", choices=["minio", "s3d"], default="minio")
    parser.add_argument("--case", nargs="*", default=[*CASES, "cache", "memory"])
    parser.add_argument("--subject", nargs="*", default=["raw", "millrace", "s3fs", "rclone"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("mount_flags", nargs="*")
    args = parser.parse_args()
    args.millrace = os.path.join(args.build, "bin/millrace")
    args.proxy = os.path.join(args.build, "bin/delay_proxy")
    args.subject = [s for s in args.subject if s in ("raw", "millrace") or bench.find(s)]
    data = pathlib.Path(args.data)
    kind = bench.Server if args.server == "minio" else bench.S3d
    with bench.stopping(kind(data, args.millrace)) as server:
        if args.prepare is not None:
            return prepare(server, args.millrace, data, args.prepare)
        point = data / "mnt"
        for case in args.case:
            special = {"cache": disk_cache, "memory": memory}.get(case)
            special(args, server, point) if special else run_case(case, args, server, point)


if __name__ == "__main__":
    main()
