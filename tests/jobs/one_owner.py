#!/usr/bin/env python3
"""Two runs at one checkpoint.url: one owns it, the other is refused, takes over, or waits until the owner is silent.

    one_owner.py --millrace PROGRAM
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

WAIT_S = 240
ENDLESS = 10**7  # steps of a run that is ended
LOST = 6  # jobs::kExitLost


class Place:
    """An s3d endpoint with a corpus, and runs on it."""

    def __init__(self, millrace, folder, *options):
        self.millrace, self.folder = millrace, folder
        folder.mkdir()
        keys = {"AWS_ACCESS_KEY_ID": "owner", "AWS_SECRET_ACCESS_KEY": "owner-secret", "AWS_REGION": "nowhere-1"}
        served = os.environ | {"MILLRACE_S3D_ACCESS_KEY": "owner", "MILLRACE_S3D_SECRET_KEY": "owner-secret"}
        self.server = subprocess.Popen([millrace, "s3d", "--root", folder / "s3", "--listen", "127.0.0.1:0", "--port-file",
                                        folder / "port", *options], env=served, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
        self.wait(lambda: (folder / "port").exists() and (folder / "port").read_text(), "s3d")
        self.environment = os.environ | keys | {
            "MILLRACE_ENDPOINT_URL": f"http://127.0.0.1:{(folder / 'port').read_text().strip()}"}
        words = random.Random(1)
        texts = (" ".join(words.choice(("mill", "race", "wheel", "water", "stone")) for _ in range(40)) for _ in range(400))
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.call("mb", "s3://corpus", "s3://runs")
        self.call("cp", folder / "texts.jsonl", "s3://corpus/texts.jsonl")
        self.call("tokenizer", "train", "--input", "s3://corpus/texts.jsonl", "--vocab-size", "300", "--output",
                  "s3://corpus/t.model")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.kill()
        self.server.wait()

    def wait(self, holds, what):
        end = time.monotonic() + WAIT_S
        while not (found := holds()):
            assert time.monotonic() < end, f"waited in vain for {what}"
            time.sleep(0.05)
        return found

    def call(self, *words):
        return subprocess.run([self.millrace, *map(str, words)], env=self.environment, check=True, stdout=subprocess.PIPE,
                              text=True, timeout=WAIT_S).stdout

    def job(self, name, url, steps=ENDLESS, lr="1.0e-3"):
        path = self.folder / f"{name}.yaml"
        path.write_text(f"""name: {name}
