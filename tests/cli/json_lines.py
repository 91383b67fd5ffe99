#!/usr/bin/env python3
"""The lines that commands print with --json have the members that docs/guide/scripts.md names, and no others.

Exit status: 0 all right, anything else a failure.
"""
import argparse
import collections
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import tempfile

TYPES = {"text": (str,), "int": (int,), "number": (int, float), "bool": (bool,), "list": (list,), "map": (dict,)}
# Rows of the page that no command here prints: mounts need privileges, others a failure or a long run.
NOT_RUN = {("mount", "mounted"), ("mount", "recovered"), ("train", "checkpoint_failed"), ("data inspect", "text"),
           ("data inspect", "missing_fields"), ("ls", "a version"), ("job submit", "submitted"), ("any", "error")}
TRAINING = {"train", "job list", "job status", "job plan", "job submit", "top", "ckpt ls", "ckpt show", "ckpt verify",
            "ckpt diff", "ckpt gc", "ckpt export", "ckpt import"}


@dataclasses.dataclass(frozen=True)
class Row:
    """A kind of line of one command."""
    command: str
    line: str
    event: str  # "": the line has none
    members: tuple  # (name, type, whether some lines leave it out)

    def fits(self, line):
        types = {name: kind for name, kind, _ in self.members}
        required = {name for name, _, optional in self.members if not optional}
        return (line.get("event", "") == self.event and required <= line.keys() <= types.keys() | {"event"}
                and all(self.has_type(value, types[name]) for name, value in line.items() if name != "event"))

    @staticmethod
    def has_type(value, kind):
        return isinstance(value, TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))


def rows_of(page):
    rows = []
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 3 or cells[0] in ("command", "---"):
            continue
        event = re.match(r"`(\w+)`", cells[1])
        members = tuple((name, kind, bool(mark)) for name, kind, mark in re.findall(r"`(\w+)` (\w+)(\??)", cells[2]))
        assert members and all(kind in TYPES for _, kind, _ in members), line
        rows += [Row(command, cells[1].replace("`", ""), event[1] if event else "", members)
                 for command in re.findall(r"`([\w ]+)`", cells[0]) or ["any"]]
    return rows


class Commands:
    """Runs commands against an endpoint, and compares their lines with the rows of the page."""

    def __init__(self, millrace, folder, rows):
        self.millrace, self.rows, self.seen = millrace, rows, collections.Counter()
        self.work = folder / "work"
        for name in ("work", "home", "buckets"):
            (folder / name).mkdir()
        keys = {"ACCESS_KEY": "tested", "SECRET_KEY": "tested-secret"}
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder / "home"), "AWS_REGION": "us-east-1", "TMPDIR": str(folder),
            "AWS_ACCESS_KEY_ID": keys["ACCESS_KEY"], "AWS_SECRET_ACCESS_KEY": keys["SECRET_KEY"],
            **{f"MILLRACE_S3D_{name}": value for name, value in keys.items()}}
        self.server = subprocess.Popen(
            [millrace, "--json", "s3d", "--root", folder / "buckets", "--listen", "127.0.0.1:0", "--no-sync"],
            env=self.environment, stdout=subprocess.PIPE, text=True)
        line = self.server.stdout.readline()
        self.check("s3d", [line])
        self.environment["AWS_ENDPOINT_URL"] = json.loads(line)["endpoint"]

    def check(self, command, lines):
        for line in lines:
            fitting = [row for row in self.rows if row.command == command and row.fits(json.loads(line))]
            assert fitting, f"{command}: docs/guide/scripts.md has no row for {line}"
            self.seen.update((row.command, row.line) for row in fitting)

    def run(self, command, *arguments, text=None):
        ran = subprocess.run([self.millrace, "--json", *command.split(), *map(str, arguments)], cwd=self.work, input=text,
                             capture_output=True, text=True, env=self.environment)
        assert ran.returncode == 0, (command, arguments, ran.returncode, ran.stdout, ran.stderr)
        self.check(command, ran.stdout.splitlines())


