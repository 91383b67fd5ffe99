"""Checks that memory stays below --memory-budget while ten times as many bytes move: cp in both directions, pipe, mount in both
directions, the index of a corpus, and the loader.

    python3 memory_budget.py BIN_FOLDER
"""
import contextlib
import json
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
BUDGET = 128 * MIB
MOVED = 10 * BUDGET


class Programs:
    """The program under test, an endpoint to talk to, and the most memory that a run took."""

    def __init__(self, folder: str, home: pathlib.Path, children: contextlib.ExitStack):
        self.millrace, self.home, self.children = str(pathlib.Path(folder) / "millrace"), home, children
        key, secret, port = secrets.token_hex(8).upper(), secrets.token_hex(16), home / "port"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        self.env |= {"MILLRACE_S3D_ACCESS_KEY": key, "MILLRACE_S3D_SECRET_KEY": secret}
        self.endpoint = self.start("s3d", "--root", str(home / "s3"), "--listen", "127.0.0.1:0", "--port-file", str(port))
        until = time.monotonic() + 20
        while not (port.exists() and port.read_text().strip()):
            assert time.monotonic() < until and self.endpoint.poll() is None, "the endpoint does not start"
            time.sleep(0.01)
        self.env |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1",
                     "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port.read_text().strip()}"}
        self.finish(self.start("mb", "s3://memory"))

    def start(self, *args: str, **options) -> subprocess.Popen:
        child = subprocess.Popen([self.millrace, *args], env=self.env, **options)
        self.children.callback(lambda: (child.kill(), child.wait()))
        return child

    def finish(self, child: subprocess.Popen) -> int:
        """Waits for success; gives the peak of its resident memory in bytes."""
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, f"{child.args}: status {child.returncode}"
        return usage.ru_maxrss * 1024

    def measure(self, name: str, *args: str, **options) -> None:
        began = time.monotonic()
        self.report(name, self.finish(self.start("--memory-budget", str(BUDGET), "--quiet", *args, **options)), began)

    def report(self, name: str, peak: int, began: float) -> None:
        print(f"{name:28} {peak / MIB:6.0f} of {BUDGET // MIB} MiB, {time.monotonic() - began:5.1f} s", flush=True)
        assert peak <= BUDGET, f"{name}: {peak} bytes of memory, more than the budget"


def write_big(path: pathlib.Path) -> None:
    """Bytes that differ from block to block, quickly."""
    block = bytearray(os.urandom(MIB))
    with path.open("wb") as out:
        for i in range(MOVED // MIB):
            block[:8] = i.to_bytes(8, "little")
            out.write(block)


def write_corpus(folder: pathlib.Path) -> None:
    folder.mkdir()
    words = "the bucket holds what the model reads and every record is one line of it".split()
    text = " ".join(words * 80)
    for shard in range(4):
        with (folder / f"{shard}.jsonl").open("w") as out:
            for i in range(MOVED // 4 // len(text)):
                out.write(json.dumps({"title": f"{shard} {i}", "text": text}) + "\n")


def move(run: Programs) -> None:
    big, back = run.home / "big", run.home / "back"
    write_big(big)
    run.measure("cp, upload", "cp", str(big), "s3://memory/big")
    run.measure("cp, download", "cp", "s3://memory/big", str(back))
    assert subprocess.run(["cmp", big, back]).returncode == 0
    back.unlink()
    with big.open("rb") as source:
        run.measure("pipe", "pipe", "s3://memory/piped", stdin=source)
    run.measure("cat", "cat", "s3://memory/piped", stdout=subprocess.DEVNULL)
    big.unlink()


def move_through_mount(run: Programs) -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("no usable /dev/fuse: the mount is skipped")
        return
    point = run.home / "mnt"
    point.mkdir()
    began = time.monotonic()
    daemon = run.start("--memory-budget", str(BUDGET), "--quiet", "mount", "--foreground", "s3://memory", str(point))
    run.children.callback(lambda: subprocess.run(["umount", "-l", point], capture_output=True))
    until = time.monotonic() + 20
    while not os.path.ismount(point):
        assert time.monotonic() < until and daemon.poll() is None, "the mount does not come up"
        time.sleep(0.01)
    subprocess.run(["dd", f"if={point}/big", f"of={point}/copy", "bs=1M", "status=none"], check=True)
    assert subprocess.run(["cmp", point / "big", point / "copy"]).returncode == 0
    run.finish(run.start("umount", str(point)))
    run.report("mount, reads and a write", run.finish(daemon), began)


def stream(run: Programs) -> None:
    corpus = run.home / "corpus"
    write_corpus(corpus)
    model = str(run.home / "tokenizer.model")
    with (run.home / "sample.jsonl").open("w") as sample, (corpus / "0.jsonl").open() as lines:
        sample.writelines(line for line, _ in zip(lines, range(50)))
    run.measure("sync", "sync", str(corpus), "s3://memory/corpus")
    run.finish(run.start("--quiet", "tokenizer", "train", "--input", str(run.home / "sample.jsonl"), "--template", "{text}",
                         "--vocab-size", "300", "--output", model))
    # One sequence per record, so that the index does not tokenize records that the loader does not read.
    data = ("s3://memory/corpus/*.jsonl", "--tokenizer", model, "--template", "{text}", "--mode", "pad")
    run.measure("data index", "data", "index", *data)
    run.measure("data cat, shuffled", "data", "cat", *data, "--count", "4000", stdout=subprocess.DEVNULL)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="millrace-memory-") as home, contextlib.ExitStack() as children:
        run = Programs(sys.argv[1], pathlib.Path(home), children)
        move(run)
        move_through_mount(run)
        stream(run)
    print("memory stays under the budget")


if __name__ == "__main__":
    main()
