#!/usr/bin/env python3
"""Writes through `millrace mount`, beside s3fs and rclone mounts and a raw multipart upload, in one run.

  write.py --build build/release --data DIR [--case NAME…] [--subject NAME…] [--repeat N] [-- MOUNT FLAGS…]

A MinIO keeps its data in DIR. Every run has a fresh mount; each round begins with another subject. `big`: 1 GiB in
pieces of 1 MiB, then fsync and close. `create`: 500 files of 100 kB, one after the other. `millrace-async` is
--close=async, whose files are in the store only after the unmount; how long that took is told apart. Let nothing
else run meanwhile. Needs minio and curl; peers that are absent are left out.
"""
import argparse
import http.client
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import threading
import time

import bench
from bench import BUCKET, MB

BIG, PIECE, WAYS = 1 << 30, 1 << 20, 8
FILES, FILE_BYTES = 500, 100_000
SUBJECTS = ["raw", "millrace", "millrace-async", "s3fs", "rclone"]


def write_big(root):
    piece = os.urandom(PIECE)
    begin = time.monotonic()
    with open(root / f"big-{time.monotonic_ns()}", "wb", buffering=0) as file:
        for _ in range(BIG // PIECE):
            file.write(piece)
        os.fsync(file.fileno())
    return BIG / MB / (time.monotonic() - begin)


def create_files(root):
    content = os.urandom(FILE_BYTES)
    folder = root / f"created-{time.monotonic_ns()}"
    folder.mkdir()
    begin = time.monotonic()
    for i in range(FILES):
        with open(folder / f"f{i:04}", "wb", buffering=0) as file:
            file.write(content)
    return FILES / (time.monotonic() - begin)


def ask(url, method, path, body=b""):
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request(method, path, body)
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status >= 300 or "<Error>" in text:
        raise RuntimeError(text)
    return text


def raw_upload(url):
    """One multipart upload, its parts sent by curl at a time, unsigned."""
    key = f"/{BUCKET}/raw-{time.monotonic_ns()}"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        part = pathlib.Path(folder) / "part"
        piece = os.urandom(PIECE)
        with open(part, "wb") as file:
            for _ in range(BIG // WAYS // PIECE):
                file.write(piece)
        begin = time.monotonic()
        upload = re.search("<UploadId>(.*?)<", ask(url, "POST", key + "?uploads")).group(1)
        heads = [None] * WAYS

        def send(number):
            heads[number] = subprocess.run(
                ["curl", "-s", "-f", "-D", "-", "-o", "/dev/null", "-H", "Expect:", "-T", str(part),
                 f"{url}{key}?partNumber={number + 1}&uploadId={upload}"],
                check=True, capture_output=True, text=True).stdout

        threads = [threading.Thread(target=send, args=(i,)) for i in range(WAYS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        etags = [re.search("(?i)etag: *(.*?)\\r?\n", head).group(1) for head in heads]
        parts = "".join(f"<Part><PartNumber>{i + 1}</PartNumber><ETag>{etag}</ETag></Part>"
                        for i, etag in enumerate(etags))
        ask(url, "POST", f"{key}?uploadId={upload}",
            f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode())
        return BIG / MB / (time.monotonic() - begin)


CASES = {"big": ("MB/s", write_big), "create": ("files/s", create_files)}


def measure(case, subject, args, server, point):
    if subject == "raw":
        return raw_upload(server.url), 0.0, 0.0, 0.0
    flags = [*args.mount_flags, *(["--close=async"] if subject == "millrace-async" else [])]
    if not subject.startswith("millrace"):
        flags = []
    with bench.stopping(bench.mount(subject, args.millrace, server.url, point, server.environment, *flags)) as mounted:
        figure = CASES[case][1](mounted.point)
        cpu, peak = mounted.usage.cpu(), mounted.usage.peak_mb()
        begin = time.monotonic()
        subprocess.run(["fusermount3", "-u", str(mounted.point)], check=False)
        mounted.process.wait(300)
        return figure, cpu, peak, time.monotonic() - begin


def run_case(case, args, server, point):
    subjects = [s for s in args.subject if not (case == "create" and s == "raw")]
    runs = {subject: [] for subject in subjects}
    for turn in range(args.repeat + 1):
        for subject in subjects[turn % len(subjects):] + subjects[:turn % len(subjects)]:
            measured = measure(case, subject, args, server, point)
            if turn > 0:  # the first touches memory and disk that nobody has touched before
                runs[subject].append(measured)
    unit = CASES[case][0]
    middle = {subject: statistics.median(run[0] for run in some) for subject, some in runs.items()}
    for subject, some in runs.items():
        rest = " ".join(f"{run[0]:.4g}" for run in some)
        notes = f"CPU {min(run[1] for run in some):.2f} s, {max(run[2] for run in some):.0f} MB, " \
                f"then unmounted in {statistics.median(run[3] for run in some):.2f} s" if subject != "raw" else ""
        print(f"{case:7} {subject:15} {middle[subject]:8.4g} {unit:8} [{rest}] {notes}", flush=True)
    for subject in subjects:
        if "millrace" in middle and subject != "millrace":
            print(f"{case:7} millrace / {subject}: {middle['millrace'] / middle[subject]:.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--case", nargs="*", default=list(CASES))
    parser.add_argument("--subject", nargs="*", default=SUBJECTS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("mount_flags", nargs="*")
    args = parser.parse_args()
    args.millrace = os.path.join(args.build, "bin/millrace")
    args.subject = [s for s in args.subject if s == "raw" or s.startswith("millrace") or bench.find(s)]
    data = pathlib.Path(args.data)
    with bench.stopping(bench.Server(data)) as server:
        if not (data / "bucket.ready").exists():
            server.make_bucket(args.millrace)
            (data / "bucket.ready").touch()
        for case in args.case:
            run_case(case, args, server, data / "mnt")


if __name__ == "__main__":
    main()