def objects(commands):
    run = commands.run
    records = [{"title": f"t{i}", "text": f"some words {i} and more of them"} for i in range(300)]
    (commands.work / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    run("mb", "s3://corpus", "s3://extra")
    run("rb", "s3://extra")
    run("cp", "a.jsonl", "s3://corpus/a.jsonl")
    run("cp", "a.jsonl", "s3://corpus/x/b.jsonl", "--storage-class", "STANDARD_IA")
    run("pipe", "s3://corpus/one", text="1")
    run("mv", "s3://corpus/one", "s3://corpus/two")
    run("rm", "s3://corpus/two")
    run("sync", "s3://corpus/", "back")
    run("ls")
    run("ls", "s3://corpus/", "--summarize")
    run("du", "s3://corpus/")
    run("head", "s3://corpus/x/b.jsonl")
    run("presign", "s3://corpus/a.jsonl")
    run("duplicate", "s3://corpus/x/", "s3://corpus/y/", "--count", 2)
    (commands.work / "commands").write_text("cp a.jsonl s3://corpus/c.jsonl\n")
    run("run", "commands")


def unfinished_uploads(commands):
    (commands.work / "large").write_bytes(bytes(24 << 20))
    copy = subprocess.Popen([commands.millrace, "cp", "large", "s3://corpus/large", "--bandwidth", "4MB"],
                            cwd=commands.work, env=commands.environment)
    listing = [commands.millrace, "--json", "uploads", "ls", "s3://corpus/"]
    while not (seen := subprocess.run(listing, env=commands.environment, capture_output=True, text=True).stdout):
        assert copy.poll() is None, "the copy has ended"
    copy.kill()
    copy.wait()
    commands.check("uploads ls", seen.splitlines())
    commands.run("uploads abort", "s3://corpus/")


def data(commands):
    run, source = commands.run, "s3://corpus/a.jsonl"
    tokenizer, length = ["--tokenizer", "s3://corpus/m.model"], ["--sequence-length", "16"]
    run("tokenizer train", "--input", source, "--output", "s3://corpus/m.model", "--vocab-size", 285)
    run("tokenizer show", "--model", "s3://corpus/m.model")
    run("tokenizer encode", "--model", "s3://corpus/m.model", text='{"text": "some words"}\n')
    run("tokenizer decode", "--model", "s3://corpus/m.model", text='{"ids": [5, 6]}\n')
    run("data index", source)
    run("data inspect", source)
    run("data plan", source, *tokenizer, *length, "--simulate", "bandwidth=100MB,latency=50ms,step=200ms")
    run("data cat", source, *tokenizer, *length)
    run("data tokenize", source, *tokenizer, "--output", "s3://corpus/tokens")
    run("data compact", source, "--output", "s3://corpus/compact/")
    run("doctor", "s3://corpus/")


JOB = """name: first
model: {config: {hidden_size: 32, num_layers: 1, num_heads: 2}}
data: {sources: [{url: "s3://corpus/a.jsonl"}], tokenizer: "s3://corpus/m.model", sequence_length: 16, split: {held_out: 0.1}}
train: {steps: 4, global_batch: 2}
checkpoint: {url: "s3://corpus/checkpoints", every_steps: 2}
eval: {every_steps: 2, samples: 2}
log: {every_steps: 1}
"""


def training(commands):
    run, url = commands.run, "s3://corpus/checkpoints"
    (commands.work / "job.yaml").write_text(JOB)
    run("train", "job.yaml", "--dry-run")
    run("train", "job.yaml")
    run("job list")
    run("job status", "first")
    run("job plan", "job.yaml")
    run("top", "first", "--once")
    run("ckpt ls", url)
    run("ckpt show", url)
    run("ckpt verify", url)
    run("ckpt diff", url, 2, 4, "--values")
    run("ckpt gc", url, "--keep-last", 1, "--dry-run")
    run("ckpt export", url, "exported")
    run("ckpt import", "exported", "s3://corpus/imported")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--source", required=True)
    arguments = parser.parse_args()
    millrace = pathlib.Path(arguments.millrace).resolve()
    rows = rows_of(pathlib.Path(arguments.source) / "docs" / "guide" / "scripts.md")
    trains = (millrace.parent / "millrace-train").exists()
    with tempfile.TemporaryDirectory() as folder:
        commands = Commands(str(millrace), pathlib.Path(folder), rows)
        try:
            for part in (objects, unfinished_uploads, data, *([training] if trains else [])):
                part(commands)
        finally:
            commands.server.terminate()
            commands.server.wait()
    unseen = [(row.command, row.line) for row in rows if (row.command, row.line) not in commands.seen
              and (row.command, row.line) not in NOT_RUN and (trains or row.command not in TRAINING)]
    assert not unseen, f"no command printed {unseen}"
    print(f"{len(rows)} rows, {sum(commands.seen.values())} lines{'' if trains else '; no training programs'}")


if __name__ == "__main__":
    main()
