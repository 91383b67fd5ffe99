"""Kills processes with SIGKILL at random moments of training runs: ranks, the supervisor, the S3 endpoint; at start, in training
and in saves. Half of the kills hit a run that saves to the bucket, half one that saves to the local disk more often. A run must always
resume from the last step that it reported as committed, or from a later one. Every printed loss must equal that of an
undisturbed run bit for bit. At the end every checkpoint must verify.

    python3 kill_anything.py BIN_FOLDER [--kills 200] [--seed 1]
"""
import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time

JOB = """
name: NAME
model: {family: llama, config: {hidden_size: 64, num_layers: 2, num_heads: 4, num_kv_heads: 2, intermediate_size: 128, vocab_size: 512}}
data:
  sources: [{url: "s3://e2e/corpus/*.jsonl"}]
  template: "{title}: {text}"
  tokenizer: s3://e2e/tokenizer.model
  sequence_length: 64
  shuffle: {seed: 3, window: 64}
train:
  steps: STEPS
  global_batch: 8
  micro_batch: 2
  optimizer: {lr: 1.0e-3}
  schedule: {name: cosine, warmup_steps: 5, min_lr: 1.0e-4}
checkpoint: {url: "s3://e2e/runs/NAME", every_steps: 5, keep_last: 3LOCAL}
run: {launcher: local, processes_per_node: 2, max_restarts: 1000}
"""


class Cluster:
    """The endpoint and one job at a time. Can kill and restart each."""

    def __init__(self, programs: str, home: pathlib.Path, children: contextlib.ExitStack):
        self.millrace, self.home, self.children = str(pathlib.Path(programs) / "millrace"), home, children
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        self.key, self.secret, self.port = secrets.token_hex(8).upper(), secrets.token_hex(16), 0
        self.endpoint: subprocess.Popen | None = None
        self.logs = home / "log"

    def run(self, *args: str) -> str:
        done = subprocess.run([self.millrace, *args], env=self.env, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise AssertionError(f"millrace {' '.join(args)}: status {done.returncode}\n{done.stderr}")
        return done.stdout

    def start(self, *args: str, **options) -> subprocess.Popen:
        child = subprocess.Popen([self.millrace, *args], env=self.env, stderr=self.logs.open("a"), **options)
        self.children.callback(lambda: (child.kill(), child.wait()))
        return child

    def start_endpoint(self) -> None:
        port_file = self.home / "port"
        port_file.unlink(missing_ok=True)
        self.env |= {"MILLRACE_S3D_ACCESS_KEY": self.key, "MILLRACE_S3D_SECRET_KEY": self.secret}
        self.endpoint = self.start("s3d", "--root", str(self.home / "s3"), "--listen", f"127.0.0.1:{self.port}",
                                   "--port-file", str(port_file), stdout=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while not (port_file.exists() and port_file.read_text().strip()):
            assert time.monotonic() < until and self.endpoint.poll() is None, "the endpoint does not start"
            time.sleep(0.01)
        self.port = int(port_file.read_text())
        self.env |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_REGION": "us-east-1",
                     "AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret,
                     "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                     "MILLRACE_STATE_DIR": str(self.home / "state")}

    def start_job(self, name: str, steps: int, local: bool = False) -> subprocess.Popen:
        job = self.home / f"{name}.yaml"
        disk = f", local: {{path: {self.home}/disk, every_steps: 2}}" if local else ""
        job.write_text(JOB.replace("NAME", name).replace("STEPS", str(steps)).replace("LOCAL", disk))
        return self.start("job", "run", str(job), "--json", stdout=subprocess.PIPE, text=True)

    def ranks(self, name: str) -> list[int]:
        status = json.loads(self.run("job", "status", name, "--json").splitlines()[-1])
        return [rank["pid"] for rank in status["ranks"]]


def records_of(child: subprocess.Popen):
    """Yields the JSON objects that a job prints. The last line of a killed process may be incomplete; it is left out."""
    for line in child.stdout:
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def make_data(cluster: Cluster, rng: random.Random) -> None:
    words = ["".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randint(2, 7))) for _ in range(300)]
    corpus = cluster.home / "corpus"
    corpus.mkdir()
    for part in range(3):
        with (corpus / f"{part}.jsonl").open("w") as file:
            for number in range(400):
                text = " ".join(rng.choice(words) for _ in range(rng.randint(5, 80)))
                file.write(json.dumps({"title": f"{part}-{number}", "text": text}) + "\n")
    cluster.run("mb", "s3://e2e")
    cluster.run("sync", f"{corpus}/", "s3://e2e/corpus/")
    cluster.run("tokenizer", "train", "--input", "s3://e2e/corpus/*.jsonl", "--field", "text", "--vocab-size", "512",
                "--output", "s3://e2e/tokenizer.model")


