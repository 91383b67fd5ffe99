#!/usr/bin/env python3
"""run.elastic on one machine: a job goes on with fewer ranks, and grows back.

    elastic_here.py --millrace PROGRAM
"""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time

STEPS, WAIT_S = 3000, 240
ENDLESS = 10**7  # steps of a job that is stopped


def losses(path):
    lines = (line for line in path.read_text().splitlines() if line.startswith("{"))
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line and "event" not in line}


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Jobs:
    def __init__(self, millrace, folder):
        self.millrace, self.folder = millrace, folder
        self.environment = os.environ | {"MILLRACE_STATE_DIR": str(folder / "state"), "AWS_REGION": "nowhere-1"}
        words = random.Random(1)
        texts = (" ".join(words.choice(("mill", "race", "wheel", "water", "stone")) for _ in range(40)) for _ in range(400))
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.call("tokenizer", "train", "--input", folder / "texts.jsonl", "--vocab-size", "300", "--output", folder / "t.model")

    def call(self, *words):
        return subprocess.run([self.millrace, *map(str, words)], env=self.environment, check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=WAIT_S).stdout

    def write(self, name, steps, **run):
        path = self.folder / f"{name}.yaml"
        path.write_text(f"""name: {name}
model: {{config: {{hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}}}}
data: {{sources: [{{url: "{self.folder}/texts.jsonl"}}], tokenizer: "{self.folder}/t.model", sequence_length: 64}}
train: {{steps: {steps}, global_batch: 4, threads: 1, optimizer: {{lr: 1.0e-5}}, schedule: {{name: constant}}}}
checkpoint: {{url: "{self.folder}/runs/{name}", every_steps: 50}}
run: {json.dumps({"processes_per_node": 2, "health_checks": False} | run)}
""")
        return path

    def start(self, job):
        return subprocess.Popen([self.millrace, "job", "run", job, "--json", "--no-check"], env=self.environment,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def status(self, name):
        ran = subprocess.run([self.millrace, "--json", "job", "status", name], env=self.environment, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return json.loads(ran.stdout) if ran.returncode == 0 else {"ranks": []}

    def until(self, name, holds, what):
        end = time.monotonic() + WAIT_S
        while not holds(status := self.status(name)):
            assert time.monotonic() < end and status.get("state") != "done", f"{what}: {status}"
            time.sleep(0.05)
        return status

    def ranks(self, name, count):
        return self.until(name, lambda status: status.get("state") == "running" and len(status["ranks"]) == count, f"{count} ranks")


def test_a_killed_agent_shrinks_the_job_and_comes_back(jobs):
    jobs.call("job", "run", jobs.write("whole", STEPS), "--json")
    wanted = losses(jobs.folder / "state/jobs/whole/logs/rank-0.out")
    # However long the part stays away, the job still runs when it comes back.
    process = jobs.start(jobs.write("elastic", ENDLESS, elastic={"min": 1}))
    # The save of step 100 has waited for the upload of step 50.
    status = jobs.until("elastic", lambda status: status.get("step", 0) > 100, "a step behind 100")
    assert [rank["node"] for rank in status["ranks"]] == ["part-0", "part-1"]
    os.kill(parent_of(status["ranks"][1]["pid"]), signal.SIGKILL)
    shrunk = jobs.ranks("elastic", 1)
    assert shrunk["nodes"][1]["state"] == "lost", shrunk
    grown = jobs.ranks("elastic", 2)
    status = jobs.until("elastic", lambda status: status.get("step", 0) >= grown.get("step", 0) + 100, "100 steps more")
    assert (status["restarts"], status["attempt"]) == (1, 3), status
    jobs.call("job", "stop", "elastic")
    process.communicate(timeout=WAIT_S)
    found = {step: loss for step, loss in losses(jobs.folder / "state/jobs/elastic/logs/rank-0.out").items() if step <= STEPS}
    assert len(found) > min(status["step"], STEPS) * 0.8, len(found)
    # The same samples in the same order; only sums are made in another order, and steps carry that on.
    first = min((step for step in found if found[step] != wanted[step]), default=STEPS)
    assert first >= 50
    for step, loss in found.items():
        assert abs(loss - wanted[step]) <= (1e-4 if step < first + 50 else 0.05) * wanted[step], (step, loss, wanted[step])


def test_a_rank_that_always_fails_is_left_out(jobs):
    """A rank that is killed without progress, twice, is set aside."""
    process = jobs.start(jobs.write("worn", 400, elastic={"min": 1}, max_restarts=20))
    killed = set()

    def left_out(status):
        for rank in status["ranks"]:
            if rank.get("node") == "part-1" and rank["pid"] > 0 and rank["pid"] not in killed:
                killed.add(rank["pid"])
                try:
                    os.kill(rank["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    pass
        return any(node["state"] == "set aside" for node in status.get("nodes", []))

    jobs.until("worn", left_out, "part-1 to be left out")
    _, words = process.communicate(timeout=WAIT_S)
    status = jobs.status("worn")
    assert process.returncode == 0 and status["step"] == 400 and len(status["ranks"]) == 1, (status, words)
    assert status["nodes"][1]["state"] == "set aside" and "fail again and again" in status["nodes"][1]["reason"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        jobs = Jobs(arguments.millrace, pathlib.Path(name))
        for test in (test_a_rank_that_always_fails_is_left_out, test_a_killed_agent_shrinks_the_job_and_comes_back):
            test(jobs)
            print(f"ok {test.__name__}", flush=True)


main()
