#!/usr/bin/env python3
"""`job sweep` over programs that print their losses: what runs at the same time, what is stopped early, what goes on.

    sweeps.py --millrace PROGRAM
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

WAIT_S = 60
# It makes 20 steps. A run with WAITS stays after step 10 until the file `gate` is there, or until it is asked to leave. Its
# beginning and its end are lines of the file `times`.
RANK = """import os, pathlib, signal, sys, time
place, lr = pathlib.Path(os.environ["PLACE"]), float(os.environ["LR"])
name = pathlib.Path(os.environ["MILLRACE_CHECKPOINTS"]).name
def note(word):
    with open(place / "times", "a") as file:
        file.write(f"{word} {name}\\n")
def leave(*_):
    note("end")
    os._exit(130)
signal.signal(signal.SIGTERM, leave)
note("begin")
if lr > 100:
    note("end")
    sys.exit(3)
for step in range(1, 21):
    print(f"step {step} loss {lr * 100 / step:.4f}", flush=True)
    while step == 10 and lr >= float(os.environ["WAITS"]) and not (place / "gate").exists():
        time.sleep(0.02)
note("end")
"""


class Sweeps:
    def __init__(self, millrace, folder):
        self.millrace, self.folder = millrace, folder
        self.environment = os.environ | {"MILLRACE_STATE_DIR": str(folder / "state")}

    def write(self, name, waits=1000):
        """A job file. Runs wait whose LR is at least `waits`."""
        place = self.folder / name
        (place / "code").mkdir(parents=True)
        (place / "code" / "rank.py").write_text(RANK)
        (place / "job.yaml").write_text(json.dumps({
            "name": name, "checkpoint": {"url": str(place / "checkpoints")},
            "run": {"command": [sys.executable, "rank.py"], "source": str(place / "code"), "max_restarts": 0,
                    "env": {"PLACE": str(place), "WAITS": str(waits), "LR": "1"}},
            "log": {"url": str(place / "log"), "metric_definitions": [{"Name": "step", "Regex": "step ([0-9]+)"},
                                                                      {"Name": "loss", "Regex": "loss ([0-9.]+)"}]}}))
        return place

    def command(self, place, *words):
        return [self.millrace, "--json", "job", "sweep", place / "job.yaml", *map(str, words)]

    def call(self, place, *words):
        """Returns the exit status of a sweep, its runs by name, and its messages."""
        ran = subprocess.run(self.command(place, *words), env=self.environment, check=False, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, timeout=WAIT_S)
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        return ran.returncode, {line["run"]: line for line in lines if "run" in line}, ran.stderr

    def start(self, place, *words):
        return subprocess.Popen(self.command(place, *words), env=self.environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def named(self, verb, name):
        ran = subprocess.run([self.millrace, "--json", "job", "sweep", verb, name], env=self.environment, check=True,
                             stdout=subprocess.PIPE, text=True, timeout=WAIT_S)
        return {line["run"]: line for line in map(json.loads, ran.stdout.splitlines())}

    def until(self, holds, what):
        end = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end, what
            time.sleep(0.05)


    def stop_all(self):
        """Ends what a test that failed has left in the background."""
        ran = subprocess.run([self.millrace, "--json", "job", "list"], env=self.environment, check=False, stdout=subprocess.PIPE, text=True)
        for job in map(json.loads, ran.stdout.splitlines()):
            if job["state"] in ("starting", "running", "restarting", "stopping"):
                subprocess.run([self.millrace, "job", "stop", job["name"]], env=self.environment, check=False, timeout=WAIT_S)


def times(place):
    path = place / "times"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def states_of(runs):
    return [run["state"] for run in runs.values()]


def most_at_once(place):
    running, most = 0, 0
    for word, _ in times(place):
        running += 1 if word == "begin" else -1
        most = max(most, running)
    return most


def test_a_grid_runs_two_at_once_and_names_the_best(sweeps):
    place = sweeps.write("grid")
    status, runs, words = sweeps.call(place, "--vary", "run.env.LR=3,1,2", "--vary", "run.env.X=a,b", "--at-once", 2)
    assert status == 0, words
    assert list(runs) == [f"grid-{n}" for n in range(1, 7)] and {run["state"] for run in runs.values()} == {"done"}
    assert runs["grid-4"]["values"] == {"run.env.LR": "1", "run.env.X": "b"}
    assert [run["value"] for run in runs.values()] == [15, 15, 5, 5, 10, 10] and runs["grid-1"]["step"] == 20
    assert [name for name, run in runs.items() if run["best"]] == ["grid-3"]
    assert 1 <= most_at_once(place) <= 2, times(place)
    # Folders of their own, and the code once.
    assert sorted(name for _, name in times(place) if _ == "begin") == sorted(runs)
    assert sorted(os.listdir(place / "log")) == [*sorted(runs), "source"] and len(os.listdir(place / "log" / "source")) == 1
    # The same command has nothing left to do; more values drawn from other keys are another sweep.
    assert sweeps.call(place, "--vary", "run.env.LR=3,1,2", "--vary", "run.env.X=a,b")[1] == runs
    assert len(times(place)) == 12
    status, _, words = sweeps.call(place, "--vary", "run.env.LR=3,1")
    assert status == 1 and "another --name" in words, words
    table = subprocess.run([sweeps.millrace, "job", "sweep", "status", "grid"], env=sweeps.environment, check=True,
                           stdout=subprocess.PIPE, text=True).stdout.splitlines()
    assert table[-1] == "best: grid-3, loss 5: --set run.env.LR=1 --set run.env.X=a", table


def test_random_values_repeat_and_may_become_more(sweeps):
    place = sweeps.write("drawn")
    words = ["--vary", "run.env.LR=log:0.01..1", "--seed", 7, "--at-once", 3]
    first = sweeps.call(place, *words, "--random", 3)[1]
    more = sweeps.call(place, *words, "--random", 5)[1]
    assert len(first) == 3 and len(more) == 5 and all(more[name]["values"] == run["values"] for name, run in first.items())
    assert len(times(place)) == 10, "runs that are done are not run again"
    other = sweeps.write("drawn-again")
    again = sweeps.call(other, *words, "--random", 5)[1]
    assert [run["values"] for run in again.values()] == [run["values"] for run in more.values()]


def test_asha_stops_the_worse_ones(sweeps):
    """The good ones end at once; a bad one would wait for ever."""
    place = sweeps.write("early", waits=2)
    status, runs, words = sweeps.call(place, "--vary", "run.env.LR=1,0.9,9,8", "--early-stop", "asha", "--min-steps", 5,
                                      "--factor", 2)
    assert status == 0, words
    assert [run["state"] for run in runs.values()] == ["done", "done", "stopped", "stopped"], words
    assert "runs are better" in runs["early-3"]["reason"] and runs["early-3"]["step"] == 10
    assert [name for name, run in runs.items() if run["best"]] == ["early-2"]


def test_a_sweep_whose_process_is_killed_goes_on(sweeps):
    place = sweeps.write("killed", waits=0)
    words = ["--vary", "run.env.LR=1,2,3", "--at-once", 2]
    process = sweeps.start(place, *words)
    sweeps.until(lambda: len(times(place)) == 2, "two runs begin")
    sweeps.until(lambda: states_of(sweeps.named("status", "killed")) == ["running", "running", "waiting"], "the sweep notes it")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (place / "gate").touch()
    status, runs, words = sweeps.call(place, *words)
    assert status == 0 and {run["state"] for run in runs.values()} == {"done"}, words
    assert sorted(times(place)) == sorted((word, name) for word in ("begin", "end") for name in runs), times(place)


def test_a_stopped_sweep_goes_on_later(sweeps):
    place = sweeps.write("stopped", waits=2)
    words = ["--vary", "run.env.LR=1,2,3"]
    process = sweeps.start(place, *words)
    sweeps.until(lambda: ("begin", "stopped-2") in times(place), "the second run begins")
    busy = sweeps.call(place, *words)
    assert busy[0] == 1 and "runs already" in busy[2], busy
    runs = sweeps.named("stop", "stopped")
    assert [run["state"] for run in runs.values()] == ["done", "interrupted", "waiting"], runs
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    (place / "gate").touch()
    status, runs, _ = sweeps.call(place, *words)
    assert status == 0 and {run["state"] for run in runs.values()} == {"done"}
    assert times(place).count(("begin", "stopped-1")) == 1 and times(place).count(("begin", "stopped-2")) == 2
    # Without its process, too.
    again = sweeps.write("left", waits=0)
    process = sweeps.start(again, "--vary", "run.env.LR=1,2")
    sweeps.until(lambda: times(again) == [("begin", "left-1")], "the first run begins")
    sweeps.until(lambda: states_of(sweeps.named("status", "left")) == ["running", "waiting"], "the sweep notes it")
    process.kill()
    process.communicate()
    assert [run["state"] for run in sweeps.named("stop", "left").values()] == ["interrupted", "waiting"]


def test_a_failed_run_is_told_and_tried_again_later(sweeps):
    place = sweeps.write("fails")
    words = ["--vary", "run.env.LR=1,200"]
    status, runs, told = sweeps.call(place, *words)
    assert status == 3 and [run["state"] for run in runs.values()] == ["done", "failed"], told
    assert "exit status 3" in runs["fails-2"]["reason"], runs
    assert sweeps.call(place, *words)[0] == 3 and times(place).count(("begin", "fails-2")) == 2
    assert times(place).count(("begin", "fails-1")) == 1


def test_what_cannot_be_swept_starts_nothing(sweeps):
    place = sweeps.write("refused")
    for words, message in ((["--vary", "run.env.LR=log:1..2"], "--random N"), ([], "nothing differs"),
                           (["--vary", "run.no_such=1,2"], "no_such"), (["--vary", "name=a,b"], "name cannot be varied"),
                           (["--vary", "run.env.LR=1,2", "--metric", "lost"], "log.metric_definitions"),
                           (["--vary", "run.env.LR=1,2", "--early-stop", "asha"], "--min-steps"),
                           (["--vary", "run.env.LR=1,2", "--at-once", "2", "--set", 'run.mounts={"s3://corpus": /data}'],
                            "mount on the same folders"),
                           (["--vary", "run.processes_per_node=1,1000"], "run 2 of the sweep (run.processes_per_node=1000)")):
        status, _, told = sweeps.call(place, *words)
        assert status != 0 and message in told, (words, told)
    assert times(place) == [] and not (sweeps.folder / "state/sweeps/refused").exists()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        sweeps = Sweeps(arguments.millrace, pathlib.Path(name))
        stack.callback(sweeps.stop_all)
        for test in (test_what_cannot_be_swept_starts_nothing, test_a_grid_runs_two_at_once_and_names_the_best,
                     test_random_values_repeat_and_may_become_more, test_asha_stops_the_worse_ones,
                     test_a_sweep_whose_process_is_killed_goes_on, test_a_stopped_sweep_goes_on_later,
                     test_a_failed_run_is_told_and_tried_again_later):
            test(sweeps)
            print(f"ok {test.__name__}", flush=True)


main()
