#!/usr/bin/env python3
"""Jobs that lose ranks and nodes at random: every loss of every step is that of an undisturbed run, bit for bit.

    random_losses.py --millrace PROGRAM [--losses N] [--seed S] [--launchers local,ssh,slurm,kubernetes]

A job of two ranks runs with each launcher in turn, and as often as it takes until there were N losses. A loss is one of:
    kill   SIGKILL for a rank
    stop   SIGSTOP for a rank: it hangs
    node   the machine's agent is killed (ssh: its session; Slurm: the step that runs it; Kubernetes: the pod is deleted
           without the time to save)
    power  Slurm: a node's daemon and all that it started are killed; a spare takes its place, once in a run
Launchers that are not here are left out, and said so; the cluster of Kubernetes is that of kubernetes_cluster.py. Exit
status 77: there is none.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import kubernetes_cluster
import slurm_cluster
import ssh_hosts

STEPS, WAIT_S = 800, 300
HANG = "6s"


def logged_losses(path):
    """Every loss that rank 0 has printed, as pairs of step and loss; a step that was made again is there again. The line that a
    rank was killed in is none."""
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and "loss" in values and "event" not in values:
            found.append((values["step"], values["loss"]))
    return found


def parent_of(pid):
    """The parent of a process, from /proc/PID/stat, where the program's name may hold anything."""
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Here:
    """Ranks that this machine's supervisor starts."""
    kinds = {"kill": 4, "stop": 1}
    run = {"processes_per_node": 2}
    data = runs = None  # the folders of data and of runs, as URLs; None: those of this machine
    supervisor_is_lost = False  # with its node

    def __init__(self, environment):
        self.environment = environment

    def strike_rank(self, rank, sign):
        os.kill(rank["pid"], sign)

    def strike_node(self, rank, kind):
        raise NotImplementedError

    def recover(self):
        """Brings lost machines back, after a run."""


class Ssh(Here):
    kinds = {"kill": 4, "stop": 1, "node": 2}

    def __init__(self, environment, hosts):
        super().__init__(environment)
        self.run = {"launcher": "ssh", "hosts": list(hosts.ports), "ssh_options": hosts.options}

    def strike_node(self, rank, kind):
        del kind
        os.kill(parent_of(parent_of(rank["pid"])), signal.SIGKILL)  # the agent's parent is sshd's process of the session


class Slurm(Here):
    kinds = {"kill": 4, "stop": 1, "node": 2, "power": 1}

    def __init__(self, environment, cluster):
        super().__init__(environment | cluster.environment | {"MILLRACE_STATE_DIR": environment["MILLRACE_STATE_DIR"]})
        self.cluster, self.lost = cluster, set()
        self.run = {"launcher": "slurm", "nodes": 2, "spares": 1, "time": "1h"}

    def strike_node(self, rank, kind):
        if kind == "power":
            self.cluster.lose(rank["node"])
            self.lost.add(rank["node"])
        else:
            os.kill(parent_of(rank["pid"]), signal.SIGKILL)

    def recover(self):
        while self.lost:
            self.cluster.revive(self.lost.pop())


class Kubernetes(Here):
    kinds = {"kill": 4, "stop": 1, "node": 2}
    data, runs = "s3://corpus", "s3://runs"
    supervisor_is_lost = True

    def __init__(self, losses, cluster, store):
        own = {"MILLRACE_STATE_DIR": losses.environment["MILLRACE_STATE_DIR"], "MILLRACE_ENDPOINT_URL": store.endpoint}
        super().__init__(losses.environment | cluster.environment | kubernetes_cluster.KEYS | own)
        self.cluster = cluster
        self.run = {"launcher": "kubernetes", "nodes": 2, "image": kubernetes_cluster.IMAGE, "image_pull_policy": "Never",
                    "namespace": cluster.space, "env_from": ["aws"]}
        for bucket in (self.data, self.runs):
            losses.call(self.environment, "mb", bucket)
        for file in losses.files:
            losses.call(self.environment, "cp", losses.folder / file, f"{self.data}/{file}")

    def strike_rank(self, rank, sign):
        # The process ID is that of the pod.
        self.ask("exec", self.cluster.pod(rank["node"]), "--", "/bin/sh", "-c", f"kill -{int(sign)} {rank['pid']}")

    def strike_node(self, rank, kind):
        del kind
        self.ask("delete", "pod", self.cluster.pod(rank["node"]), "--force", "--grace-period=0", "--wait=false")

    def ask(self, *words):
        try:
            self.cluster.run(*words)
        except subprocess.CalledProcessError as error:
            raise ProcessLookupError from error  # it has just gone


