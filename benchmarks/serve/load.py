#!/usr/bin/env python3
"""Puts a load on `millrace serve` as many clients would, and measures the times between tokens and the server's memory.

    load.py PROGRAM MODEL [--tokenizer FILE] [--clients 200] [--load 0.7] [--duration S] [--threads N] [--precision f32|bf16]
            [--trouble SHARE] [--slow N] [--json]

PROGRAM is build/release/bin/millrace-serve and MODEL what it serves. The capacity is measured first: as many clients as the
batch has places, each asking again as soon as it has its answer. Then requests arrive at random (Poisson) at `--load` times that
rate, from at most `--clients` clients. `--trouble` of them are troublesome: a half stalls for some seconds while it reads,
the other half vanishes. `--slow N` opens N more connections that send a byte of a request now and then. `--duration 7200` is a
long soak; the memory of the server's process is told once a second, and its growth at the end.

What is told: requests that were answered, refused and lost (none may be), the median and the 99th percentile of the times between
tokens and to the first one, and memory."""
import argparse
import asyncio
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

PROMPT_WORDS, TOKENS = (4, 60), (8, 64)
WORDS = "the mill race turns a wheel and the water runs past stones under an old bridge".split()


class Server:
    def __init__(self, arguments, folder):
        self.port_file = pathlib.Path(folder) / "port"
        command = [arguments.program, arguments.model, "--precision", arguments.precision, "--device", "cpu", "--threads",
                   str(arguments.threads), "--listen", "127.0.0.1:0", "--port-file", str(self.port_file), "--quiet",
                   "--max-concurrent", str(4 * arguments.clients), *arguments.flags.split()]
        if arguments.tokenizer:
            command += ["--tokenizer", arguments.tokenizer]
        self.process = subprocess.Popen(command)
        while not self.port_file.exists():
            if self.process.poll() is not None:
                sys.exit(f"{arguments.program} did not start")
            time.sleep(0.05)
        self.port = int(self.port_file.read_text())

    def resident_mib(self):
        pages = int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self):
        self.process.terminate()
        if self.process.wait(60) != 0:
            sys.exit("the server did not end in order")


class Load:
    def __init__(self, server, seed):
        self.server, self.random = server, random.Random(seed)
        self.gaps, self.first, self.tokens = [], [], 0
        self.counts = dict(answered=0, refused=0, lost=0, stalled=0, vanished=0)

    def body(self):
        words = self.random.choices(WORDS, k=self.random.randint(*PROMPT_WORDS))
        return {"prompt": " ".join(words), "max_tokens": self.random.randint(*TOKENS), "temperature": 0.8, "stream": True,
                "seed": self.random.randrange(2**31)}

    async def ask(self, trouble=""):
        body = json.dumps(self.body()).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        began = time.perf_counter()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        except OSError:
            self.counts["lost"] += 1
            return
        try:
            writer.write(head.encode() + body)
            await writer.drain()
            status = await reader.readline()
            if b" 200 " not in status:
                self.counts["refused" if b" 429 " in status or b" 503 " in status else "lost"] += 1
                return
            last, seen, done = None, 0, False
            while line := await reader.readline():
                if not line.startswith(b"data: "):
                    continue
                now = time.perf_counter()
                if line.startswith(b"data: [DONE]"):
                    done = True
                    break
                if b'"text":""' in line:
                    continue
                (self.first.append(now - began) if last is None else self.gaps.append(now - last))
                last, seen = now, seen + 1
                self.tokens += 1
                if trouble and seen == 3:
                    self.counts["vanished" if trouble == "vanish" else "stalled"] += 1
                    if trouble == "vanish":
                        return
                    await asyncio.sleep(self.random.uniform(1, 4))
                    last = time.perf_counter()
            if done:
                self.counts["answered"] += 1
            else:
                self.counts["lost"] += 1
        except (OSError, asyncio.IncompleteReadError):
            self.counts["lost"] += 1
        finally:
            writer.close()


async def measure_capacity(server, seconds, clients):
    load, end = Load(server, 1), time.perf_counter() + seconds

    async def client():
        while time.perf_counter() < end:
            await load.ask()
    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    spent = time.perf_counter() - began
    return load.counts["answered"] / spent, load.tokens / spent


async def slow_client(server, end):
    """Sends the head of a request, a byte now and then."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"
    while time.perf_counter() < end:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for byte in head + b"{" * 1000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(1)
                if time.perf_counter() > end:
                    break
            writer.close()
        except OSError:
            await asyncio.sleep(0.5)


async def put_load(server, arguments, rate):
    load, memory, tasks = Load(server, 2), [], set()
    began = time.perf_counter()
    end = began + arguments.duration
    slow = [asyncio.create_task(slow_client(server, end)) for _ in range(arguments.slow)]

    async def watch():
        while True:
            memory.append(server.resident_mib())
            await asyncio.sleep(1)
    watcher = asyncio.create_task(watch())
    skipped = 0
    while time.perf_counter() < end:
        await asyncio.sleep(load.random.expovariate(rate))
        if len(tasks) >= arguments.clients:
            skipped += 1  # all clients are busy
            continue
        draw = load.random.random()
        trouble = "stall" if draw < arguments.trouble / 2 else "vanish" if draw < arguments.trouble else ""
        task = asyncio.create_task(load.ask(trouble))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks)
    watcher.cancel()
    for task in slow:
        task.cancel()
    return load, memory, skipped, time.perf_counter() - began


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--tokenizer", default="")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--duration", type=float, default=60)
    parser.add_argument("--capacity-seconds", type=float, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--trouble", type=float, default=0.1)
    parser.add_argument("--slow", type=int, default=0)
    parser.add_argument("--flags", default="", help="more flags of the server, in one text")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        server = Server(arguments, folder)
        try:
            requests, tokens = asyncio.run(measure_capacity(server, arguments.capacity_seconds, 32))
            load, memory, skipped, spent = asyncio.run(put_load(server, arguments, arguments.load * requests))
        finally:
            server.stop()
    # The first tenth is left out: pools and caches fill.
    settled = memory[len(memory) // 10:] or [float("nan")]
    quarter = max(1, len(settled) // 4)
    told = {
        "capacity_requests_per_s": round(requests, 2), "capacity_tokens_per_s": round(tokens, 1), "seconds": round(spent, 1),
        "load_tokens_per_s": round(load.tokens / spent, 1), "clients_all_busy": skipped, **load.counts,
        "between_tokens_median_s": round(statistics.median(load.gaps), 4) if load.gaps else None,
        "between_tokens_p99_s": round(percentile(load.gaps, 0.99), 4), "between_tokens_most_s": round(max(load.gaps, default=0), 4),
        "first_token_median_s": round(percentile(load.first, 0.5), 4), "first_token_p99_s": round(percentile(load.first, 0.99), 4),
        "memory_first_mib": round(statistics.median(settled[:quarter]), 1),
        "memory_last_mib": round(statistics.median(settled[-quarter:]), 1), "memory_most_mib": round(max(settled), 1)}
    if arguments.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name:28} {value}")
    return 1 if load.counts["lost"] else 0


sys.exit(main())
