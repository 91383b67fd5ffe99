#!/usr/bin/env python3
"""With --dry-run, no command changes a bucket or leaves anything on the disk, whether its URLs are s3:// or local folders.

Exit status: 0 all right, 77 there are no training programs, anything else a failure.
"""
import argparse
import contextlib
import os
import pathlib
import subprocess
import tempfile
import time

JOB = """name: dry
model: {{config: {{hidden_size: 32, num_layers: 1, num_heads: 2}}}}
data: {{sources: [{{url: "{at}/corpus/a.jsonl"}}], tokenizer: "{at}/corpus/tokenizer.model", sequence_length: 16, index_cache: "{new}/index",
       cache: {{path: "{disk}/cache"}}}}
train: {{steps: 2, global_batch: 2, compile_cache: "{new}/compiled"}}
checkpoint: {{url: "{new}/checkpoints", local: {{path: "{disk}/local"}}}}
log: {{url: "{new}/log", tensorboard: "{new}/tb"}}
"""
OWN = """name: own
run: {{command: [sh, -c, "exit 3"], source: code, mounts: {{"{at}/corpus/": "{disk}/mounted"}}}}
checkpoint: {{url: "{new}/own"}}
log: {{url: "{new}/own-log"}}
"""


USAGE = 2  # the exit status of commands that refuse --dry-run


