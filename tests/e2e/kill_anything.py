"""kill -9 of any process at random moments of a training run, ten times: a rank, the supervisor, the S3 endpoint. The job
must always resume, every printed loss must equal that of an undisturbed run bit for bit, and every committed checkpoint
must verify at all times.

    python3 kill_anything.py BIN_FOLDER [SEED]
"""
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

KILLS = 10
STEPS = 120
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
checkpoint: {url: "s3://e2e/runs/NAME", every_steps: 5, keep_last: 3}
run: {launcher: local, processes_per_node: 2, max_restarts: 100}
"""


class Cluster:
    """The endpoint and one job at a time, with what is needed to kill and to restart each."""

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

    def start_job(self, name: str) -> subprocess.Popen:
        job = self.home / f"{name}.yaml"
        job.write_text(JOB.replace("NAME", name).replace("STEPS", str(STEPS)))
        return self.start("job", "run", str(job), "--json", stdout=subprocess.PIPE, text=True)

    def ranks(self, name: str) -> list[int]:
        status = json.loads(self.run("job", "status", name, "--json").splitlines()[-1])
        return [rank["pid"] for rank in status["ranks"]]


def steps_of(child: subprocess.Popen):
    """The step records a job prints. The last line of a killed process may be cut off."""
    for line in child.stdout:
        with contextlib.suppress(json.JSONDecodeError):
            record = json.loads(line)
            if "event" not in record:
                yield record["step"], record["loss"]


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


def kill_one(cluster: Cluster, job: subprocess.Popen, rng: random.Random) -> str:
    """Kills a process and restarts what nobody else restarts. Returns what it was."""
    victim = rng.choice(["rank", "rank", "supervisor", "endpoint"])
    if victim == "supervisor":
        job.kill()
    elif victim == "endpoint":
        cluster.endpoint.kill()
        cluster.endpoint.wait()
        cluster.start_endpoint()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(cluster.ranks("killed")), signal.SIGKILL)
    return victim


def main(programs: str, seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as children:
        cluster = Cluster(programs, pathlib.Path(folder), children)
        cluster.start_endpoint()
        make_data(cluster, rng)
        reference = dict(steps_of(cluster.start_job("reference")))
        assert sorted(reference) == list(range(1, STEPS + 1)), f"the reference stopped after step {max(reference, default=0)}"

        kills, finished, printed, victims = 0, False, 0, []
        job = cluster.start_job("killed")
        next_kill = rng.randint(2, 12)
        while not finished:
            for step, loss in steps_of(job):
                assert loss == reference[step], f"step {step}: {loss!r}, undisturbed {reference[step]!r}"
                printed += 1
                next_kill -= 1
                if kills < KILLS and next_kill <= 0:
                    victims.append(kill_one(cluster, job, rng))
                    kills += 1
                    next_kill = rng.randint(2, 12)
                finished = step == STEPS
            status = job.wait(60)
            assert status in (0, -signal.SIGKILL), f"the job ended with {status}\n{cluster.logs.read_text()[-3000:]}"
            if status == 0:
                assert finished, "the job ended before its last step"
            else:
                finished = False
                cluster.run("ckpt", "ls", "s3://e2e/runs/killed")
                job = cluster.start_job("killed")
        assert kills == KILLS, f"only {kills} kills fitted into the run"
        verified = json.loads(cluster.run("ckpt", "verify", "s3://e2e/runs/killed", "--json").splitlines()[-1])
        assert verified["bytes"] > 0
        print(f"{kills} kills ({', '.join(victims)}), {printed} steps printed, all losses equal; seed {seed}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
