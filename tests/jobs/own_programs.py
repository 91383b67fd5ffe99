#!/usr/bin/env python3
"""Training scripts that know nothing of Millrace, as ranks of a job: PyTorch's DDP and transformers' Trainer.

    own_programs.py --millrace PROGRAM

Data and checkpoints are in a bucket that the job mounts. A rank is killed, and the job restarts. In the end the weights
are those that torchrun makes of the same script, in folders, without a failure.

Exit status 77: there is no PyTorch, no transformers or no /dev/fuse here.
"""
import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
RANKS, WAIT_S = 2, 280
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1",
        "MILLRACE_S3D_ACCESS_KEY": "test", "MILLRACE_S3D_SECRET_KEY": "test-secret"}


def python():
    """A Python that has torch and transformers, or None."""
    peers = os.environ.get("MILLRACE_PEERS")
    for candidate in ([f"{peers}/venv/bin/python"] if peers else []) + [sys.executable]:
        if os.path.exists(candidate) and subprocess.run([candidate, "-c", "import torch, transformers"], check=False,
                                                        stderr=subprocess.DEVNULL).returncode == 0:
            return candidate
    return None


class Jobs:
    def __init__(self, millrace, interpreter, folder, endpoint):
        self.millrace, self.python, self.folder = millrace, interpreter, folder
        self.environment = os.environ | KEYS | {"MILLRACE_STATE_DIR": str(folder / "state"), "AWS_ENDPOINT_URL": endpoint,
                                                "OMP_NUM_THREADS": "1"}
        data = folder / "data"
        data.mkdir()
        (data / "numbers.txt").write_text("".join(f"{i * 7919 % 101 / 100}\n" for i in range(640)))
        self.run("mb", "s3://data", "s3://runs")
        self.run("cp", data / "numbers.txt", "s3://data/numbers/numbers.txt")

    def run(self, *words):
        return subprocess.run([self.millrace, *map(str, words)], env=self.environment, check=True, stdout=subprocess.PIPE,
                              text=True, timeout=WAIT_S).stdout

    def status(self, name):
        ran = subprocess.run([self.millrace, "--json", "job", "status", name], env=self.environment, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return json.loads(ran.stdout) if ran.returncode == 0 else {}

    def write(self, name, command, **run):
        job = {"name": name,
               "run": {"command": command, "processes_per_node": RANKS, "env": {"OMP_NUM_THREADS": "1"},
                       "mounts": {"s3://data/numbers/": f"{self.folder / name}-data:ro"}} | run,
               "checkpoint": {"url": f"s3://runs/{name}/"}}
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(job))  # JSON is YAML
        return path

    def script(self, name, script, loss):
        """A job whose rank 1 is killed once, after the step `loss`."""
        environment = {"OMP_NUM_THREADS": "1", "LOSS_STEP": str(loss), "LOSS_MARK": str(self.folder / f"{name}-lost")}
        return self.write(name, [self.python, str(SCRIPTS / script), f"{self.folder / name}-data"], env=environment)

    def with_torchrun(self, script, name):
        checkpoints = self.folder / f"{name}-torchrun"
        checkpoints.mkdir()
        subprocess.run([self.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", SCRIPTS / script,
                        self.folder / "data", checkpoints], env=self.environment, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=WAIT_S)
        return checkpoints

    def disturbed(self, job, name):
        """Runs a job that loses a rank once. Returns rank 0's output."""
        ran = subprocess.run([self.millrace, "job", "run", job], env=self.environment, check=False, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, timeout=WAIT_S)
        assert ran.returncode == 0 and self.status(name)["restarts"] == 1, ran.stderr
        return ran.stdout


def weights(file):
    import torch
    from safetensors.torch import load_file

    return load_file(file) if file.suffix == ".safetensors" else torch.load(file)["model"]


def assert_same_weights(one, other):
    import torch

    one, other = weights(one), weights(other)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_ddp_goes_on_after_a_killed_rank(jobs):
    output = jobs.disturbed(jobs.script("ddp", "ddp.py", 25), "ddp")
    assert output.count("step 60 loss") == 1 and output.count("step 21 loss") >= 1
    jobs.run("cp", "s3://runs/ddp/newest.pt", jobs.folder / "newest.pt")
    assert_same_weights(jobs.folder / "newest.pt", jobs.with_torchrun("ddp.py", "ddp") / "newest.pt")
    assert not (jobs.folder / "ddp-data").exists(), "the folder was made for the mount"


def test_a_trainer_of_transformers_goes_on_after_a_killed_rank(jobs):
    output = jobs.disturbed(jobs.script("hf", "hf_trainer.py", 15), "hf")
    assert "'train_runtime'" in output
    jobs.run("sync", "s3://runs/hf/checkpoint-30/", jobs.folder / "checkpoint-30")
    assert_same_weights(jobs.folder / "checkpoint-30" / "model.safetensors",
                        jobs.with_torchrun("hf_trainer.py", "hf") / "checkpoint-30" / "model.safetensors")


def test_what_was_not_published_is_a_failure(jobs):
    """The program ends well, but its bucket is gone before the file that it has open is closed."""
    script = f"""import os, subprocess
file = open(os.environ["MILLRACE_CHECKPOINTS"] + "/text", "w")
file.write("text")
file.flush()
subprocess.run(["{jobs.millrace}", "rb", "s3://gone", "--force"], check=True, stdout=subprocess.DEVNULL)
"""
    jobs.run("mb", "s3://gone")
    job = jobs.write("gone", [jobs.python, "-c", script], processes_per_node=1, max_restarts=0)
    ran = subprocess.run([jobs.millrace, "job", "run", job, "--set", "checkpoint.url=s3://gone"], env=jobs.environment,
                         check=False, stderr=subprocess.PIPE, text=True, timeout=WAIT_S)
    assert ran.returncode == 1 and "does not have all that was written" in ran.stderr, ran.stderr


def test_a_missing_program_or_bucket_starts_nothing(jobs):
    for name, key, message in (("program", 'run.command=["no-such-program"]', "cannot be run as a program"),
                               ("bucket", 'run.mounts={"s3://no-such-bucket": /mnt}', "no-such-bucket")):
        job = jobs.write(f"absent-{name}", ["true"])
        ran = subprocess.run([jobs.millrace, "job", "run", job, "--set", key], env=jobs.environment, check=False,
                             stderr=subprocess.PIPE, text=True, timeout=WAIT_S)
        assert ran.returncode != 0 and message in ran.stderr and not jobs.status(f"absent-{name}"), ran.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    interpreter = python()
    if interpreter is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("skipped: needs a Python with torch and transformers, and /dev/fuse")
        sys.exit(77)
    if interpreter != sys.executable:  # to compare weights
        os.execv(interpreter, [interpreter, *sys.argv])
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        server = subprocess.Popen([arguments.millrace, "--json", "s3d", "--root", folder / "store", "--no-sync"],
                                  env=os.environ | KEYS, stdout=subprocess.PIPE, text=True)
        stack.callback(server.wait)
        stack.callback(server.terminate)
        jobs = Jobs(arguments.millrace, interpreter, folder, json.loads(server.stdout.readline())["endpoint"])
        for test in (test_a_missing_program_or_bucket_starts_nothing, test_what_was_not_published_is_a_failure,
                     test_ddp_goes_on_after_a_killed_rank, test_a_trainer_of_transformers_goes_on_after_a_killed_rank):
            begun = time.monotonic()
            test(jobs)
            print(f"ok {test.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
