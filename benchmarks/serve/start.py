#!/usr/bin/env python3
"""Times how soon `millrace serve` answers: seconds from its start until it accepts requests and until a first token has come,
and the most memory that it has had by then.

    start.py MILLRACE MODEL [--rounds N] [flags of millrace serve]"""
import argparse
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from compare import complete


def start(command, port_file):
    """Returns the two times, in seconds, and the peak of memory in MB."""
    begin = time.perf_counter()
    server = subprocess.Popen(command)
    try:
        while not port_file.exists():
            if server.poll() is not None:
                sys.exit(f"{command[0]} did not start")
            time.sleep(0.003)
        ready = time.perf_counter() - begin
        complete(int(port_file.read_text()), [1], 1)
        first = time.perf_counter() - begin
        status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
        return ready, first, int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1000
    finally:
        server.terminate()
        server.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("millrace")
    p.add_argument("model")
    p.add_argument("--rounds", type=int, default=10)
    o, flags = p.parse_known_args()
    runs = []
    for _ in range(o.rounds):
        with tempfile.TemporaryDirectory() as folder:
            port_file = pathlib.Path(folder) / "port"
            runs.append(start([o.millrace, "serve", o.model, "--listen", "127.0.0.1:0", "--port-file", str(port_file), "--quiet",
                               *flags], port_file))
    for what, unit, values in zip(("ready", "first token", "peak of memory"), ("s", "s", "MB"), zip(*runs)):
        print(f"{what}: median {statistics.median(values):.2f} {unit}, {min(values):.2f} to {max(values):.2f}")


main()