model: {{config: {{hidden_size: 32, num_layers: 1, num_heads: 2, intermediate_size: 64}}}}
data: {{sources: [{{url: "s3://corpus/texts.jsonl"}}], tokenizer: "s3://corpus/t.model", sequence_length: 64}}
train: {{steps: {steps}, global_batch: 4, threads: 1, optimizer: {{lr: {lr}}}, schedule: {{name: constant}}}}
checkpoint: {{url: "{url}", every_steps: 100, keep_last: 3}}
run: {{health_checks: false}}
""")
        return path

    def start(self, name, *command):
        """Starts a run of its own state folder, as on another machine, in a process group of its own."""
        output = open(self.folder / f"{name}.out", "w", encoding="utf-8")
        return subprocess.Popen(list(map(str, command)), stdout=output, stderr=output, start_new_session=True,
                                env=self.environment | {"MILLRACE_STATE_DIR": str(self.folder / f"state-{name}")})

    def train(self, name, url, *flags, **job):
        return self.start(name, self.millrace, "train", self.job(name, url, **job), "--no-check", *flags)

    def words(self, name):
        return (self.folder / f"{name}.out").read_text(encoding="utf-8")

    def steps(self, url):
        return [json.loads(line)["step"] for line in self.call("--json", "ckpt", "ls", url).splitlines()]

    def owner(self, url):
        return json.loads(self.call("cat", f"{url}/step-owner.json"))

    def saved(self, name):
        return self.wait(lambda: " committed" in self.words(name), f"a checkpoint of {name}: {self.words(name)[-500:]}")

    def ends(self, process, name, status):
        process.wait(timeout=WAIT_S)
        assert process.returncode == status, (name, process.returncode, self.words(name)[-1500:])

    def stop(self, process):
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=WAIT_S)


def group_of(process):
    """All processes of the run: the supervisor and its ranks, which have process groups of their own."""
    found, grew = {process.pid}, True
    while grew:
        grew = False
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) in found and int(stat.parent.name) not in found:
                found.add(int(stat.parent.name))
                grew = True
    return found


def test_a_second_run_is_refused_and_told_whose_place_it_is(place):
    first = place.train("first", "s3://runs/refused")
    place.saved("first")
    second = place.train("second", "s3://runs/refused", lr="2.0e-3")
    place.ends(second, "second", LOST)
    for word in ("has an owner: ", "since 20", "--take-over", "saves to the same checkpoint.url"):
        assert word in place.words("second"), (word, place.words("second"))
    assert "committed" not in place.words("second") and first.poll() is None
    place.stop(first)
    assert place.owner("s3://runs/refused")["ended"]
    third = place.train("third", "s3://runs/refused")  # the first has left in order: at once
    place.saved("third")
    assert "waiting to see" not in place.words("third")
    place.stop(third)


def test_take_over_ends_the_other_run(place):
    first = place.train("taken", "s3://runs/taken")
    place.saved("taken")
    second = place.train("taker", "s3://runs/taken", "--take-over")
    place.ends(first, "taken", LOST)
    assert "has taken over" in place.words("taken"), place.words("taken")
    assert "takes s3://runs/taken over from" in place.words("taker"), place.words("taker")
    place.saved("taker")
    trainer = pathlib.Path(place.millrace).parent / "millrace-train"
    third = place.start("bare", trainer, place.job("bare", "s3://runs/taken"), "--take-over")
    place.ends(second, "taker", LOST)
    place.saved("bare")
    place.stop(third)
    place.call("ckpt", "verify", "s3://runs/taken", "--all")


def test_a_run_that_was_killed_goes_on_at_once(place):
    first = place.train("killed", "s3://runs/killed")
    place.saved("killed")
    for pid in group_of(first):
        os.kill(pid, signal.SIGKILL)
    first.wait(timeout=WAIT_S)
    again = place.train("again", "s3://runs/killed")
    place.saved("again")
    place.stop(again)
    assert [epoch["epoch"] for epoch in place.owner("s3://runs/killed")["epochs"]] == [1, 2]


def test_a_run_that_was_stopped_for_longer_than_its_lease_saves_nothing_more(place):
    first = place.train("stopped", "s3://runs/stopped")
    place.saved("stopped")
    for pid in (frozen := group_of(first)):
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    second = place.train("next", "s3://runs/stopped", lr="2.0e-3")
    place.saved("next")
    assert "waiting to see whether the owner" in place.words("next") and time.monotonic() - began >= 30
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    place.ends(first, "stopped", LOST)
    assert "has taken over" in place.words("stopped"), place.words("stopped")
    assert second.poll() is None, place.words("next")
    place.stop(second)
    # All that counts behind the step from which the second went on is the second's.
    record = place.owner("s3://runs/stopped")
    for step in place.steps("s3://runs/stopped"):
        manifest = json.loads(place.call("cat", f"s3://runs/stopped/step-{step:08}.json"))
        assert manifest["epoch"] == 2 or step <= record["epochs"][1]["began_from"], (manifest["epoch"], step, record)
    place.call("ckpt", "verify", "s3://runs/stopped", "--all")


def test_two_that_start_at_once_are_told_apart(place):
    both = {name: place.train(name, "s3://runs/at-once", steps=600, lr=lr) for name, lr in (("one", "1.0e-3"), ("two", "2.0e-3"))}
    for process in both.values():
        process.wait(timeout=WAIT_S)
    assert sorted(process.returncode for process in both.values()) == [0, LOST], {name: place.words(name) for name in both}


def test_a_store_that_ignores_conditions_is_refused(place):
    process = place.train("ignores", "s3://runs/ignores")
    process.wait(timeout=WAIT_S)
    assert process.returncode not in (0, LOST), place.words("ignores")
    assert "ignores the conditions of writes" in place.words("ignores"), place.words("ignores")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        with Place(arguments.millrace, pathlib.Path(name) / "whole") as place:
            for test in (test_a_second_run_is_refused_and_told_whose_place_it_is, test_take_over_ends_the_other_run,
                         test_a_run_that_was_killed_goes_on_at_once, test_two_that_start_at_once_are_told_apart,
                         test_a_run_that_was_stopped_for_longer_than_its_lease_saves_nothing_more):
                test(place)
                print(f"ok {test.__name__}", flush=True)
        with Place(arguments.millrace, pathlib.Path(name) / "ignores", "--fault", "unconditional") as place:
            test_a_store_that_ignores_conditions_is_refused(place)
            print("ok test_a_store_that_ignores_conditions_is_refused", flush=True)


main()
