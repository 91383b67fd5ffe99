#!/usr/bin/env python3
"""Jobs on a real Slurm with several nodes: losses are those of a run on this machine, bit for bit, whatever happens.

    slurm_jobs.py --millrace PROGRAM [--requeues] [--tests REGEX]

--requeues adds jobs that Slurm puts back into its queue: they take longer. Exit status 77: Slurm is not here.
"""
import argparse
import datetime
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile

from slurm_cluster import SlurmCluster, missing

# Steps of some milliseconds: a job takes long enough to be disturbed.
STEPS, WAIT_S = 1200, 900


def losses(path):
    """The loss of each step in the lines of rank 0; none without a file."""
    if not path.exists():
        return {}
    lines = (line for line in path.read_text().splitlines() if line.startswith("{"))
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line and "event" not in line}


class Jobs:
    def __init__(self, millrace, folder, cluster):
        self.millrace, self.folder, self.cluster = millrace, folder, cluster
        self.environment = cluster.environment | {"MILLRACE_STATE_DIR": str(folder / "state")}
        words = random.Random(1)
        texts = (" ".join(words.choice(("mill", "race", "wheel", "water", "stone")) for _ in range(40)) for _ in range(400))
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.run("tokenizer", "train", "--input", folder / "texts.jsonl", "--vocab-size", "300", "--output", folder / "t.model")

    def run(self, *words, check=True):
        return subprocess.run([self.millrace, *map(str, words)], env=self.environment, check=check, stdout=subprocess.PIPE,
                              text=True).stdout

    def write(self, name, run, steps=STEPS):
        path = self.folder / f"{name}.yaml"
        path.write_text(f"""name: {name}
model: {{config: {{hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}}}}
data: {{sources: [{{url: "{self.folder}/texts.jsonl"}}], tokenizer: "{self.folder}/t.model", sequence_length: 128}}
train: {{steps: {steps}, global_batch: 8, threads: 1}}
checkpoint: {{url: "{self.folder}/runs/{name}", every_steps: 50}}
run: {run}
""")
        return path

    def here(self, steps=STEPS):
        """The losses of four ranks on this machine."""
        name = f"here-{steps}"
        self.run("job", "run", self.write(name, "{processes_per_node: 4}", steps), "--json")
        return losses(self.folder / f"state/jobs/{name}/logs/rank-0.out")

    def submit(self, name, nodes=2, more="", steps=STEPS):
        run = f"{{launcher: slurm, nodes: {nodes}, processes_per_node: {4 // nodes}, time: 1h{more}}}"
        job = self.write(name, run, steps)
        return json.loads(self.run("--json", "job", "submit", job))["id"]

    def status(self, name):
        return json.loads(self.run("--json", "job", "status", name))

    def until(self, name, holds, what):
        self.cluster.await_that(lambda: holds(self.status(name)), f"{name} {what}; it is {self.status(name)}", WAIT_S)
        return self.status(name)

    def at_step(self, name, step):
        self.until(name, lambda status: status.get("step", 0) >= step, f"to reach step {step}")

    def resume(self, name, slurm_id):
        """Waits until Slurm has the job in its queue again, and makes the delay of such jobs short. Slurm has this delay to
        let the words of the first run's script arrive: they would end the second run. Two seconds, because a node refuses
        a job that starts in the second in which it revoked the first run's credential."""
        self.until(name, lambda status: status["state"] == "queued", "to be back in the queue")
        self.cluster.await_that(lambda: not self.cluster.keepers_of(slurm_id), f"job {slurm_id} to leave its nodes", WAIT_S)
        self.cluster.run("scontrol", "update", f"JobId={slurm_id}", "StartTime=now+2")

    def expect_done(self, name, wanted):
        """The job ends well. Returns the step from which its last run went on."""
        assert self.run("job", "attach", name) != ""
        status = self.status(name)
        assert (status["state"], status["step"]) == ("done", STEPS), status
        folder = self.folder / "state/jobs" / name
        last = losses(folder / "logs/rank-0.out")
        for step, loss in (losses(folder / "logs.previous/rank-0.out") | last).items():
            assert loss == wanted[step], f"step {step}: {loss}, not {wanted[step]}"
        assert max(last) == STEPS
        return min(last) - 1


def test_trains(jobs, wanted):
    jobs.submit("trains")
    assert jobs.expect_done("trains", wanted) == 0
    ranks = jobs.status("trains")["ranks"]
    assert [rank["node"] for rank in ranks] == [ranks[0]["node"]] * 2 + [ranks[2]["node"]] * 2
    assert ranks[0]["node"] != ranks[2]["node"]


def test_a_failed_rank_starts_again(jobs, wanted):
    jobs.submit("fails")
    jobs.at_step("fails", 100)
    os.kill(jobs.status("fails")["ranks"][3]["pid"], 9)
    assert jobs.expect_done("fails", wanted) >= 0
    assert jobs.status("fails")["restarts"] == 1


