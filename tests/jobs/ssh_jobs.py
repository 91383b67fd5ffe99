#!/usr/bin/env python3
"""Jobs on hosts that ssh reaches, with a real sshd for each: losses are those of a run on this machine, bit for bit.

    ssh_jobs.py --millrace PROGRAM [--tests REGEX]

Exit status 77: there is no sshd here.
"""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile

from ssh_hosts import SshHosts, await_that, missing

# Steps of some milliseconds: a job takes long enough to be disturbed.
STEPS, WAIT_S = 600, 120


def losses(path):
    """The loss of each step in the lines of rank 0."""
    lines = (line for line in path.read_text().splitlines() if line.startswith("{"))
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line and "event" not in line}


def parent_of(pid):
    """The parent of a process, from /proc/PID/stat, where the program's name may hold anything."""
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Jobs:
    def __init__(self, millrace, folder, hosts):
        self.millrace, self.folder, self.hosts = millrace, folder, hosts
        self.environment = os.environ | {"MILLRACE_STATE_DIR": str(folder / "state"), "AWS_REGION": "nowhere-1"}
        words = random.Random(1)
        texts = (" ".join(words.choice(("mill", "race", "wheel", "water", "stone")) for _ in range(40)) for _ in range(400))
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.run("tokenizer", "train", "--input", folder / "texts.jsonl", "--vocab-size", "300", "--output", folder / "t.model")

    def run(self, *words):
        return subprocess.run([self.millrace, *map(str, words)], env=self.environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    def fail(self, *words):
        """Runs a command that fails. Returns its exit status and its message."""
        ran = subprocess.run([self.millrace, *map(str, words)], env=self.environment, check=False, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True, timeout=WAIT_S)
        assert ran.returncode != 0
        return ran.returncode, ran.stderr

    def write(self, name, run):
        path = self.folder / f"{name}.yaml"
        path.write_text(f"""name: {name}
model: {{config: {{hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}}}}
data: {{sources: [{{url: "{self.folder}/texts.jsonl"}}], tokenizer: "{self.folder}/t.model", sequence_length: 128}}
train: {{steps: {STEPS}, global_batch: 4, threads: 1}}
checkpoint: {{url: "{self.folder}/runs/{name}", every_steps: 50}}
run: {json.dumps(run)}
""")
        return path

    def on_hosts(self, name, options=None, **run):
        return self.write(name, {"launcher": "ssh", "hosts": ["n1", "n2"], "ssh_options": options or self.hosts.options} | run)

    def start(self, job):
        return subprocess.Popen([self.millrace, "job", "run", job, "--json"], env=self.environment, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)

    def status(self, name):
        ran = subprocess.run([self.millrace, "--json", "job", "status", name], env=self.environment, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return json.loads(ran.stdout) if ran.returncode == 0 else {}

    def until(self, name, holds, what):
        await_that(lambda: holds(self.status(name)), f"{name} {what}; it is {self.status(name)}", WAIT_S)

    def words(self, name):
        path = self.folder / f"state/jobs/{name}/logs/supervisor.log"
        return path.read_text() if path.exists() else ""

    def expect_done(self, name, wanted, restarts):
        status = self.status(name)
        assert (status["state"], status["step"], status["restarts"]) == ("done", STEPS, restarts), status
        found = losses(self.folder / f"state/jobs/{name}/logs/rank-0.out")
        assert found == wanted, [step for step in wanted if found.get(step) != wanted[step]][:5]


def test_trains_on_both_hosts(jobs, wanted):
    jobs.run("job", "run", jobs.on_hosts("trains"), "--json")
    jobs.expect_done("trains", wanted, restarts=0)
    assert [rank["node"] for rank in jobs.status("trains")["ranks"]] == ["n1", "n2"]


def test_takes_the_hosts_of_an_mpi_program(jobs, wanted):
    (jobs.folder / "hostfile").write_text("n1 slots=2\n")
    job = jobs.write("mpi", {"launcher": "ssh", "hostfile": str(jobs.folder / "hostfile"), "ssh_options": jobs.hosts.options})
    jobs.run("job", "run", job, "--json")
    jobs.expect_done("mpi", wanted, restarts=0)
    assert [rank["node"] for rank in jobs.status("mpi")["ranks"]] == ["n1", "n1"]


def test_a_killed_session_is_a_lost_node(jobs, wanted):
    job = jobs.start(jobs.on_hosts("loses"))
    jobs.until("loses", lambda status: status.get("step", 0) >= 100, "to reach step 100")
    rank = jobs.status("loses")["ranks"][1]["pid"]
    os.kill(parent_of(parent_of(rank)), signal.SIGKILL)  # the agent's parent is sshd's process of the session
    assert job.wait(WAIT_S) == 0
    assert "node n2: lost, ssh ended with exit status 255" in job.stderr.read()
    jobs.expect_done("loses", wanted, restarts=1)
    await_that(lambda: not pathlib.Path(f"/proc/{rank}").exists(), "the lost node's rank to end")


def test_a_host_that_is_away_is_waited_for(jobs, wanted):
    jobs.hosts.stop("n2")
    job = jobs.start(jobs.on_hosts("waits"))
    await_that(lambda: "waiting up to 10m" in jobs.words("waits"), "the job to wait", WAIT_S)
    assert "Connection refused" in jobs.words("waits")
    jobs.hosts.start("n2")
    assert job.wait(WAIT_S) == 0
    jobs.expect_done("waits", wanted, restarts=0)


def test_a_job_that_waits_can_be_stopped(jobs, _):
    jobs.hosts.stop("n2")
    job = jobs.start(jobs.on_hosts("gives-up"))
    jobs.until("gives-up", lambda status: "waiting" in status.get("message", ""), "to wait")
    jobs.run("job", "stop", "gives-up")
    assert job.wait(WAIT_S) == 130
    jobs.hosts.start("n2")


def test_failures_that_time_does_not_cure_end_the_job(jobs, _):
    hosts = jobs.hosts
    for options, status, says in ((hosts.write_client(known="", name="unknown"), 5, "ssh does not know its host key"),
                                  (hosts.write_client(known="key", name="changed"), 5, "host key is not the one that ssh knows"),
                                  (hosts.write_client(key="other_key", name="stranger"), 5, "login refused"),
                                  (["-oSpeed=high"], 2, "run.ssh_options")):
        failed = jobs.fail("job", "run", jobs.on_hosts("refused", options))
        assert failed[0] == status and says in failed[1], failed
    failed = jobs.fail("job", "run", jobs.on_hosts("absent", millrace_path="/opt/nowhere/millrace"))
    assert failed[0] == 4 and "set run.millrace_path" in failed[1], failed


def test_stop_lets_the_ranks_save(jobs, wanted):
    path = jobs.on_hosts("stopped")
    job = jobs.start(path)
    jobs.until("stopped", lambda status: status.get("step", 0) >= 60, "to reach step 60")
    jobs.run("job", "stop", "stopped")
    assert job.wait(WAIT_S) == 130
    step = jobs.status("stopped")["step"]
    jobs.run("job", "run", path, "--json")
    found = losses(jobs.folder / "state/jobs/stopped/logs/rank-0.out")
    assert found == {later: wanted[later] for later in range(step + 1, STEPS + 1)}


def test_a_program_of_the_users_own_runs_on_both_hosts(jobs, _):
    path = jobs.folder / "own.yaml"
    script = 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK on $GROUP_RANK, $SAYS" && touch $MILLRACE_CHECKPOINTS/$RANK'
    path.write_text(json.dumps({"name": "own", "checkpoint": {"url": f"{jobs.folder}/own"},
                                "run": {"launcher": "ssh", "hosts": ["n1", "n2"], "ssh_options": jobs.hosts.options,
                                        "processes_per_node": 2, "command": ["sh", "-c", script], "env": {"SAYS": "a 'b' $c"}}}))
    jobs.run("job", "run", path)
    said = [jobs.run("job", "logs", "own", "--rank", rank) for rank in range(4)]
    assert said == [f"{rank} of 4, {rank % 2} on {rank // 2}, a 'b' $c\n" for rank in range(4)]
    assert sorted(os.listdir(jobs.folder / "own")) == ["0", "1", "2", "3"]


def test_code_travels_to_both_hosts(jobs, _):
    code = jobs.folder / "code"
    code.mkdir()
    (code / "start.sh").write_text('#!/bin/sh\necho "$RANK runs $(cat words) in $PWD"\n')
    (code / "start.sh").chmod(0o755)
    (code / "words").write_text("what came along")
    path = jobs.folder / "travels.yaml"
    path.write_text(json.dumps({"name": "travels", "log": {"url": f"{jobs.folder}/travels"},
                                "run": {"launcher": "ssh", "hosts": ["n1", "n2"], "ssh_options": jobs.hosts.options,
                                        "command": ["./start.sh"], "source": str(code)}}))
    jobs.run("job", "run", path)
    said = [jobs.run("job", "logs", "travels", "--rank", rank).strip().rpartition(" in ") for rank in range(2)]
    assert [words for words, _, _ in said] == ["0 runs what came along", "1 runs what came along"]
    folders = [folder for _, _, folder in said]
    assert folders[0] != folders[1] and not any(os.path.exists(folder) for folder in folders), "agents leave nothing"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--tests", default="", help="a regular expression: only tests whose names match")
    arguments = parser.parse_args()
    millrace = pathlib.Path(arguments.millrace).resolve()
    if why := missing():
        print(f"skipped: {why}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name, SshHosts(pathlib.Path(name, "ssh"), ["n1", "n2"]) as hosts:
        jobs = Jobs(str(millrace), pathlib.Path(name), hosts)
        jobs.run("job", "run", jobs.write("here", {"processes_per_node": 2}), "--json")
        wanted = losses(jobs.folder / "state/jobs/here/logs/rank-0.out")
        assert len(wanted) == STEPS
        tests = [test_trains_on_both_hosts, test_takes_the_hosts_of_an_mpi_program, test_a_killed_session_is_a_lost_node,
                 test_a_host_that_is_away_is_waited_for, test_a_job_that_waits_can_be_stopped,
                 test_failures_that_time_does_not_cure_end_the_job,
                 test_a_program_of_the_users_own_runs_on_both_hosts, test_code_travels_to_both_hosts,
                 test_stop_lets_the_ranks_save]
        for test in (test for test in tests if re.search(arguments.tests, test.__name__)):
            test(jobs, wanted)
            print(f"ok {test.__name__}", flush=True)


main()
