#!/usr/bin/env python3
"""run.source: the code of a job is packed into its bucket, and every attempt runs what is there.

    code_travels.py --millrace PROGRAM
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

WAIT_S = 60
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1",
        "MILLRACE_S3D_ACCESS_KEY": "test", "MILLRACE_S3D_SECRET_KEY": "test-secret"}


class Jobs:
    def __init__(self, millrace, folder, endpoint):
        self.millrace, self.folder = millrace, folder
        self.environment = os.environ | KEYS | {"MILLRACE_STATE_DIR": str(folder / "state"), "AWS_ENDPOINT_URL": endpoint}
        self.run("mb", "s3://runs")

    def call(self, *words):
        return subprocess.run([self.millrace, *map(str, words)], env=self.environment, check=False, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=WAIT_S)

    def run(self, *words):
        ran = self.call(*words)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def code(self, name, says="first"):
        """A folder with a program that imports, reads and executes files beside it."""
        folder = self.folder / f"{name}-code"
        (folder / "parts").mkdir(parents=True)
        (folder / "start.sh").write_text(f'#!/bin/sh\nexec "{sys.executable}" main.py "$@"\n')
        (folder / "start.sh").chmod(0o755)
        (folder / "parts" / "words.py").write_text(f"SAYS = {says!r}\n")
        (folder / "main.py").write_text("import os, sys\nfrom parts.words import SAYS\n"
                                        "print(SAYS, os.environ['RANK'], os.getcwd(), *sys.argv[1:])\n")
        return folder

    def write(self, name, code, command=("./start.sh", "now"), **run):
        job = {"name": name, "run": {"command": list(command), "source": str(code), "processes_per_node": 2} | run,
               "log": {"url": f"s3://runs/{name}"}}
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(job))  # JSON is YAML
        return path

    def archives(self, name):
        listed = self.call("ls", f"s3://runs/{name}/source/", "--json").stdout.splitlines()
        return [json.loads(line)["key"].rpartition("/")[2] for line in listed if '"key"' in line]


def test_ranks_run_the_code_that_is_in_the_bucket(jobs):
    code = jobs.code("runs")
    (code / "big.bin").write_bytes(b"x" * 1000)
    (code / ".millraceignore").write_text("*.bin\n")
    job = jobs.write("runs", code)
    for _ in range(2):
        jobs.run("job", "run", job)
        for rank in range(2):
            says, number, folder, word = jobs.run("job", "logs", "runs", "--rank", rank).split()
            assert (says, number, word) == ("first", str(rank), "now") and not folder.startswith(str(code)), folder
    archive, = jobs.archives("runs")  # the second run found it there
    jobs.run("cp", f"s3://runs/runs/source/{archive}", jobs.folder / "code.tar")
    with tarfile.open(jobs.folder / "code.tar") as packed:
        assert sorted(packed.getnames()) == [".millraceignore", "main.py", "parts", "parts/words.py", "start.sh"]
        assert packed.getmember("start.sh").mode == 0o755 and packed.getmember("main.py").mode == 0o644
    (code / "parts" / "words.py").write_text("SAYS = 'second'\n")
    jobs.run("job", "run", job)
    assert jobs.run("job", "logs", "runs").startswith("second 0 ")
    assert len(jobs.archives("runs")) == 2
    # The archive of an earlier run is a source, too.
    jobs.run("job", "run", job, "--set", f"run.source=s3://runs/runs/source/{archive}")
    assert jobs.run("job", "logs", "runs").startswith("first 0 ")


def test_a_restart_runs_the_code_of_the_start(jobs):
    code = jobs.code("restarts")
    (code / "main.py").write_text("import os, pathlib, time\nfrom parts.words import SAYS\n"
                                  "print(SAYS, 'attempt', os.environ['MILLRACE_ATTEMPT'], flush=True)\n"
                                  "pathlib.Path('main.py').unlink(missing_ok=True)\n"
                                  "while os.environ['MILLRACE_ATTEMPT'] == '1': time.sleep(0.1)\n")
    job = jobs.write("restarts", code, processes_per_node=1)
    jobs.run("job", "submit", job)
    shutil.rmtree(code)
    end = time.monotonic() + WAIT_S
    while "first attempt 1" not in jobs.call("job", "logs", "restarts").stdout:
        assert time.monotonic() < end, jobs.call("job", "status", "restarts")
        time.sleep(0.05)
    os.kill(json.loads(jobs.run("--json", "job", "status", "restarts"))["ranks"][0]["pid"], signal.SIGKILL)
    jobs.run("job", "attach", "restarts")
    assert jobs.run("job", "logs", "restarts").splitlines() == ["first attempt 1", "first attempt 2"]


def test_a_job_without_a_bucket_keeps_its_code_in_the_state_folder(jobs):
    job = jobs.folder / "here.yaml"
    job.write_text(json.dumps({"name": "here", "run": {"command": ["./start.sh"], "source": str(jobs.code("here"))}}))
    jobs.run("job", "run", job)
    assert len(list((jobs.folder / "state/source").glob("sha256-*.tar"))) == 1
    assert (jobs.folder / "state/source").stat().st_mode & 0o777 == 0o700


def test_what_cannot_travel_starts_nothing(jobs):
    code = jobs.code("refused")
    job = jobs.write("refused", code)
    (code / "away").symlink_to("/etc/passwd")
    for change, message in ((lambda: None, "name it in .millraceignore"),
                            (lambda: (code / "away").unlink() or (code / "start.sh").chmod(0o644), "cannot be run as a program"),
                            (lambda: shutil.rmtree(code), "there is no folder")):
        change()
        for words in (["--dry-run", "job", "run"], ["job", "run"], ["job", "submit"]):
            ran = jobs.call(*words, job)
            assert ran.returncode != 0 and message in ran.stdout + ran.stderr, (words, ran)
    assert jobs.call("job", "status", "refused").returncode != 0 and jobs.archives("refused") == []


def test_a_damaged_archive_is_not_run(jobs):
    job = jobs.write("damaged", jobs.code("damaged"))
    jobs.run("job", "run", job)
    archive, = jobs.archives("damaged")
    (jobs.folder / "other").write_text("other bytes")
    jobs.run("cp", jobs.folder / "other", f"s3://runs/damaged/source/{archive}")
    ran = jobs.call("job", "run", job, "--set", "run.max_restarts=0")
    assert ran.returncode == 1 and "has not the bytes that its name stands for: delete it" in ran.stderr, ran.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        server = subprocess.Popen([arguments.millrace, "--json", "s3d", "--root", folder / "store", "--no-sync"],
                                  env=os.environ | KEYS, stdout=subprocess.PIPE, text=True)
        stack.callback(server.wait)
        stack.callback(server.terminate)
        jobs = Jobs(arguments.millrace, folder, json.loads(server.stdout.readline())["endpoint"])
        for test in (test_ranks_run_the_code_that_is_in_the_bucket, test_a_restart_runs_the_code_of_the_start,
                     test_a_job_without_a_bucket_keeps_its_code_in_the_state_folder, test_what_cannot_travel_starts_nothing,
                     test_a_damaged_archive_is_not_run):
            test(jobs)
            print(f"ok {test.__name__}", flush=True)


main()