class Losses:
    files = ("texts.jsonl", "t.model")

    def __init__(self, millrace, folder, seed):
        self.millrace, self.folder, self.random = millrace, folder, random.Random(seed)
        self.environment = os.environ | {"MILLRACE_STATE_DIR": str(folder / "state"), "AWS_REGION": "nowhere-1"}
        words = random.Random(1)
        texts = (" ".join(words.choice(("mill", "race", "wheel", "water", "stone")) for _ in range(40)) for _ in range(400))
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.call(self.environment, "tokenizer", "train", "--input", folder / "texts.jsonl", "--vocab-size", "300", "--output",
                  folder / "t.model")
        self.call(self.environment, "job", "run", self.write("undisturbed", Here(self.environment)), "--json")
        self.wanted = dict(logged_losses(self.log("undisturbed")))
        assert sorted(self.wanted) == list(range(1, STEPS + 1))

    def call(self, environment, *words):
        return subprocess.run([self.millrace, *map(str, words)], env=environment, check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=WAIT_S).stdout

    def log(self, name):
        return self.folder / f"state/jobs/{name}/logs/rank-0.out"

    def write(self, name, launcher):
        path = self.folder / f"{name}.yaml"
        run = {"max_restarts": 10000, "hang_timeout": HANG, "health_checks": False} | launcher.run
        data, runs = launcher.data or self.folder, launcher.runs or f"{self.folder}/runs"
        path.write_text(f"""name: {name}
model: {{config: {{hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}}}}
data: {{sources: [{{url: "{data}/texts.jsonl"}}], tokenizer: "{data}/t.model", sequence_length: 128}}
train: {{steps: {STEPS}, global_batch: 4, threads: 1}}
checkpoint: {{url: "{runs}/{name}", every_steps: 20}}
run: {json.dumps(run)}
""")
        return path

    def status(self, environment, name):
        ran = subprocess.run([self.millrace, "--json", "job", "status", name], env=environment, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return json.loads(ran.stdout) if ran.returncode == 0 else {}

    def next_prey(self, launcher, name, step):
        """Waits for a step behind `step` and some steps more. Returns the status; nothing if the job ends before."""
        goal, end = step + self.random.randrange(1, 40), time.monotonic() + WAIT_S
        while True:
            status = self.status(launcher.environment, name)
            if status.get("state") in ("done", "failed", "interrupted", "lost"):
                return None
            if status.get("state") == "running" and status.get("step", 0) >= goal and all(
                    rank["pid"] > 0 and rank["state"] == "running" for rank in status["ranks"]):
                return status
            assert time.monotonic() < end, f"{name} makes no step behind {step}: {status}"
            time.sleep(0.05)

    def strike(self, launcher, status, first_node, powered):
        """Inflicts one loss. Returns its kind; nothing if its victim has just ended. The supervisor of a Slurm job is on its
        first node, which keeps its power."""
        kinds = {kind: weight for kind, weight in launcher.kinds.items() if kind != "power" or not powered}
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        rank = self.random.choice([rank for rank in status["ranks"] if kind != "power" or rank["node"] != first_node])
        try:
            if kind in ("kill", "stop"):
                launcher.strike_rank(rank, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            else:
                launcher.strike_node(rank, kind)
        except (ProcessLookupError, FileNotFoundError):
            return None
        return kind

    def disturbed_run(self, launcher, name, most):
        """Runs a job with at most `most` losses. Returns their kinds, and the seconds from each to the next step."""
        self.call(launcher.environment, "--json", "job", "submit", self.write(name, launcher), "--no-check")
        try:
            return self.disturb(launcher, name, most)
        except BaseException:
            subprocess.run([self.millrace, "job", "stop", name], env=launcher.environment, check=False, timeout=WAIT_S)
            raise

    def disturb(self, launcher, name, most):
        # A new supervisor counts its attempts from one.
        kinds, step, struck, first_node = [], 0, None, None
        while len(kinds) < most:
            status = self.next_prey(launcher, name, step)
            if status is None:
                break
            attempt = (status["started"], status["attempt"])
            if attempt == struck:  # the loss before is not noticed yet
                time.sleep(0.05)
                continue
            first_node = first_node or status["ranks"][0].get("node", "")
            kind = self.strike(launcher, status, first_node, "power" in kinds)
            if kind is not None:
                kinds.append(kind)
                step, struck = status["step"], attempt
        attached = subprocess.run([self.millrace, "job", "attach", name], env=launcher.environment, check=False,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=WAIT_S)
        status = self.status(launcher.environment, name)
        assert (attached.returncode, status["state"], status["step"]) == (0, "done", STEPS), (attached.stderr, status)
        # The last loss may have come when everything was done.
        assert launcher.supervisor_is_lost or status["restarts"] >= len(kinds) - 1, status
        launcher.recover()
        found = logged_losses(self.log(name))
        wrong = [(made, loss) for made, loss in found if loss != self.wanted[made]]
        assert not wrong, f"{name}: {len(wrong)} of {len(found)} losses differ, such as {wrong[:3]}"
        missing = sorted(set(self.wanted) - {made for made, _ in found})
        # A machine that is lost has lines that it has not told yet: of steps that a checkpoint has, and that are not made again.
        # The loss of the last step follows from all steps before.
        assert STEPS not in missing and (not missing or {"node", "power"} & set(kinds) and len(missing) < STEPS / 2), (kinds, missing)
        log = self.folder / f"state/jobs/{name}/logs/events.jsonl"
        events = log.read_text().splitlines() if log.exists() else []  # in pods, it is the supervisor's pod that has it
        if missing:
            print(f"   {len(missing)} lines of steps were lost with a machine", flush=True)
        return kinds, [event["resume_s"] for event in map(json.loads, events) if event["event"] == "resumed"]


def kubernetes(losses, source, folder, stack):
    programs = pathlib.Path(losses.millrace).parent
    kubernetes_cluster.load_image(source, programs, folder)
    store = stack.enter_context(kubernetes_cluster.Store(losses.millrace, folder / "s3"))
    return Kubernetes(losses, stack.enter_context(kubernetes_cluster.Cluster()), store)


def launchers_here(wanted, losses, folder, stack):
    found = {}
    missing = {"ssh": ssh_hosts.missing, "slurm": slurm_cluster.missing, "kubernetes": kubernetes_cluster.missing}
    for name in wanted:
        why = missing.get(name, lambda: "")()
        if why:
            print(f"left out {name}: {why}", flush=True)
        elif name == "ssh":
            found[name] = Ssh(losses.environment, stack.enter_context(ssh_hosts.SshHosts(folder / "ssh", ["n1", "n2"])))
        elif name == "slurm":
            found[name] = Slurm(losses.environment, stack.enter_context(slurm_cluster.SlurmCluster(folder / "slurm", nodes=4)))
        elif name == "kubernetes":
            found[name] = kubernetes(losses, pathlib.Path(__file__).resolve().parents[2], folder, stack)
        else:
            found[name] = Here(losses.environment)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--losses", type=int, default=12, help="over all launchers (default 12)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--launchers", default="local,ssh,slurm,kubernetes")
    arguments = parser.parse_args()
    millrace = str(pathlib.Path(arguments.millrace).resolve())
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        losses = Losses(millrace, folder, arguments.seed)
        launchers = launchers_here(arguments.launchers.split(","), losses, folder, stack)
        if not launchers:
            sys.exit(77)
        total = {launcher: {} for launcher in launchers}
        times = {launcher: [] for launcher in launchers}
        # The launchers share the losses evenly; the first get what is left over.
        left = {launcher: arguments.losses // len(launchers) + (i < arguments.losses % len(launchers)) for i, launcher in enumerate(launchers)}
        number = 0
        while any(left.values()):
            for launcher, each in launchers.items():
                if left[launcher] == 0:
                    continue
                number += 1
                kinds, resumed = losses.disturbed_run(each, f"lost-{launcher}-{number}", left[launcher])
                left[launcher] -= len(kinds)
                times[launcher] += resumed
                for kind in kinds:
                    total[launcher][kind] = total[launcher].get(kind, 0) + 1
                said = ", ".join(f"{count} {kind}" for kind, count in sorted(total[launcher].items()))
                resumed = (f"; to the next step {statistics.median(times[launcher]):.1f} s (median), {max(times[launcher]):.1f} s at most"
                           if times[launcher] else "")
                print(f"ok {launcher}: {sum(total[launcher].values())} losses ({said}), bit for bit{resumed}", flush=True)
        print(f"ok {sum(sum(each.values()) for each in total.values())} random losses with seed {arguments.seed}")


main()
