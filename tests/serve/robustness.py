"""Treats `millrace serve` badly: a body of 100 MB, a thousand slow clients, weights that are no numbers, a model that is deleted while
it is served. Each time the server answers the next request.

    python3 robustness.py --millrace PROGRAM

The model is tiny (tiny_model.py)."""
import argparse
import http.client
import json
import os
import pathlib
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

from tiny_model import write_model

PATIENCE_S = 120
SLOW_CLIENTS = 1000


class Server:
    def __init__(self, millrace, model, folder, *flags):
        self.port_file = folder / "port"
        self.port_file.unlink(missing_ok=True)
        self.process = subprocess.Popen([millrace, "serve", str(model), "--listen", "127.0.0.1:0", "--port-file", str(self.port_file),
                                         "--threads", "1", "--device", "cpu", "--quiet", *flags])

    def __enter__(self):
        deadline = time.monotonic() + PATIENCE_S
        while not self.port_file.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, "millrace serve did not start"
            time.sleep(0.02)
        self.port = int(self.port_file.read_text())
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0

    def ask(self, body, path="/v1/completions"):
        """Returns the status and the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())
        response = connection.getresponse()
        answer = response.status, json.load(response)
        connection.close()
        return answer

    def check_alive(self):
        status, answer = self.ask({"prompt": "The mill", "max_tokens": 4, "temperature": 0})
        assert status == 200 and answer["usage"]["completion_tokens"] > 0, answer

    def memory_bytes(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmHWM")


def large_body(server):
    before = server.memory_bytes()
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n")
        try:
            for _ in range(100):
                client.sendall(b"x" * 1_000_000)
        except OSError:
            pass  # the server has answered and hung up
        assert b" 413 " in client.recv(100), "the body is too large"
    assert server.memory_bytes() - before < 20_000_000, "the body was not kept"
    server.check_alive()


def slow_clients(server):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most < SLOW_CLIENTS + 100:
        print(f"fewer slow clients: this process may have {most} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    clients = []
    for _ in range(min(SLOW_CLIENTS, most - 100)):
        client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
        try:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost:")
        except OSError:
            pass  # it had to make room for another
        clients.append(client)
    for _ in range(3):
        server.check_alive()
    for client in clients:
        client.close()


def no_numbers(millrace, model, folder):
    file = model / "model.safetensors"
    content = bytearray(file.read_bytes())
    length = struct.unpack("<Q", content[:8])[0]
    begin, end = json.loads(content[8:8 + length])["model.norm.weight"]["data_offsets"]
    content[8 + length + begin:8 + length + end] = struct.pack("<f", float("nan")) * ((end - begin) // 4)
    file.write_bytes(content)
    with Server(millrace, model, folder) as server:
        for _ in range(2):
            status, answer = server.ask({"prompt": "The mill", "max_tokens": 4})
            assert status == 500 and "not numbers" in answer["error"]["message"], answer
            status, answer = server.ask({"input": "The mill"}, "/v1/embeddings")
            assert status == 500 and "not numbers" in answer["error"]["message"], answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-robust-") as work:
        folder = pathlib.Path(work)
        write_model(folder / "model")
        shutil.copytree(folder / "model", folder / "broken")
        with Server(arguments.millrace, folder / "model", folder) as server:
            server.check_alive()
            shutil.rmtree(folder / "model")
            server.check_alive()
            print("a model that is deleted is still served", flush=True)
            large_body(server)
            print("a body of 100 MB is refused", flush=True)
            slow_clients(server)
            print("slow clients shut nobody out", flush=True)
            status, answer = server.ask({"prompt": "x" * 5000})
            assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer
        no_numbers(arguments.millrace, folder / "broken", folder)
        print("weights that are no numbers fail requests, not the server")


main()
