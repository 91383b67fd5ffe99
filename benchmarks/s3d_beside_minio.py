#!/usr/bin/env python3
"""`millrace s3d` beside MinIO, in one run: GET of 64 MiB, GET and PUT of 10 KB, over a few keep-alive connections.

The client is a loop over raw sockets with presigned URLs, so that what is measured is mostly the server. Each figure is
the median of --rounds rounds, the two servers taking turns; CPU seconds are the server's.
Needs boto3 (for the presigned URLs) and minio, both from MILLRACE_PEERS or PATH.
"""
import argparse
import multiprocessing
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.parse

import boto3
from botocore.config import Config

ACCESS, SECRET = "benchmark", "benchmark-secret"
SMALL, LARGE = 10_000, 64 << 20


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    def __init__(self, name, command, environment):
        self.name = name
        self.port = free_port()
        address = f"127.0.0.1:{self.port}"
        self.process = subprocess.Popen([word.replace("ADDRESS", address) for word in command],
                                        env=dict(os.environ, **environment), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        self.s3 = boto3.client("s3", endpoint_url="http://" + address, aws_access_key_id=ACCESS,
                               aws_secret_access_key=SECRET, region_name="us-east-1",
                               config=Config(signature_version="s3v4", s3={"addressing_style": "path"}))
        deadline = time.monotonic() + 30
        while True:
            try:
                self.s3.create_bucket(Bucket="bench")
                break
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self.s3.put_object(Bucket="bench", Key="small", Body=os.urandom(SMALL))
        self.s3.put_object(Bucket="bench", Key="large", Body=os.urandom(LARGE))

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def request(self, method, key, body=b""):
        operation = {"GET": "get_object", "PUT": "put_object"}[method]
        url = urllib.parse.urlsplit(self.s3.generate_presigned_url(operation, Params={"Bucket": "bench", "Key": key}))
        head = f"{method} {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def stop(self):
        self.process.terminate()
        self.process.wait()


def hammer(port, requests, seconds, counts, index):
    """Sends the requests in turn over one connection until time is up; counts answers."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(1 << 20)
        view, done, end = memoryview(buffer), 0, time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(requests[done % len(requests)])
            got = connection.recv_into(view)
            while (mark := buffer.find(b"\r\n\r\n", 0, got)) < 0:
                got += connection.recv_into(view[got:])
            head = bytes(buffer[:mark]).lower()
            assert head.startswith(b"http/1.1 20"), head
            at = head.find(b"content-length:")
            length = int(head[at + 15:].split(b"\r\n", 1)[0]) if at >= 0 else 0
            left = length - (got - mark - 4)
            while left > 0:
                left -= connection.recv_into(view[:min(left, len(view))])
            done += 1
        counts[index] = done


def measure(server, requests_of, connections, seconds):
    counts = multiprocessing.Array("q", connections)
    workers = [multiprocessing.Process(target=hammer, args=(server.port, requests_of(server, i), seconds, counts, i))
               for i in range(connections)]
    cpu, start = server.cpu_seconds(), time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    elapsed = time.monotonic() - start
    return sum(counts) / elapsed, (server.cpu_seconds() - cpu) / max(1, sum(counts))


CASES = [
    ("GET 64 MiB", 2, LARGE, lambda server, i: [server.request("GET", "large")]),
    ("PUT 64 MiB", 2, LARGE, lambda server, i: [server.request("PUT", f"large-{i}", os.urandom(LARGE))]),
    ("GET 10 KB", 8, None, lambda server, i: [server.request("GET", "small")]),
    ("PUT 10 KB", 8, None, lambda server, i: [server.request("PUT", f"p{i}/{n}", os.urandom(SMALL)) for n in range(50)]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, help="the millrace program")
    parser.add_argument("--seconds", type=float, default=2, help="per round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    minio = shutil.which("minio", path=os.path.join(os.environ.get("MILLRACE_PEERS", ""), "bin")) or shutil.which("minio")
    assert minio, "minio is neither under MILLRACE_PEERS nor on PATH"
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        servers = [
            Server("s3d", [options.millrace, "s3d", "--root", folder + "/s3d", "--listen", "ADDRESS"],
                   {"MILLRACE_S3D_ACCESS_KEY": ACCESS, "MILLRACE_S3D_SECRET_KEY": SECRET}),
            Server("minio", [minio, "server", folder + "/minio", "--address", "ADDRESS", "--quiet"],
                   {"MINIO_ROOT_USER": ACCESS, "MINIO_ROOT_PASSWORD": SECRET}),
        ]
        try:
            print(f"{'':<12}{'conn':>5}{'s3d':>14}{'minio':>14}{'ratio':>8}{'s3d CPU':>12}{'minio CPU':>12}")
            for name, connections, size, requests_of in CASES:
                results = {server.name: [] for server in servers}
                for _ in range(options.rounds):
                    for server in servers:
                        results[server.name].append(measure(server, requests_of, connections, options.seconds))
                rate = {key: statistics.median(run[0] for run in runs) for key, runs in results.items()}
                cpu = {key: statistics.median(run[1] for run in runs) * 1e3 for key, runs in results.items()}
                unit = (lambda r: f"{r * size / 1e6:.0f} MB/s") if size else (lambda r: f"{r:.0f} req/s")
                print(f"{name:<12}{connections:>5}{unit(rate['s3d']):>14}{unit(rate['minio']):>14}"
                      f"{rate['s3d'] / rate['minio']:>8.2f}{cpu['s3d']:>9.2f} ms{cpu['minio']:>9.2f} ms", flush=True)
        finally:
            for server in servers:
                server.stop()


if __name__ == "__main__":
    main()
