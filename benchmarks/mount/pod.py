#!/usr/bin/env python3
"""Throughput of a volume as a pod has it, beside the mount on the host.

    benchmarks/mount/pod.py --build build/release [--rounds 9] [--size 512]

A pod sees a volume as a bind mount in a mount namespace and a cgroup of its own. This script makes such a place with
unshare(1) and reads and writes there and on the host by the same program, in interleaved rounds. The store is `millrace
s3d` on this machine. Needs root and /dev/fuse. Prints the medians and their ratio for each case.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

MIB = 1 << 20
# Reads or writes one file and prints the seconds that this took.
WORKER = r"""
import os, sys, time
kind, path, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
block = bytes(1 << 20) if kind == "write" else bytearray(1 << 20)
began = time.monotonic()
if kind == "write":
    with open(path, "wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(block)
        os.fsync(file.fileno())
else:
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.readinto(block):
            pass
print(time.monotonic() - began)
"""


def run(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True, **more).stdout


class Place:
    """Where the worker runs: on the host, or in namespaces with the mount bound to another folder."""

    def __init__(self, point, pod_folder=None):
        self.point, self.pod_folder = point, pod_folder

    def seconds(self, kind, name, size):
        if self.pod_folder is None:
            return float(run("python3", "-c", WORKER, kind, self.point / name, size))
        script = f'mount --bind "{self.point}" "{self.pod_folder}" && exec python3 -c "$0" "$@"'
        return float(run("unshare", "--mount", "--pid", "--fork", "--cgroup", "sh", "-c", script, WORKER, kind,
                         self.pod_folder / name, size))


def measure(places, rounds, size):
    """Seconds by kind and place. The order of the places changes with each round."""
    seconds = {(kind, place): [] for kind in ("read", "write") for place in places}
    for number in range(rounds):
        order = list(places) if number % 2 == 0 else list(reversed(places))
        for kind in ("write", "read"):
            for place in order:
                name = f"{place}-{number % 2}" if kind == "write" else f"data-{number % 2}"
                run("sh", "-c", "echo 3 >/proc/sys/vm/drop_caches")
                seconds[kind, place].append(places[place].seconds(kind, name, size))
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--size", type=int, default=512, help="of a file, MiB")
    arguments = parser.parse_args()
    program, size = arguments.build.resolve() / "bin/millrace", arguments.size * MIB
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        environment = os.environ | {"AWS_REGION": "us-east-1", "MILLRACE_NO_SIGN_REQUEST": "true"}
        server = subprocess.Popen([program, "s3d", "--root", folder / "s3", "--anonymous", "--no-sync", "--port-file", folder / "port"],
                                  stdout=subprocess.DEVNULL)
        try:
            while not (folder / "port").exists():
                time.sleep(0.02)
            environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{(folder / 'port').read_text().strip()}"
            run(program, "mb", "s3://bench", env=environment)
            point, bound = folder / "mnt", folder / "pod"
            for path in (point, bound):
                path.mkdir()
            run(program, "mount", "s3://bench", point, "--memory-budget", "512MiB", env=environment)
            try:
                for name in ("data-0", "data-1"):
                    (point / name).write_bytes(os.urandom(size))
                seconds = measure({"host": Place(point), "pod": Place(point, bound)}, arguments.rounds, size)
            finally:
                run(program, "umount", point, env=environment)
        finally:
            server.terminate()
            server.wait()
    for kind in ("read", "write"):
        host, pod = (statistics.median(seconds[kind, place]) for place in ("host", "pod"))
        print(f"{kind}: host {size / host / 1e6:.0f} MB/s, pod {size / pod / 1e6:.0f} MB/s, ratio {host / pod:.3f}, rounds {arguments.rounds}")


main()
