#!/usr/bin/env python3
"""The manifests of deploy/kubernetes on a real API server: applied, used by `millrace job`, upgraded, removed without a trace.

    kubernetes_manifests.py --millrace PROGRAM --source FOLDER

Needs kubectl, etcd, kube-apiserver and kube-controller-manager in PATH or in $MILLRACE_PEERS/bin, where `tests/install-peers FOLDER
helm kubernetes` puts them; exit status 77 without them. The Helm chart is tested if helm is there. No kubelet runs: pods are admitted and not started, and the commands of their containers are run here.
"""
import argparse
import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import machine

try:
    import yaml
except ImportError:
    yaml = None

PROGRAMS = ("kubectl", "etcd", "kube-apiserver", "kube-controller-manager", "openssl")
START_S = 60


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def await_that(holds, what, seconds=START_S):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.1)


class ApiServer:
    """etcd, an API server and the controllers that namespaces and service accounts need."""
    def __init__(self, folder):
        self.folder, self.processes = pathlib.Path(folder), []
        self.config = self.folder / "kubeconfig"
        self.environment = os.environ | {"KUBECONFIG": str(self.config), "HOME": str(self.folder)}

    def start(self, name, *words):
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes.append(subprocess.Popen([name, *map(str, words)], cwd=self.folder, stdout=log, stderr=log))

    def kubeconfig(self, path, token):
        path.touch(0o600)
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "certificate-authority": str(self.folder / "certs/apiserver.crt")}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "millrace"}}]}))

    def __enter__(self):
        try:
            self.up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def up(self):
        etcd, peers, port, controllers = (free_port() for _ in range(4))
        self.url = f"https://127.0.0.1:{port}"
        token = secrets.token_hex(16)
        (self.folder / "tokens.csv").touch(0o600)
        (self.folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
        subprocess.run(["openssl", "genrsa", "-out", self.folder / "sa.key", "2048"], check=True, stderr=subprocess.DEVNULL)
        self.start("etcd", "--data-dir", "etcd", "--unsafe-no-fsync", "--listen-client-urls", f"http://127.0.0.1:{etcd}",
                   "--advertise-client-urls", f"http://127.0.0.1:{etcd}", "--listen-peer-urls", f"http://127.0.0.1:{peers}",
                   "--initial-advertise-peer-urls", f"http://127.0.0.1:{peers}", "--initial-cluster", f"default=http://127.0.0.1:{peers}")
        self.start("kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{etcd}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
                   f"--secure-port={port}", "--cert-dir=certs", "--service-account-key-file=sa.key",
                   "--service-account-signing-key-file=sa.key", "--service-account-issuer=https://kubernetes.default.svc",
                   "--token-auth-file=tokens.csv", "--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.96.0.0/24",
                   "--allow-privileged=true")
        await_that((self.folder / "certs/apiserver.crt").exists, "the API server's certificate")
        self.kubeconfig(self.config, token)
        self.start("kube-controller-manager", "--kubeconfig=kubeconfig", f"--secure-port={controllers}", "--bind-address=127.0.0.1",
                   "--cert-dir=certs", "--service-account-private-key-file=sa.key", "--root-ca-file=certs/apiserver.crt",
                   "--leader-elect=false", "--controllers=serviceaccount-controller,root-ca-certificate-publisher-controller,"
                   "namespace-controller,garbage-collector-controller")
        await_that(lambda: self.kubectl("get", "serviceaccount", "default", "-n", "default", check=False) != "", "the API server")

    def run(self, *words, check=True, text=None):
        done = subprocess.run([str(word) for word in words], env=self.environment, input=text, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def kubectl(self, *words, check=True, text=None):
        return self.run("kubectl", *words, check=check, text=text)

    def refused(self, *words, text=None):
        """Returns why the server refuses a command."""
        done = subprocess.run(["kubectl", *map(str, words)], env=self.environment, input=text, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        assert done.returncode != 0, f"{words}: {done.stdout}"
        return done.stderr

    def everything(self):
        """All objects of the cluster, but for events and the leases that the servers renew."""
        kinds = [kind for kind in self.kubectl("api-resources", "--verbs=list", "-o", "name").split()
                 if not kind.startswith(("events", "leases", "componentstatuses"))]
        listed = json.loads(self.kubectl("get", ",".join(kinds), "-A", "-o", "json"))["items"]
        return {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in listed}

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def objects(text):
    """What a rendered text says, by kind and name: without namespaces and without Helm's label."""
    found = {}
    for each in filter(None, yaml.safe_load_all(text)):
        each["metadata"].pop("namespace", None)
        each["metadata"].get("labels", {}).pop("app.kubernetes.io/managed-by", None)
        found[each["kind"], each["metadata"]["name"]] = each
    return found


class Test:
    def __init__(self, server, millrace, source, folder):
        self.server, self.millrace, self.folder = server, millrace, folder
        self.here = pathlib.Path(source) / "deploy/kubernetes"

    def pod(self, name, space):
        """The pod that a Deployment would make, as a text."""
        template = json.loads(self.server.kubectl("-n", space, "get", "deployment", name, "-o", "json"))["spec"]["template"]
        return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | {"name": "tried"}, "spec": template["spec"]})

    def helm_says_the_same(self):
        for folder, flags in (("base", ()), ("shell", ("shell.enabled=true", "submitter.enabled=false", "tensorboard.enabled=false",
                                                       "grafanaBoard.enabled=false"))):
            wanted = objects(self.server.kubectl("kustomize", self.here / folder))
            chart = objects(self.server.run("helm", "template", "millrace", self.here / "chart", "--namespace", "millrace", "--kube-version",
                                            "1.34.0", *(word for flag in flags for word in ("--set", flag))))
            namespaces = [key for key in wanted if key[0] == "Namespace"]
            assert len(namespaces) == 1
            del wanted[namespaces[0]]
            assert wanted.keys() == chart.keys(), wanted.keys() ^ chart.keys()
            for key, each in wanted.items():
                assert normal(each) == normal(chart[key]), f"{key}:\n{yaml.safe_dump(normal(each))}\n{yaml.safe_dump(normal(chart[key]))}"

    def applied(self):
        for folder in ("base", "shell"):
            self.server.kubectl("apply", "--server-side", "-k", self.here / folder)
            self.server.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-k", self.here / folder)
            assert self.server.kubectl("diff", "--server-side", "-k", self.here / folder) == "", "applying again changes something"
        board = json.loads(self.server.kubectl("-n", "millrace", "get", "configmap", "millrace-grafana-board", "-o", "json"))
        for name in ("millrace-training.json", "millrace-serving.json"):
            assert json.loads(board["data"][name])["panels"]

    def admitted(self):
        """The namespace admits TensorBoard's pod and refuses the shell's, which is privileged."""
        self.server.kubectl("-n", "millrace", "create", "--dry-run=server", "-f", "-", text=self.pod("millrace-tensorboard", "millrace"))
        shell = self.pod("millrace-shell", "millrace-shell")
        self.server.kubectl("-n", "millrace-shell", "create", "--dry-run=server", "-f", "-", text=shell)
        assert 'violates PodSecurity "restricted' in self.server.refused("-n", "millrace", "create", "--dry-run=server", "-f", "-", text=shell)

    def submits(self, store):
        """A job is submitted, asked for, stopped and submitted again with the service account's rights alone."""
        token = self.server.kubectl("-n", "millrace", "create", "token", "millrace-submitter").strip()
        config = self.folder / "submitter"
        self.server.kubeconfig(config, token)
        environment = self.server.environment | store | {"KUBECONFIG": str(config), "MILLRACE_STATE_DIR": str(self.folder / "state")}

        def millrace(*words):
            done = subprocess.run([self.millrace, *map(str, words)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 0, f"{words}: {done.stdout}"
            return done.stdout

        (self.folder / "texts.jsonl").write_text("".join(json.dumps({"text": f"mill race {n} water wheel"}) + "\n" for n in range(400)))
        millrace("tokenizer", "train", "--input", self.folder / "texts.jsonl", "--vocab-size", "280", "--output", self.folder / "t.model")
        for file in ("texts.jsonl", "t.model"):
            millrace("cp", self.folder / file, f"s3://runs/{file}")
        (self.folder / "job.yaml").write_text("""name: tested
model: {config: {hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}}
data: {sources: [{url: "s3://runs/texts.jsonl"}], tokenizer: "s3://runs/t.model", sequence_length: 32}
train: {steps: 10, global_batch: 8}
checkpoint: {url: "s3://runs/tested"}
run: {launcher: kubernetes, nodes: 2, image: "registry.example/millrace:1", service_account: millrace-job, namespace: millrace}
""")
        millrace("job", "submit", self.folder / "job.yaml")
        made = self.server.everything()
        assert {("Job", "millrace", "tested"), ("Service", "millrace", "tested"), ("ConfigMap", "millrace", "tested"),
                ("Secret", "millrace", "tested-agents")} <= made, made
        assert json.loads(millrace("--json", "job", "status", "tested"))["state"]
        job = json.loads(self.server.kubectl("-n", "millrace", "get", "job", "tested", "-o", "json"))["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": job["spec"]}
        self.server.kubectl("-n", "millrace", "create", "--dry-run=server", "-f", "-", text=json.dumps(pod))
        millrace("job", "stop", "tested")
        millrace("job", "submit", self.folder / "job.yaml")
        self.server.kubectl("-n", "millrace", "delete", "job", "tested", "--cascade=foreground", "--wait")

        account = ("--as", "system:serviceaccount:millrace:millrace-submitter")
        for words in (("create", "pods"), ("list", "secrets"), ("create", "roles"), ("create", "pods/exec"), ("get", "jobs", "-n", "default")):
            space = () if "-n" in words else ("-n", "millrace")
            said = self.server.kubectl("auth", "can-i", *words, *space, *account, check=False)
            assert said.strip() == "no", (words, said)
        assert self.server.kubectl("auth", "can-i", "get", "jobs", "-n", "millrace", "--as", "system:serviceaccount:millrace:millrace-job",
                                   check=False).strip() == "no"

    def copies_events(self, store):
        """The command of TensorBoard's first container, here: event files come, other files do not, and it ends when it is asked to."""
        pod = json.loads(self.pod("millrace-tensorboard", "millrace"))
        container = pod["spec"]["containers"][0]
        folder, home = self.folder / "events", self.folder / "home"
        for place in (folder, home):
            place.mkdir()
            place.chmod(0o777)  # as an emptyDir is
        environment = store | {"PATH": f"{pathlib.Path(self.millrace).parent}:{os.environ['PATH']}", "HOME": str(home), "EVENTS_URL": "s3://runs/"}
        run = {"env": environment, "check": True}
        for name in ("a/tb/events.out.tfevents.1.host", "a/step-1.bin"):
            subprocess.run([self.millrace, "--quiet", "cp", "-", f"s3://runs/{name}"], input=name.encode(), **run)
        process = subprocess.Popen([*container["command"], container["args"][0].replace("/events/", f"{folder}/")], env=environment)
        try:
            await_that((folder / "a/tb/events.out.tfevents.1.host").exists, "the event file")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
            process.wait()
        assert not (folder / "a/step-1.bin").exists()

    def shell_mounts(self, store):
        """The command of the shell's container, in a copy of this machine: the bucket is there, and what is written is uploaded at the end."""
        container = json.loads(self.pod("millrace-shell", "millrace-shell"))["spec"]["containers"][0]
        environment = store | {"BUCKET_URL": "s3://runs"}
        with machine.Machine(self.folder / "machine") as tested:
            shutil.copy(self.millrace, tested.path("/usr/bin/millrace"))
            tested.path("/staging").mkdir()
            tested.path("/staging").chmod(0o777)  # as an emptyDir is
            tested.start(*container["command"], *container["args"], environment=environment, log="shell.log")
            ready = container["readinessProbe"]["exec"]["command"]
            await_that(lambda: tested.status(*ready)[0] == 0, "the mount")
            assert "texts.jsonl" in tested.run("ls", "/mnt/bucket")
            tested.run("sh", "-c", "echo written >/mnt/bucket/by-the-shell")
            tested.run("pkill", "--signal=TERM", "--exact", "millrace")
            tested.others.pop().wait(timeout=30)
            assert not tested.mounts()
        assert subprocess.run([self.millrace, "cat", "s3://runs/by-the-shell"], env=os.environ | store, check=True, stdout=subprocess.PIPE,
                              text=True).stdout == "written\n"

    def removed(self, before):
        for folder in ("base", "shell"):
            self.server.kubectl("delete", "-k", self.here / folder, "--wait")
        assert self.server.everything() == before, self.server.everything() ^ before

    def chart(self, before):
        """Installed, upgraded, rolled back and uninstalled. What is left is the namespace, which the user made."""
        helm = ("helm", "--namespace", "charted")
        self.server.run(*helm, "install", "millrace", self.here / "chart", "--create-namespace")
        made = self.server.everything()
        assert ("Deployment", "charted", "millrace-tensorboard") in made and ("Deployment", "charted", "millrace-shell") not in made
        self.server.run(*helm, "upgrade", "millrace", self.here / "chart", "--set", "image=registry.example/millrace:2,grafanaBoard.enabled=false",
                        "--set-json", 'jobServiceAccount.annotations={"eks.amazonaws.com/role-arn":"arn:aws:iam::1:role/r"}')
        assert '"registry.example/millrace:2"' in self.server.kubectl("-n", "charted", "get", "deployment", "millrace-tensorboard", "-o", "json")
        assert "role/r" in self.server.kubectl("-n", "charted", "get", "serviceaccount", "millrace-job", "-o", "json")
        assert ("ConfigMap", "charted", "millrace-grafana-board") not in self.server.everything()
        self.server.run(*helm, "rollback", "millrace", "1")
        assert ("ConfigMap", "charted", "millrace-grafana-board") in self.server.everything()
        self.server.run(*helm, "uninstall", "millrace", "--wait")
        assert {each for each in self.server.everything() - before if each[1] == "charted"} == {
            ("ServiceAccount", "charted", "default"), ("ConfigMap", "charted", "kube-root-ca.crt")}
        self.server.kubectl("delete", "namespace", "charted", "--wait")
        assert self.server.everything() == before, self.server.everything() ^ before


def normal(each):
    """An object without what is empty, and without namespaces of subjects: both write them."""
    if isinstance(each, dict):
        return {key: normal(value) for key, value in sorted(each.items()) if value not in ({}, None) and not (key == "namespace")}
    return [normal(value) for value in each] if isinstance(each, list) else each


@contextlib.contextmanager
def store(millrace, folder):
    """An S3 endpoint with the bucket runs; the variables by which programs reach it."""
    port = folder / "port"
    (folder / "buckets").mkdir()
    process = subprocess.Popen([millrace, "s3d", "--root", folder / "buckets", "--listen", "127.0.0.1:0", "--port-file", port],
                               env=os.environ | {"MILLRACE_S3D_ACCESS_KEY": "tested", "MILLRACE_S3D_SECRET_KEY": "tested-secret"},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_that(lambda: port.exists() and port.read_text().strip(), "the store")
        variables = {"AWS_ACCESS_KEY_ID": "tested", "AWS_SECRET_ACCESS_KEY": "tested-secret", "AWS_REGION": "us-east-1",
                     "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port.read_text().strip()}"}
        subprocess.run([millrace, "--quiet", "mb", "s3://runs"], env=os.environ | variables, check=True)
        yield variables
    finally:
        process.terminate()
        process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--source", required=True)
    options = parser.parse_args()
    if "MILLRACE_PEERS" in os.environ:
        os.environ["PATH"] = f"{os.environ['MILLRACE_PEERS']}/bin:{os.environ['PATH']}"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if yaml is None:
        print("skipped: Python's yaml is not installed")
        return 77
    if absent:
        print(f"skipped: not in PATH: {', '.join(absent)}")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "server").mkdir()
        with ApiServer(folder / "server") as server, store(options.millrace, folder) as variables:
            test = Test(server, options.millrace, options.source, folder)
            before = server.everything()
            steps = {"applied": test.applied, "admitted": test.admitted, "submits": lambda: test.submits(variables),
                     "copies events": lambda: test.copies_events(variables)}
            why = machine.missing()
            if why:
                print("left out: the shell's mount:", why)
            else:
                steps["shell mounts"] = lambda: test.shell_mounts(variables)
            steps["removed"] = lambda: test.removed(before)
            if shutil.which("helm"):
                steps |= {"helm says the same": test.helm_says_the_same, "chart": lambda: test.chart(before)}
            else:
                print("left out: the chart, because helm is not in PATH")
            for step, run in steps.items():
                run()
                print("passed:", step, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