def tree(folder):
    """Every path below a folder, with the content of files."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


class Machine:
    """A home, a working folder and an endpoint with two buckets. Nothing else is written to."""

    def __init__(self, folder, millrace, source):
        self.folder, self.millrace = folder, millrace
        self.all = folder / "all"
        self.work = self.all / "work"
        for name in ("home", "tmp", "runtime", "work", "buckets"):
            (self.all / name).mkdir(parents=True)
        (self.all / "runtime").chmod(0o700)
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.all / "home"), "TMPDIR": str(self.all / "tmp"),
            "XDG_RUNTIME_DIR": str(self.all / "runtime"), "AWS_ACCESS_KEY_ID": "tested", "AWS_SECRET_ACCESS_KEY": "tested-secret",
            "AWS_REGION": "us-east-1", "MILLRACE_S3D_ACCESS_KEY": "tested", "MILLRACE_S3D_SECRET_KEY": "tested-secret"}
        port = folder / "port"
        self.server = subprocess.Popen([millrace, "s3d", "--root", self.all / "buckets", "--listen", "127.0.0.1:0", "--port-file", port],
                                       env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while not port.exists() or not port.read_text().strip():
            assert time.monotonic() < end, "the endpoint does not start"
            time.sleep(0.02)
        self.environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port.read_text().strip()}"
        local = self.work / "local" / "corpus"
        local.mkdir(parents=True)
        (local / "a.jsonl").write_text('{"text": "the mill race turns"}\n' * 50)
        (local / "tokenizer.model").write_bytes((source / "millrace/train/testdata/tokenizer.model").read_bytes())
        code = self.work / "code"
        code.mkdir()
        (code / "train.sh").write_text("exit 3\n")
        (self.work / "key.txt").write_text("x")
        for bucket in ("corpus", "runs"):
            self.run("mb", f"s3://{bucket}")
        self.run("cp", "-r", str(local), "s3://corpus/corpus/")
        self.run("cp", "key.txt", "s3://runs/old/key.txt")

    def close(self):
        self.server.terminate()
        self.server.wait()

    def run(self, *arguments, status=0):
        done = subprocess.run([self.millrace, *arguments], cwd=self.work, env=self.environment, text=True, capture_output=True, timeout=120)
        assert status is None or done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def everything(self):
        """The files of the machine, and the objects. How the endpoint keeps them is its own affair."""
        files = {path: content for path, content in tree(self.all).items() if not path.startswith("buckets/")}
        return files | {bucket: self.run("--json", "ls", "-r", f"s3://{bucket}/") for bucket in ("corpus", "runs")}

    def dry(self, *arguments, status=0):
        before = self.everything()
        said = self.run("--dry-run", *arguments, status=status)
        after = self.everything()
        changed = {path for path in before.keys() | after.keys() if before.get(path, 0) != after.get(path, 0)}
        assert not changed, f"{arguments} changed {sorted(changed)}\n{said}"
        return said


def objects(machine):
    machine.dry("cp", "key.txt", "s3://runs/new/key.txt")
    machine.dry("cp", "s3://runs/old/key.txt", "new/folder/key.txt")
    machine.dry("cp", "-r", "s3://corpus/", "new/tree/")
    machine.dry("cp", "-r", "code", "elsewhere/tree/")
    machine.dry("mv", "key.txt", "s3://runs/moved.txt")
    machine.dry("mv", "s3://runs/old/key.txt", "new/moved.txt")
    machine.dry("sync", "local/", "s3://runs/synced/", "--delete")
    machine.dry("sync", "s3://corpus/", "new/synced/")
    machine.dry("rm", "-r", "s3://runs/old/")
    machine.dry("rm", "s3://runs/old/key.txt")
    machine.dry("mb", "s3://another")
    machine.dry("rb", "s3://runs", "--force", status=None)


def data(machine, at, new):
    corpus, tokenizer = f"{at}/corpus/a.jsonl", f"{at}/corpus/tokenizer.model"
    machine.dry("tokenizer", "train", "--input", corpus, "--vocab-size", "300", "--output", f"{new}/tokenizer.model", status=None)
    machine.dry("data", "compact", corpus, "--output", f"{new}/compacted")
    machine.dry("data", "tokenize", corpus, "--tokenizer", tokenizer, "--output", f"{new}/tokens", status=USAGE)
    for verb in ("index", "inspect", "plan", "cat"):  # they keep an index beside the data
        machine.dry("data", verb, corpus, "--tokenizer", tokenizer, status=USAGE)


def jobs(machine, at, new, disk):
    job, own = machine.work / "job.yaml", machine.work / "own.yaml"
    job.write_text(JOB.format(at=at, new=new, disk=disk))
    own.write_text(OWN.format(at=at, new=new, disk=disk))
    try:
        for verb in (("train",), ("job", "run"), ("job", "submit"), ("job", "compile")):
            said = machine.dry(*verb, "job.yaml")
            assert "ok    checkpoints" in said, said
        for verb in (("job", "run"), ("job", "submit")):
            machine.dry(*verb, "own.yaml", status=None)
        for verb in (("job", "render"), ("job", "plan")):
            machine.dry(*verb, "job.yaml")
        machine.dry("job", "sweep", "job.yaml", "--vary", "train.seed=1,2", status=None)
    finally:
        job.unlink()
        own.unlink()


def checkpoints(machine, new):
    machine.dry("ckpt", "gc", "s3://runs/old", status=None)
    machine.dry("ckpt", "import", "local/corpus", f"{new}/imported", status=None)
    machine.dry("ckpt", "export", "s3://runs/old", f"{new}/exported", status=None)
    machine.dry("ckpt", "merge", "s3://runs/old", f"{new}/merged", status=None)


def rest(machine):
    machine.dry("mount", "s3://corpus", "mnt", status=None)
    machine.dry("mount", "s3://corpus", "mnt", "--staging-dir", "new/staging", "--cache", "new/blocks", status=None)
    machine.dry("doctor", status=None)
    machine.dry("doctor", "s3://runs", status=None)
    machine.dry("doctor", str(machine.work / "new" / "folder"), status=None)
    machine.dry("job", "list")
    machine.dry("job", "status", "none", status=None)
    machine.dry("job", "stop", "none", status=None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    options = parser.parse_args()
    if not os.access(pathlib.Path(options.millrace).parent / "millrace-train", os.X_OK):
        print("skipped: there is no millrace-train")
        raise SystemExit(77)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(
            Machine(pathlib.Path(folder), options.millrace, options.source)) as machine:
        objects(machine)
        local, disk = machine.work / "local", machine.work / "new"
        for at, new in (("s3://corpus", "s3://runs/new"), (str(local), str(machine.work / "new" / "runs")),
                        (f"file://{local}", f"file://{machine.work}/new/runs"), ("local", "new/runs")):
            data(machine, at, new)
            jobs(machine, at, new, disk)
            checkpoints(machine, new)
        rest(machine)
    print("no dry run changed anything")


if __name__ == "__main__":
    main()