class Victim:
    """A run that is killed many times, and the checks of its output."""

    def __init__(self, cluster: Cluster, name: str, local: bool, reference: dict[int, float], rng: random.Random):
        self.cluster, self.name, self.local, self.reference, self.rng = cluster, name, local, reference, rng
        self.kills: collections.Counter[str] = collections.Counter()
        self.printed, self.repeated, self.most_repeated, self.committed, self.last = 0, 0, 0, 0, 0
        self.job: subprocess.Popen | None = None

    def start(self) -> None:
        self.job = self.cluster.start_job(self.name, len(self.reference), self.local)

    def kill_one(self) -> None:
        """Kills a process, at once or within 0.1 s. Restarts the endpoint, which nobody else restarts."""
        time.sleep(self.rng.choice([0, self.rng.uniform(0, 0.1)]))
        victim = self.rng.choice(["rank", "rank", "supervisor", "endpoint"])
        self.kills[victim] += 1
        if victim == "supervisor":
            self.job.kill()
        elif victim == "endpoint":
            self.cluster.endpoint.kill()
            self.cluster.endpoint.wait()
            self.cluster.start_endpoint()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(self.cluster.ranks(self.name)), signal.SIGKILL)

    def check(self, record: dict) -> bool:
        """Checks a printed object. Returns whether it was a step."""
        if record.get("event") == "checkpoint":
            self.committed = max(self.committed, record["step"])
        if "event" in record or "loss" not in record:
            return False
        step, loss = record["step"], record["loss"]
        assert loss == self.reference[step], f"step {step}: {loss!r}, undisturbed {self.reference[step]!r}"
        if step <= self.last:
            assert step > self.committed, f"step {step} was made again, although that of {self.committed} was committed"
            self.repeated += self.last - step + 1
            self.most_repeated = max(self.most_repeated, self.last - step + 1)
        self.printed, self.last = self.printed + 1, step
        return True

    def endure(self, kills: int) -> None:
        """Runs the job to its end with this number of kills."""
        self.start()
        next_kill, steps = self.rng.randint(2, 12), len(self.reference)
        while self.last < steps or self.job.poll() is None:
            for record in records_of(self.job):
                next_kill -= self.check(record)
                # Sometimes kills during a restart, but so rarely that the supervisor seldom gives up.
                early = record.get("event") == "restart" and self.rng.random() < 0.2
                if self.kills.total() < kills and self.last < steps - 15 and (next_kill <= 0 or early):
                    self.kill_one()
                    next_kill = self.rng.randint(2, 12)
            status = self.job.wait(60)
            if status == 0:
                break
            log = self.cluster.logs.read_text()
            given_up = status > 0 and "killed by signal 9" in log[-1500:]  # after several kills at one step
            assert given_up or status == -signal.SIGKILL, f"the job ended with {status}\n{log[-3000:]}"
            self.cluster.run("ckpt", "ls", f"s3://e2e/runs/{self.name}")
            self.start()
        assert self.last == steps, f"the job ended after step {self.last} of {steps}"
        assert self.kills.total() == kills, f"only {self.kills.total()} kills fitted into the run"
        verified = self.cluster.run("ckpt", "verify", f"s3://e2e/runs/{self.name}", "--all", "--json").splitlines()
        assert verified and all(json.loads(line)["bytes"] > 0 for line in verified)


def main(programs: str, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    steps = 60 + 4 * kills  # each run gets half of the kills, and at most 12 steps lie between two
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as children:
        cluster = Cluster(programs, pathlib.Path(folder), children)
        cluster.start_endpoint()
        make_data(cluster, rng)
        reference = {record["step"]: record["loss"] for record in records_of(cluster.start_job("reference", steps))
                     if "event" not in record and "loss" in record}
        assert sorted(reference) == list(range(1, steps + 1)), f"the reference stopped after step {max(reference, default=0)}"
        for name, local, share in (("bucket", False, kills - kills // 2), ("disk", True, kills // 2)):
            run = Victim(cluster, name, local, reference, rng)
            run.endure(share)
            print(f"{name}: {share} kills ({dict(run.kills)}), {run.printed} steps printed of a run of {steps}, all losses equal; "
                  f"{run.repeated} steps made again, {run.most_repeated} at most after one kill", flush=True)
        print(f"seed {seed}, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("programs")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    main(arguments.programs, arguments.kills, arguments.seed)
