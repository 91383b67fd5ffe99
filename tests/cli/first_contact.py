#!/usr/bin/env python3
"""The mistakes of a first hour: each is answered by one message that names the cause and the cure.

Exit status: 0 all right, anything else a failure.
"""
import argparse
import contextlib
import http.server
import json
import os
import pathlib
import pty
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

USAGE, NOT_FOUND, INTERRUPTED = 2, 4, 130  # exit statuses of millrace


class WebPage(http.server.BaseHTTPRequestHandler):
    """A web server that is no S3 endpoint."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<!DOCTYPE html><html><body>It works!</body></html>")

    def log_message(self, *arguments):
        pass


class Machine:
    """A home, a working folder, and an endpoint with the bucket corpus."""

    def __init__(self, folder, millrace):
        self.millrace, self.work = millrace, folder / "work"
        for name in ("home", "tmp", "work", "buckets"):
            (folder / name).mkdir()
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"),
            "AWS_ACCESS_KEY_ID": "tested", "AWS_SECRET_ACCESS_KEY": "tested-secret", "AWS_REGION": "us-east-1",
            "MILLRACE_S3D_ACCESS_KEY": "tested", "MILLRACE_S3D_SECRET_KEY": "tested-secret"}
        self.server = subprocess.Popen(
            [millrace, "--json", "s3d", "--root", folder / "buckets", "--listen", "127.0.0.1:0", "--no-sync"],
            env=self.environment, stdout=subprocess.PIPE, text=True)
        self.endpoint = json.loads(self.server.stdout.readline())["endpoint"]
        self.environment["AWS_ENDPOINT_URL"] = self.endpoint

    def run(self, *arguments, status=0, **environment):
        ran = subprocess.run([self.millrace, *map(str, arguments)], cwd=self.work, capture_output=True, text=True,
                             env={**self.environment, **environment}, stdin=subprocess.DEVNULL)
        assert ran.returncode == status, (arguments, ran.returncode, ran.stdout, ran.stderr)
        return ran

    def refused(self, *arguments, says, status=USAGE, **environment):
        """Runs a command that is refused, with a short message that matches `says`."""
        ran = self.run(*arguments, status=status, **environment)
        assert re.search(says, ran.stderr), (arguments, ran.stderr)
        assert len(ran.stderr) < 700, ran.stderr
        return ran

    def in_terminal(self, columns, *arguments):
        """Runs a command with a terminal as its standard error. Returns what the terminal got."""
        ours, theirs = pty.openpty()
        program = subprocess.Popen([self.millrace, *map(str, arguments)], cwd=self.work, stdout=subprocess.DEVNULL,
                                   stderr=theirs, env={**self.environment, "COLUMNS": str(columns)})
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # the end of the terminal
            while piece := os.read(ours, 65536):
                seen += piece
        os.close(ours)
        assert program.wait() == 0, seen
        return seen.decode()


def words(machine):
    """Words of other programs, and mistakes of spelling."""
    machine.refused("s3", "ls", says="`aws s3 ls` is `millrace ls`")
    machine.refused("cp", "--only-show-errors", "a", "s3://corpus/", says="use --quiet")
    machine.refused("cp", "--numworkers", "4", "a", "s3://corpus/", says="use --concurrency")
    machine.refused("ls", "s3:/corpus/", says="two slashes: s3://corpus/")
    machine.refused("ls", "corpus", says="a bucket of this name is s3://corpus/", status=NOT_FOUND)
    machine.refused("sync", "a", says="expected SOURCE DESTINATION")
    machine.refused("data", "plan", "x.jsonl", "--sequence-length", "0", says='"0" is not a whole number from 2')
    machine.refused("umount", "nothing", says="there is no mount point nothing", status=NOT_FOUND)
    machine.refused("ckpt", "import", "./nosuch", "s3://corpus/x", says="there is nothing at ./nosuch", status=NOT_FOUND)


def buckets(machine):
    machine.run("mb", "s3://corpus")
    again = machine.run("mb", "s3://corpus")
    assert "1 unchanged" in again.stderr, again.stderr
    (machine.work / "one.txt").write_text("1")
    copied = machine.run("cp", "one.txt", "s3://corpus/one.txt", "--if-size-differ").stderr
    assert copied == "", copied
    assert machine.run("cp", "one.txt", "s3://corpus/one.txt", "--if-size-differ").stderr.startswith(
        "cp: 0 items in "), "as sync counts"


def endpoints(machine):
    """The first connection finds nobody, or somebody else."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        machine.refused("ls", says=f"no S3 endpoint answers at {nobody}: .*address and port.*--wait-for-endpoint", status=1,
                        AWS_ENDPOINT_URL=nobody)
        assert time.monotonic() - began < 30, "ten tries take longer"
    machine.refused("ls", says="check that the server speaks https", status=1,
                    AWS_ENDPOINT_URL=machine.endpoint.replace("http:", "https:"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), WebPage) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            machine.refused("ls", says=f"127.0.0.1:{server.server_port} answers with a web page; check that --endpoint-url",
                            AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()


def hangup(machine):
    """The closing of a terminal ends a transfer as ctrl-C does: the second SIGHUP, the shell's, does not end it at once."""
    (machine.work / "large").write_bytes(os.urandom(24 << 20))
    for signals in ([signal.SIGINT], [signal.SIGHUP], [signal.SIGHUP, signal.SIGHUP]):
        copy = subprocess.Popen([machine.millrace, "cp", "large", "s3://corpus/large", "--bandwidth", "4MB"],
                                cwd=machine.work, env=machine.environment, stderr=subprocess.PIPE, text=True)
        while not machine.run("uploads", "ls", "s3://corpus/").stdout:
            assert copy.poll() is None, copy.stderr.read()
        for number in signals:
            copy.send_signal(number)
        message = copy.communicate()[1]
        assert copy.returncode == INTERRUPTED and "interrupted" in message, (signals, copy.returncode, message)
        machine.run("cp", "large", "s3://corpus/large")
        left = machine.run("uploads", "ls", "s3://corpus/").stdout
        assert not left, f"{signals}: the same command goes on with the upload: {left}"


def records(machine):
    """Records without the field that is asked for."""
    lines = "".join(json.dumps({"title": f"t{i}", "body": {"text": f"some words {i}"}}) + "\n" for i in range(300))
    (machine.work / "a.jsonl").write_text(lines)
    machine.run("cp", "a.jsonl", "s3://corpus/a.jsonl")
    inspected = machine.run("data", "inspect", "s3://corpus/a.jsonl").stdout
    assert "300 of 300 records cannot be used: the records have no field text; they have title, body" in inspected, inspected
    assert len(inspected.splitlines()) < 15, inspected
    assert len(machine.run("data", "inspect", "s3://corpus/a.jsonl", "--all").stdout.splitlines()) > 300
    nested = machine.run("data", "inspect", "s3://corpus/a.jsonl", "--template", "{body.text}").stdout
    assert "300 records, 0 broken" in nested, nested
    machine.refused("tokenizer", "train", "--input", "s3://corpus/a.jsonl", "--output", "m.model",
                    says="none of 300 records can be used: the records have no field text; they have title, body")
    machine.refused("tokenizer", "train", "--input", "s3://corpus/a.jsonl", "--output", "s3://nowhere/m.model",
                    "--template", "{body.text}", says="looking at the output s3://nowhere/m.model", status=NOT_FOUND)
    machine.refused("tokenizer", "train", "--input", "s3://corpus/a.jsonl", "--output", "m.model", "--template",
                    "{body.text}", "--vocab-size", "9000", says=r"at most \d+ pieces, not 9000")
    machine.refused("tokenizer", "train", "--input", "s3://corpus/a.jsonl", "--output", "m.model", "--template",
                    "{body.text}", "--vocab-size", "265", says=r"at least \d+ pieces, not 265")
    machine.run("tokenizer", "train", "--input", "s3://corpus/a.jsonl", "--output", "s3://corpus/m.model",
                "--template", "{body.text}", "--vocab-size", "285")
    machine.refused("data", "plan", "s3://corpus/a.jsonl", "--tokenizer", "s3://corpus/m.model", "--template", "{content}",
                    says="no field content; they have title, body")


def progress(machine):
    """Lines of progress fit the terminal."""
    (machine.work / "large").write_bytes(os.urandom(1 << 20))
    for columns in (40, 80):
        seen = machine.in_terminal(columns, "cp", "large", f"s3://corpus/large-{columns}", "--progress", "on",
                                   "--bandwidth", "2MB")
        lines = [line for line in re.split(r"\r\x1b\[K|\r?\n", seen) if line]
        assert any("MB" in line for line in lines), seen
        assert max(map(len, lines)) < columns, lines
    seen = machine.in_terminal(80, "data", "inspect", "s3://corpus/a.jsonl", "--template", "{title}", "--progress", "on")
    assert "\x1b[K" in seen, "the first read of data shows how far it is"


JOB = """name: first
model: {{config: {{hidden_size: {hidden}, num_layers: 1, num_heads: {heads}}}}}
data: {{sources: [{{url: "s3://corpus/a.jsonl"}}], tokenizer: "s3://corpus/m.model", sequence_length: 16, template: "{template}"}}
train: {{steps: 2, global_batch: 2}}
checkpoint: {{url: "s3://corpus/checkpoints"}}
log: {{metrics_listen: "{listen}"}}
"""


def jobs(machine):
    """Checks before a job starts."""
    def dry_run(hidden=32, heads=2, template="{body.text}", listen="", status=0):
        (machine.work / "job.yaml").write_text(JOB.format(hidden=hidden, heads=heads, template=template, listen=listen))
        return machine.run("train", "job.yaml", "--dry-run", status=status).stdout

    (machine.work / "tab.yaml").write_text("name: x\nmodel:\n\tconfig: {}\n")
    machine.refused("train", "tab.yaml", says=r"tab.yaml:3: a tab cannot indent in YAML; use spaces")
    if not (pathlib.Path(machine.millrace).parent / "millrace-train").exists():
        return print("no training programs: jobs are not checked")
    assert "memory" in dry_run()
    assert "no field content; they have title, body" in dry_run(template="{content}", status=1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "log.metrics_listen: cannot listen on " + listen in dry_run(listen=listen, status=1)
    assert re.search("memory.*a rank needs about", dry_run(hidden=65_536, heads=64, status=1))
    machine.run("train", "job.yaml", "--set", "model.config={hidden_size: 32, num_layers: 1, num_heads: 2}", "--set",
                "data.template='{title}'")
    foreign = dry_run(hidden=64, status=1)
    assert "step 2 there is of another model: its hidden_size is 32, this job's is 64" in foreign, foreign
    foreign = dry_run(heads=4, status=1)
    assert "its num_attention_heads is 2, this job's is 4" in foreign, foreign
    renamed = machine.run("train", "job.yaml", "--dry-run", "--set", "name=second", "--set", "model.config.num_heads=2",
                          "--set", "data.template='{body.text}'").stdout
    assert "job second goes on from step 2 of job first at s3://corpus/checkpoints" in renamed, renamed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(pathlib.Path(folder), str(pathlib.Path(arguments.millrace).resolve()))
        try:
            for check in (words, buckets, endpoints, hangup, records, progress, jobs):
                check(machine)
                print(check.__name__)
        finally:
            machine.server.terminate()
            machine.server.wait()


if __name__ == "__main__":
    main()
