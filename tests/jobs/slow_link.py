#!/usr/bin/env python3
"""A machine whose network is slow: the ranks find it before their first step, and a spare takes its place.

    slow_link.py --millrace PROGRAM

Each machine is a network namespace with a host name of its own; a queue in the kernel slows one of them. Needs root and
iproute2. Exit status 77: namespaces or such queues cannot be made here.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

WAIT_S, STEPS = 180, 30
RATE = "60mbit"  # a hundredth of what the others have
# A copy of another test's mount would keep it alive after its unmount.
LEAVE_MOUNTS = r"while read _ point type _; do case \$type in fuse.*) umount -l \$point;; esac; done </proc/mounts;"


def quietly(*words):
    return subprocess.run(list(map(str, words)), check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def missing():
    """Why there can be no test; "" if there can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    absent = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    tried = "ip link add v0 type veth peer name v1 && tc qdisc add dev v0 root tbf rate 1mbit burst 4kb latency 1s"
    return "" if quietly("unshare", "--net", "sh", "-c", tried) else "the kernel has no veth, or no tbf, here"


class Machines:
    """n1, n2, … with the addresses 10.77.N.2. A namespace of its own routes between them."""

    def __init__(self, stack, folder, count):
        self.folder, self.mark = folder, f"mr{os.getpid()}"
        self.names = [f"n{number}" for number in range(1, count + 1)]
        self.add(stack, "hub")
        self.inside("hub", "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        for number, name in enumerate(self.names, 1):
            self.add(stack, name)
            self.ip("-n", self.space("hub"), "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", self.space(name))
            for space, device, address in (("hub", f"to{number}", f"10.77.{number}.1/24"), (name, "eth0", f"10.77.{number}.2/24")):
                self.ip("-n", self.space(space), "address", "add", address, "dev", device)
                self.ip("-n", self.space(space), "link", "set", device, "up")
            self.ip("-n", self.space(name), "link", "set", "lo", "up")
            self.ip("-n", self.space(name), "route", "add", "default", "via", f"10.77.{number}.1")
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
            f"10.77.{number}.2 {name}\n" for number, name in enumerate(self.names, 1)))
        # What the launcher takes for ssh.
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(f"""#!/bin/sh
case " $* " in *" -G "*) asks=1;; esac
while [ "$1" != -- ]; do shift; done
name=$2
if [ "$asks" ]; then echo "hostname 10.77.${{name#n}}.2"; exit; fi
exec ip netns exec {self.mark}-$name unshare --uts --mount sh -c "{LEAVE_MOUNTS} hostname $name && mount --bind {folder}/hosts /etc/hosts && $3"
""")
        (folder / "bin" / "ssh").chmod(0o755)

    def space(self, name):
        return f"{self.mark}-{name}"

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True)

    def inside(self, name, *words):
        subprocess.run(["ip", "netns", "exec", self.space(name), *words], check=True)

    def add(self, stack, name):
        self.ip("netns", "add", self.space(name))
        stack.callback(quietly, "ip", "netns", "delete", self.space(name))

    def slow_down(self, name):
        number = name.removeprefix("n")
        for space, device in (("hub", f"to{number}"), (name, "eth0")):
            self.inside(space, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", RATE, "burst", "64kb", "latency", "1s")


class Jobs:
    def __init__(self, millrace, folder):
        self.millrace, self.folder = millrace, folder
        self.environment = os.environ | {"MILLRACE_STATE_DIR": str(folder / "state"), "AWS_REGION": "nowhere-1",
                                         "PATH": f"{folder}/bin:{os.environ['PATH']}"}
        words = random.Random(1)
        texts = (" ".join(words.choice(("mill", "race", "wheel", "water", "stone")) for _ in range(40)) for _ in range(400))
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.run("tokenizer", "train", "--input", folder / "texts.jsonl", "--vocab-size", "300", "--output", folder / "t.model")

    def run(self, *words):
        return subprocess.run([self.millrace, *map(str, words)], env=self.environment, check=True, stdout=subprocess.PIPE,
                              text=True, timeout=WAIT_S).stdout

    def train(self, name, hosts, spares):
        """Runs a job to its end. Returns its events."""
        job = self.folder / f"{name}.yaml"
        job.write_text(f"""name: {name}
model: {{config: {{hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}}}}
data: {{sources: [{{url: "{self.folder}/texts.jsonl"}}], tokenizer: "{self.folder}/t.model", sequence_length: 128}}
train: {{steps: {STEPS}, global_batch: 12, threads: 1}}
checkpoint: {{url: "{self.folder}/runs/{name}", every_steps: 10}}
run: {json.dumps({"launcher": "ssh", "hosts": hosts, "spares": spares, "health_checks": ["network"]})}
""")
        ran = subprocess.run([self.millrace, "--json", "job", "run", job], env=self.environment, check=False, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=WAIT_S)
        assert ran.returncode == 0, ran.stderr + ran.stdout
        return [json.loads(line) for line in ran.stdout.splitlines() + ran.stderr.splitlines() if line.startswith("{")]

    def nodes(self, name):
        return {node["name"]: node["state"] for node in json.loads(self.run("--json", "job", "status", name))["nodes"]}


def test_a_spare_takes_the_place_of_the_slow_machine(jobs):
    events = jobs.train("replaced", ["n1", "n2", "n3", "n4"], 1)
    assert jobs.nodes("replaced") == {"n1": "runs", "n2": "set aside", "n3": "runs", "n4": "runs"}, jobs.nodes("replaced")
    told = [event for event in events if event.get("event") == "node" and event["node"] == "n2"]
    assert any("all links of n2 (rank 1) are slow" in event["reason"] for event in told), told
    assert any(event.get("event") == "regroup" for event in events)
    status = json.loads(jobs.run("--json", "job", "status", "replaced"))
    assert (status["state"], status["restarts"]) == ("done", 0), status


def test_without_a_spare_it_is_told_and_stays(jobs):
    events = jobs.train("kept", ["n1", "n2", "n3"], 0)
    assert set(jobs.nodes("kept").values()) == {"runs"}, jobs.nodes("kept")
    told = [event for event in events if event.get("event") == "node" and event["node"] == "n2"]
    assert len(told) == 1, told


def test_the_doctor_names_the_slow_machine(jobs):
    """As the ranks of a job. The first one tells of all machines."""
    (jobs.folder / "data").mkdir()
    (jobs.folder / "data" / "blob").write_bytes(bytes(4 << 20))
    job = jobs.folder / "doctor.yaml"
    command = [jobs.millrace, "--json", "doctor", "--node", "--links", f"{jobs.folder}/data"]
    job.write_text(json.dumps({"name": "doctor", "run": {"launcher": "ssh", "hosts": ["n1", "n2", "n3"], "max_restarts": 0,
                                                         "health_checks": False, "command": command}}))
    ran = subprocess.run([jobs.millrace, "job", "run", job], env=jobs.environment, check=False, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, timeout=WAIT_S)
    assert ran.returncode != 0, ran.stdout
    found = {}
    for finding in map(json.loads, jobs.run("job", "logs", "doctor").splitlines()):
        found.setdefault(finding["node"], {})[finding["check"]] = finding
    assert set(found) == {"n1", "n2", "n3"}, found
    assert all(found[node]["links"]["level"] != "fail" for node in ("n1", "n3")), found
    slow = found["n2"]["links"]
    assert slow["level"] == "fail" and "all links of n2 (rank 1) are slow" in slow["what"] and "leave this machine out" in slow["advice"]
    assert all("MB/s" in checks["store"]["what"] and checks["store"]["speed"] > 0 for checks in found.values()), found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    if why := missing():
        print(f"skipped: {why}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        machines = Machines(stack, folder, 4)
        machines.slow_down("n2")
        jobs = Jobs(arguments.millrace, folder)
        for test in (test_a_spare_takes_the_place_of_the_slow_machine, test_without_a_spare_it_is_told_and_stays,
                     test_the_doctor_names_the_slow_machine):
            test(jobs)
            print(f"ok {test.__name__}", flush=True)


main()
