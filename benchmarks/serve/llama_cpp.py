#!/usr/bin/env python3
"""Measures `millrace serve` beside llama.cpp's server: tokens per second of 1, 8 and 32 texts made together, and the time
to the first token of a 1,000-token prompt. Both have the same random weights, prompts and threads; greedy, without
guessed tokens.

    llama_cpp.py PROGRAM PYTHON TOKENIZER LLAMA_SERVER [--model llama-58m|gpt2-124m] [--weights f32|bf16|int8|nf4]
                 [--rounds N] [--threads N] [--streams 1,8,32] [--kv-cache-dtype auto|int8]

PROGRAM, PYTHON and TOKENIZER are those of compare.py, with all of the model's tokens in TOKENIZER. The program `millrace`
beside PROGRAM starts it. A GGUF file of the model is written for llama.cpp, with q8_0 for int8 and q4_0 for nf4.

The two take turns. The ratios are medians of the rounds' ratios: of the time on the clock, and of the CPU seconds that the
processes took, which suffer less from what else the machine does."""
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from compare import LONG, MAKE, MODELS, PROMPT, TOKENS, complete, parser


class Server:
    """A server in a process of its own, which answers /v1/completions."""

    def __init__(self, arguments, port, ready, extra):
        start = time.perf_counter()
        self.extra, self.log = extra, tempfile.TemporaryFile()
        self.process = subprocess.Popen([str(argument) for argument in arguments], stdout=self.log, stderr=self.log)
        while not ready():
            if self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(f"{arguments[0]} did not start: {self.log.read().decode()}")
            time.sleep(0.02)
        self.startup, self.port = time.perf_counter() - start, port()

    def complete(self, prompt, tokens):
        """Returns the time to the first token, and the number of tokens."""
        first, _, count = complete(self.port, prompt, tokens, **self.extra)
        return first, count

    def cpu(self):
        """Returns the CPU seconds that the process has taken."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak(self):
        """Returns the most memory that the process has had, in MB."""
        return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1000

    def texts(self, prompts, tokens):
        """Returns the seconds and the CPU seconds that a token of these texts takes, made together."""
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            cpu, start = self.cpu(), time.perf_counter()
            count = sum(count for _, count in pool.map(lambda prompt: self.complete(prompt, tokens), prompts))
            return (time.perf_counter() - start) / count, (self.cpu() - cpu) / count

    def first(self, prompt):
        """Returns the seconds and the CPU seconds to the first token."""
        cpu = self.cpu()
        return self.complete(prompt, 1)[0], self.cpu() - cpu

    def stop(self):
        self.process.terminate()
        self.process.wait()


def millrace_of(o):
    """Returns the program that users start. PROGRAM, started by itself, starts a second time to set its environment."""
    return pathlib.Path(o.program).with_name("millrace")


def millrace(o, folder):
    port_file = pathlib.Path(folder) / "port"
    arguments = [millrace_of(o), "serve", folder, "--device", "cpu", "--threads", o.threads, "--listen", "127.0.0.1:0",
                 "--port-file", port_file, "--draft-tokens", "0", "--weights", o.weights, "--kv-cache-dtype", o.kv_cache_dtype,
                 "--quiet"]
    return Server(arguments, lambda: int(port_file.read_text()), port_file.exists, {})


def llama_cpp(o, folder):
    """With as many slots as there are texts, each long enough for the long prompt."""
    file = pathlib.Path(folder) / "model.gguf"
    subprocess.run([millrace_of(o), "ckpt", "export", folder, file, "--type",
                    {"int8": "q8_0", "nf4": "q4_0"}.get(o.weights, o.weights), "--quiet"], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def healthy():
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    slots = max(o.streams)
    # Its cache would otherwise be f16 beside any weights.
    numbers = {"f32": "f32", "bf16": "bf16"}.get(o.weights, "f32") if o.kv_cache_dtype == "auto" else "q8_0"
    return Server([o.llama_server, "-m", file, "--host", "127.0.0.1", "--port", port, "-t", o.threads, "-tb", o.threads, "-np",
                   slots, "-c", slots * 1024, "-ctk", numbers, "-ctv", numbers, "--no-webui", "-ngl", 0],
                  lambda: port, healthy, {"ignore_eos": True, "cache_prompt": False})


def main():
    p = parser(__doc__)
    p.add_argument("llama_server")
    p.add_argument("--weights", choices=["f32", "bf16", "int8", "nf4"], default="f32")
    p.add_argument("--kv-cache-dtype", choices=["auto", "int8"], default="auto")
    p.set_defaults(rounds=5)
    p.add_argument("--streams", default="1,8,32", help="texts that are made together")
    o = p.parse_args()
    family, config = MODELS[o.model]
    o.streams = [int(streams) for streams in o.streams.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([o.python, "-c", MAKE, folder, family, json.dumps(config)], check=True)
        shutil.copy(o.tokenizer, pathlib.Path(folder) / f"tokenizer{pathlib.Path(o.tokenizer).suffix}")
        draw = random.Random(1)
        prompts = lambda count, length: [[draw.randrange(3, 30000) for _ in range(length)] for _ in range(count)]
        server, peer = millrace(o, folder), llama_cpp(o, folder)
        rows = {}  # name to the rounds' (seconds, CPU seconds) of both
        try:
            server.texts(prompts(2, 8), 4)
            peer.texts(prompts(2, 8), 4)
            for _ in range(o.rounds):
                for streams in o.streams:
                    texts = prompts(streams, PROMPT)
                    rows.setdefault(f"{streams} texts", []).append((server.texts(texts, TOKENS), peer.texts(texts, TOKENS)))
                prompt = prompts(1, LONG)[0]
                rows.setdefault(f"first of {LONG} tokens", []).append((server.first(prompt), peer.first(prompt)))
            print(f"start {server.startup:.2f} s ({peer.startup:.2f}), memory {server.peak():.0f} MB ({peer.peak():.0f}), "
                  f"program {os.path.getsize(o.program) / 1e6:.0f} MB ({os.path.getsize(o.llama_server) / 1e6:.0f})")
        finally:
            server.stop()
            peer.stop()
    name = f"{o.model} {o.weights}, {o.threads} threads, beside llama.cpp"
    for what, rounds in rows.items():
        own, other = (statistics.median(both[i][0] for both in rounds) for i in (0, 1))
        faster = statistics.median(b[0] / a[0] for a, b in rounds)
        figure = (lambda s: f"{1 / s:.1f} tokens/s") if what.endswith("texts") else (lambda s: f"{s * 1000:.0f} ms")
        cpu = statistics.median(b[1] / a[1] for a, b in rounds)
        print(f"{name}: {what}: {figure(own)}, {faster:.2f}x ({figure(other)}), {cpu:.2f}x by CPU seconds", flush=True)


if __name__ == "__main__":
    main()