def test_a_lost_node_is_replaced(jobs, wanted):
    slurm_id = jobs.submit("loses")
    jobs.at_step("loses", 100)
    node = jobs.status("loses")["ranks"][3]["node"]
    jobs.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
    jobs.resume("loses", slurm_id)
    assert jobs.expect_done("loses", wanted) >= 50
    assert node not in [rank["node"] for rank in jobs.status("loses")["ranks"]]
    jobs.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")


def test_a_preempted_job_goes_on(jobs, wanted):
    slurm_id = jobs.submit("yields", nodes=1)
    jobs.at_step("yields", 100)
    all_nodes = f"--nodes={len(jobs.cluster.nodes)}"
    jobs.cluster.run("srun", "--partition=urgent", all_nodes, "--exclusive", "--immediate=60", "true")
    jobs.resume("yields", slurm_id)
    assert jobs.expect_done("yields", wanted) >= 50


def test_a_warned_job_saves_and_goes_on(jobs, wanted):
    """As before a time limit, Slurm signals the batch script."""
    slurm_id = jobs.submit("warned")
    jobs.at_step("warned", 60)
    jobs.cluster.run("scancel", "--batch", "--signal=TERM", slurm_id)
    jobs.resume("warned", slurm_id)
    assert jobs.expect_done("warned", wanted) >= 60


def test_a_spare_takes_the_place_of_a_lost_node(jobs, wanted):
    slurm_id = jobs.submit("spared", more=", spares: 1")
    jobs.at_step("spared", 200)
    before = jobs.status("spared")
    assert [node["state"] for node in before["nodes"]] == ["runs", "runs", "spare"], before["nodes"]
    lost, spare = before["ranks"][3]["node"], before["nodes"][2]["name"]
    jobs.cluster.lose(lost)
    lost_at = datetime.datetime.now(datetime.timezone.utc)
    assert jobs.expect_done("spared", wanted) == 0  # one run of the supervisor; Slurm did not start the job again
    after = jobs.status("spared")
    assert after["restarts"] == 1 and [rank["node"] for rank in after["ranks"]][2:] == [spare] * 2, after
    states = {node["name"]: node for node in after["nodes"]}
    assert states[lost]["state"] == "lost" and "is lost" in states[lost]["reason"], states
    assert "Restarts=0" in jobs.cluster.run("scontrol", "show", "job", slurm_id)
    words = (jobs.folder / "state/jobs/spared/logs/supervisor.log").read_text().splitlines()
    again = next(line for line in words if "steps are made again" in line)
    took = (datetime.datetime.fromisoformat(again.split()[0]) - lost_at).total_seconds()
    print(f"   {took:.1f} s from the loss of the node to the next step", flush=True)
    assert took < 20, words
    jobs.cluster.revive(lost)


def test_an_elastic_job_shrinks_and_grows(jobs, _):
    steps = 5000
    wanted = jobs.here(steps)
    jobs.submit("elastic", more=", elastic: {min: 2}", steps=steps)
    jobs.at_step("elastic", 200)
    assert len(jobs.status("elastic")["ranks"]) == 4
    agent = int(pathlib.Path(f"/proc/{jobs.status('elastic')['ranks'][3]['pid']}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(agent, signal.SIGKILL)
    jobs.until("elastic", lambda status: len(status["ranks"]) == 2 and status["state"] == "running", "to go on with two ranks")
    assert jobs.status("elastic")["nodes"][1]["state"] == "lost"
    jobs.until("elastic", lambda status: len(status["ranks"]) == 4 and status["state"] == "running", "to have four ranks again")
    assert jobs.run("job", "attach", "elastic") != ""
    status = jobs.status("elastic")
    assert (status["state"], status["step"], status["restarts"], status["attempt"]) == ("done", steps, 1, 3), status
    found = losses(jobs.folder / "state/jobs/elastic/logs/rank-0.out")
    assert found.keys() == wanted.keys()
    # The same samples in the same order; only sums are made in another order, and steps carry that on.
    first = next(step for step in sorted(found) if found[step] != wanted[step])
    for step, loss in found.items():
        tolerance = 1e-4 if step < first + 50 else 0.02
        assert abs(loss - wanted[step]) <= tolerance * wanted[step], f"step {step}: {loss}, not {wanted[step]}"


def test_code_travels_to_all_nodes(jobs, _):
    code = jobs.folder / "code"
    code.mkdir()
    (code / "start.sh").write_text('#!/bin/sh\necho "$RANK runs $(cat words)"\n')
    (code / "start.sh").chmod(0o755)
    (code / "words").write_text("what came along")
    job = jobs.folder / "travels.yaml"
    job.write_text(json.dumps({"name": "travels", "log": {"url": f"{jobs.folder}/travels"},
                               "run": {"launcher": "slurm", "nodes": 2, "processes_per_node": 2, "command": ["./start.sh"],
                                       "source": str(code), "time": "1h"}}))
    jobs.run("job", "submit", job)
    (code / "words").write_text("what was changed later")
    jobs.run("job", "attach", "travels")
    said = [jobs.run("job", "logs", "travels", "--rank", rank) for rank in range(4)]
    assert said == [f"{rank} runs what came along\n" for rank in range(4)], said


def test_a_sweep_is_an_array(jobs, wanted):
    run = "{launcher: slurm, nodes: 2, processes_per_node: 2, time: 1h}"
    job = jobs.write("swept", run)
    command = [jobs.millrace, "--json", "job", "sweep", job, "--vary", "train.seed=42,43,44", "--at-once", "2"]
    process = subprocess.Popen(command, env=jobs.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    jobs.cluster.await_that(lambda: (jobs.folder / "state/jobs/swept-3/submission").exists(), "the array", WAIT_S)
    jobs.until("swept-2", lambda status: status.get("step", 0) >= 100, "to reach step 100")
    assert "JobArrayTaskLimit" in jobs.status("swept-3")["message"], jobs.status("swept-3")
    jobs.run("job", "sweep", "stop", "swept")
    output, words = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130 and "3 runs are the array" in words, words
    states = [json.loads(line)["state"] for line in output.splitlines()]
    assert states[1:] == ["interrupted", "interrupted"], states
    # The same command goes on: with one run fewer if the first was done.
    output = subprocess.run(command, env=jobs.environment, check=True, stdout=subprocess.PIPE, text=True, timeout=WAIT_S).stdout
    runs = [json.loads(line) for line in output.splitlines()]
    assert [run["state"] for run in runs] == ["done"] * 3 and [run["step"] for run in runs] == [STEPS] * 3, runs
    assert jobs.expect_done("swept-1", wanted) >= 0  # seed 42 is the default
    assert sum(run["best"] for run in runs) == 1 and len({run["value"] for run in runs}) == 3


def test_a_stopped_job_stays_away(jobs, wanted):
    slurm_id = jobs.submit("stopped")
    jobs.at_step("stopped", 60)
    jobs.run("job", "stop", "stopped")
    status = jobs.status("stopped")
    assert status["state"] == "interrupted", status
    jobs.cluster.await_that(lambda: jobs.cluster.run("squeue", "-h", "-j", slurm_id, check=False) == "", "it to leave", WAIT_S)
    assert jobs.status("stopped")["state"] == "interrupted"
    # The same command goes on.
    jobs.submit("stopped")
    assert jobs.expect_done("stopped", wanted) == status["step"]


def test_a_waiting_job_is_cancelled(jobs, _):
    # One that runs on all nodes keeps the other waiting.
    jobs.cluster.run("sbatch", f"--nodes={len(jobs.cluster.nodes)}", "--exclusive", "--job-name=blocker",
                     "--output=/dev/null", "--wrap", "sleep 600")
    jobs.submit("waits")
    assert jobs.status("waits")["state"] == "queued"
    again = subprocess.run([jobs.millrace, "job", "submit", jobs.folder / "waits.yaml"], env=jobs.environment, check=False,
                           stderr=subprocess.PIPE, text=True)
    assert again.returncode != 0 and "queued already" in again.stderr, again.stderr
    jobs.run("job", "stop", "waits")
    assert jobs.status("waits")["state"] == "interrupted"
    jobs.cluster.run("scancel", "--name=blocker")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--requeues", action="store_true")
    parser.add_argument("--tests", default="", help="a regular expression: only tests whose names match")
    arguments = parser.parse_args()
    millrace = pathlib.Path(arguments.millrace).resolve()
    if why := missing():
        print(f"skipped: {why}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name, SlurmCluster(pathlib.Path(name, "slurm"), nodes=4) as cluster:
        jobs = Jobs(str(millrace), pathlib.Path(name), cluster)
        wanted = jobs.here()
        assert len(wanted) == STEPS
        tests = [test_trains, test_code_travels_to_all_nodes, test_a_sweep_is_an_array, test_a_failed_rank_starts_again, test_a_spare_takes_the_place_of_a_lost_node,
                 test_a_stopped_job_stays_away, test_a_waiting_job_is_cancelled]
        if arguments.requeues:
            tests += [test_an_elastic_job_shrinks_and_grows, test_a_lost_node_is_replaced, test_a_preempted_job_goes_on, test_a_warned_job_saves_and_goes_on]
        for test in (test for test in tests if re.search(arguments.tests, test.__name__)):
            test(jobs, wanted)
            print(f"ok {test.__name__}", flush=True)


main()
