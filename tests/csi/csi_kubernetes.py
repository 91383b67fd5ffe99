#!/usr/bin/env python3
"""The driver on a real Kubernetes node, installed from deploy/kubernetes/csi.

    csi_kubernetes.py --bin FOLDER --source FOLDER [--kills N] [--cases WORD | --run COMMAND]

--run starts a program in place of the cases, with the driver, csi-provisioner and the StorageClasses "bucket" and "limited" (with
quotas) installed, such as Kubernetes' own tests of storage (e2e.test -storage.testdriver=tests/csi/upstream_e2e.yaml).
csi-resizer and csi-snapshotter run, too, if this machine has them. The bucket then takes unsigned requests as well: those tests
give inline volumes no Secret.

The cluster comes from the environment:
    MILLRACE_KUBE_CONFIG    its kubeconfig; who it names may do everything
    MILLRACE_KUBE_BOX       a command that makes and loads an image: it gets the image's name and programs to pack
    MILLRACE_KUBE_HOST      an address of this machine that pods reach: the bucket is there
    MILLRACE_KUBE_KUBELET   kubelet's folder on this machine, which is the node (default /var/lib/kubelet)
    MILLRACE_KUBE_RESTART   a command that restarts kubelet, or with the word "node" all that runs on the node; cases that
                            need it are skipped without it
    MILLRACE_KUBE_LOAD      a command that loads an image: it gets the image's name and an archive of it. The case of a job's
                            program is skipped without it
    MILLRACE_KUBE_PYTHON_IMAGE  an archive of an image with Millrace and python3, such as tests/build/containerfile_test makes. The
                            case of an Estimator's script is skipped without it; it needs Millrace's Python package, too
    MILLRACE_KUBE_SNAPSHOTS a folder with the CRDs of external-snapshotter (client/config/crd)
Without the first three, or without kubectl and csi-provisioner, the test is skipped (exit status 77). The case of claims that
grow needs csi-resizer, and that of snapshots needs csi-snapshotter, snapshot-controller and MILLRACE_KUBE_SNAPSHOTS. These
cases are skipped without them. The sidecars run on this machine with the rights of their service account alone: pods of a
node without kube-proxy do not reach the API server.
"""
import argparse
import base64
import contextlib
import http.server
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

IMAGE, NAMESPACE, DRIVER = "millrace-csi-tested:1", "millrace-csi", "csi.millrace.dev"
KEYS = {"AWS_ACCESS_KEY_ID": "tested", "AWS_SECRET_ACCESS_KEY": "tested-secret", "AWS_REGION": "us-east-1"}
WAIT_S = 120
SETTINGS = ("MILLRACE_KUBE_CONFIG", "MILLRACE_KUBE_BOX", "MILLRACE_KUBE_HOST")


class Skipped(Exception):
    """Why a case cannot run here."""


def missing():
    absent = [name for name in SETTINGS if name not in os.environ]
    if absent:
        return f"no cluster: {', '.join(absent)} not set"
    absent = [program for program in ("kubectl", "csi-provisioner") if not shutil.which(program)]
    return f"{', '.join(absent)} not in PATH" if absent else ""


def run(*words, check=True, text=None, **more):
    return subprocess.run([str(word) for word in words], check=check, input=text, stdout=subprocess.PIPE, text=True, **more).stdout


def kubectl(*words, check=True, text=None):
    environment = os.environ | {"KUBECONFIG": os.environ["MILLRACE_KUBE_CONFIG"]}
    quiet = {} if check else {"stderr": subprocess.DEVNULL}
    return run("kubectl", *words, check=check, text=text, env=environment, **quiet)


def apply(*objects):
    kubectl("apply", "-f", "-", text="\n---\n".join(map(json.dumps, objects)))


def until(holds, what):
    end = time.monotonic() + WAIT_S
    while not (found := holds()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {WAIT_S} s for {what}")
        time.sleep(0.2)
    return found


def pod(name, claim, command, **spec):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", command],
                        "volumeMounts": [{"name": "v", "mountPath": "/data"} | spec.pop("mount", {})]}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]} | spec}


def phase(name):
    return kubectl("-n", "default", "get", "pod", name, "-o", "jsonpath={.status.phase}", check=False)


def finish(name):
    """Waits until the pod has ended, and returns what it printed."""
    until(lambda: phase(name) in ("Succeeded", "Failed"), f"pod {name}; {kubectl('-n', 'default', 'describe', 'pod', name)[-1500:]}")
    log = kubectl("-n", "default", "logs", name)
    assert phase(name) == "Succeeded", log
    return log


def delete_pod(name):
    kubectl("-n", "default", "delete", "pod", name, "--timeout=60s")


def storage_class(name, **parameters):
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}, "provisioner": DRIVER,
            "allowVolumeExpansion": True, "parameters": {"bucketName": "volumes", "prefix": "team"} | parameters}


class TokenService(http.server.BaseHTTPRequestHandler):
    """Stands for STS: gives the tested keys to everybody, and keeps the tokens that it got."""
    tokens = []

    def do_POST(self):
        body = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.tokens.append(body["WebIdentityToken"][0])
        answer = ("<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
                  f"<AccessKeyId>{KEYS['AWS_ACCESS_KEY_ID']}</AccessKeyId><SecretAccessKey>{KEYS['AWS_SECRET_ACCESS_KEY']}</SecretAccessKey>"
                  "<SessionToken>t</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration></Credentials>"
                  "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Node:
    """An endpoint on this machine, and the driver on the node."""

    def __init__(self, programs, source, folder, stack, anonymous=False):
        self.programs, self.folder, self.stack = programs, folder, stack
        self.kubelet = os.environ.get("MILLRACE_KUBE_KUBELET", "/var/lib/kubelet")
        host = os.environ["MILLRACE_KUBE_HOST"]
        environment = os.environ | KEYS
        self.host, self.port = host, 0
        self.components = []
        self.endpoint_words = ["--anonymous", "--insecure"] if anonymous else []
        self.start_endpoint(KEYS)
        self.endpoint = f"http://{host}:{self.port}"
        self.environment = environment | {"AWS_ENDPOINT_URL": self.endpoint}
        for bucket in ("corpus", "volumes"):
            self.millrace("mb", f"s3://{bucket}")
        run(*shlex.split(os.environ["MILLRACE_KUBE_BOX"]), IMAGE, programs / "millrace", programs / "millrace-csi")
        sts = http.server.ThreadingHTTPServer((host, 0), TokenService)
        threading.Thread(target=sts.serve_forever).start()
        stack.callback(sts.server_close)
        stack.callback(sts.shutdown)
        self.sts = f"http://{host}:{sts.server_port}"
        self.source = source
        self.install()

    def start(self, name, *words, **more):
        log = (self.folder / f"{name}.log").open("w")
        process = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log, **more)
        self.stack.callback(process.wait)
        self.stack.callback(process.terminate)
        return process

    def start_endpoint(self, keys):
        """Where it was, if it was there before. It takes these keys alone."""
        port = self.folder / "port"
        port.unlink(missing_ok=True)
        self.s3d = self.start("s3d", self.programs / "millrace", "s3d", "--root", self.folder / "buckets", "--listen",
                              f"{self.host}:{self.port}", "--port-file", port, *self.endpoint_words, env=os.environ | {
                                  "MILLRACE_S3D_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"],
                                  "MILLRACE_S3D_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"]})
        until(lambda: port.exists() and port.read_text().strip(), "the endpoint")
        self.port = int(port.read_text())

    def stop_endpoint(self):
        self.s3d.terminate()
        self.s3d.wait()

    def use_keys(self, keys):
        """The endpoint takes these keys from now on, and the driver has them in its Secret."""
        self.stop_endpoint()
        self.start_endpoint(keys)
        self.environment |= keys
        self.put_secret(keys)

    def put_secret(self, keys):
        apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3-credentials", "namespace": NAMESPACE},
               "stringData": keys | {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ENDPOINT_URL_STS": self.sts}})

    def millrace(self, *words, check=True, text=None):
        return run(self.programs / "millrace", *words, check=check, text=text, env=self.environment)

    def install(self):
        text = kubectl("kustomize", self.source / "deploy/kubernetes/csi")
        text = text.replace("registry.example/millrace:1", IMAGE).replace("/var/lib/kubelet", self.kubelet)
        text = text.replace("- millrace-csi\n", "- /bin/millrace-csi\n").replace(f"image: {IMAGE}", f"image: {IMAGE}\n        imagePullPolicy: Never")
        self.stack.callback(kubectl, "delete", "-f", "-", "--timeout=120s", check=False, text=text)
        kubectl("apply", "--server-side", "-f", "-", text=text)
        self.put_secret(KEYS)
        kubectl("-n", NAMESPACE, "delete", "deployment", "millrace-csi-controller")  # runs here, see above
        kubectl("-n", NAMESPACE, "delete", "pods", "--all", "--grace-period=1")
        for part in ("keeper", "mounter", "node"):
            until(lambda p=part: kubectl("-n", NAMESPACE, "get", "daemonset", f"millrace-csi-{p}", "-o",
                                         "jsonpath={.status.numberReady}", check=False) == "1", f"the {part}")
        until(lambda: DRIVER in kubectl("get", "csinodes", "-o", "jsonpath={.items[*].spec.drivers[*].name}"), "the registration")

    def provision(self):
        socket = self.folder / "controller.sock"
        self.start("controller", self.programs / "millrace-csi", "controller", "--socket", socket, "--place", "s3://volumes/team",
                   env=self.environment)
        until(socket.exists, "the controller")
        self.socket = socket
        self.start_sidecar("csi-provisioner", "--extra-create-metadata")
        apply(storage_class("bucket"), storage_class("limited", enforceCapacity="true"))

    def start_sidecar(self, program, *words):
        """Starts a program that speaks with the controller, with the rights of the controller's service account."""
        token = kubectl("-n", NAMESPACE, "create", "token", "millrace-csi-controller").strip()
        server = kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
        config = self.folder / f"{program}.kubeconfig"
        config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": token}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}))
        self.start(program, shutil.which(program), "--kubeconfig", config, "--csi-address", self.socket, "--leader-election",
                   f"--leader-election-namespace={NAMESPACE}", *words)

    def add_rights(self, component):
        """Gives the service account what a component of deploy/kubernetes/csi adds, beside what it has."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(self.source / "deploy/kubernetes/csi", pathlib.Path(folder, "csi"))
            mine = pathlib.Path(folder, "mine")
            mine.mkdir()
            self.components.append(component)
            (mine / "kustomization.yaml").write_text(json.dumps(
                {"resources": ["../csi"], "components": [f"../csi/{name}" for name in self.components]}))
            objects = kubectl("kustomize", mine).split("\n---\n")
        kubectl("apply", "--server-side", "-f", "-", text="\n---\n".join(text for text in objects if "\nkind: ClusterRole\n" in text))

    def start_resizer(self):
        if not shutil.which("csi-resizer"):
            raise Skipped("csi-resizer is not in PATH")
        self.add_rights("resizer")
        self.start_sidecar("csi-resizer")

    def start_snapshotter(self):
        if absent := [program for program in ("csi-snapshotter", "snapshot-controller") if not shutil.which(program)]:
            raise Skipped(f"{', '.join(absent)} not in PATH")
        if "MILLRACE_KUBE_SNAPSHOTS" not in os.environ:
            raise Skipped("MILLRACE_KUBE_SNAPSHOTS is not set")
        for kind in ("volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"):
            file = pathlib.Path(os.environ["MILLRACE_KUBE_SNAPSHOTS"], f"snapshot.storage.k8s.io_{kind}.yaml")
            if not kubectl("get", "crd", f"{kind}.snapshot.storage.k8s.io", "--ignore-not-found"):
                self.stack.callback(kubectl, "delete", "-f", file, "--timeout=60s", check=False)
                kubectl("apply", "--server-side", "-f", file)
            kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", file)
        self.add_rights("snapshotter")
        self.start("snapshot-controller", shutil.which("snapshot-controller"), "--kubeconfig", os.environ["MILLRACE_KUBE_CONFIG"])
        self.start_sidecar("csi-snapshotter", "--timeout=600s")
        apply({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": "copy"},
               "driver": DRIVER, "deletionPolicy": "Delete"})

    def turn(self):
        """How far the busy pod is."""
        return until(lambda: kubectl("-n", "default", "logs", "busy", "--tail=1", check=False), "the busy pod's output")

    def stop_busy(self):
        """Ends the busy pod, and returns how many turns it made."""
        (self.folder / "stop").write_text("")
        self.millrace("cp", self.folder / "stop", "s3://corpus/stop")
        turns = int(finish("busy").splitlines()[-1])
        delete_pod("busy")
        self.millrace("rm", "s3://corpus/stop")
        return turns

    def mounts(self):
        return [line for line in pathlib.Path("/proc/mounts").read_text().splitlines() if "fuse.millrace" in line and self.kubelet in line]


def article(node):
    """The PV, the PVC and a pod of the article, but for the driver's name."""
    apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "s3-pv"}, "spec": {
        "capacity": {"storage": "1200Gi"}, "accessModes": ["ReadWriteMany"], "mountOptions": ["allow-delete", "region us-west-2"],
        "csi": {"driver": DRIVER, "volumeHandle": "s3-csi-driver-volume", "volumeAttributes": {"bucketName": "corpus"}}}},
          {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "s3-claim", "namespace": "default"}, "spec": {
              "accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "1200Gi"}},
              "volumeName": "s3-pv"}})
    (node.folder / "train.arrow").write_text("rows\n")
    node.millrace("cp", node.folder / "train.arrow", "s3://corpus/train.arrow")
    apply(pod("article", "s3-claim", "cat /data/train.arrow && echo saved > /data/adapter && rm /data/train.arrow && ls /data"))
    assert finish("article") == "rows\nadapter\n"
    assert node.millrace("cat", "s3://corpus/adapter") == "saved\n"
    apply(pod("grouped", "s3-claim", "id -u && echo x > /data/by-user && stat -c %g /data",
              securityContext={"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}))
    assert finish("grouped") == "1000\n2000\n"
    for name in ("article", "grouped"):
        delete_pod(name)


def dynamic(node):
    """A claim makes a volume; the next pod reads what the first wrote; the claim's end deletes it."""
    node.provision()
    apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "made", "namespace": "default"}, "spec": {
              "accessModes": ["ReadWriteMany"], "storageClassName": "bucket", "resources": {"requests": {"storage": "1Gi"}}}})
    apply(pod("writer", "made", "mkdir /data/d && echo one > /data/d/f && echo two > /data/d/f"))
    finish("writer")
    delete_pod("writer")
    apply(pod("reader", "made", "cat /data/f; ls -a /data", mount={"subPath": "d", "readOnly": True}))
    assert finish("reader").splitlines()[0] == "two"
    delete_pod("reader")
    assert "volume.json" in node.millrace("ls", "--recursive", "s3://volumes/team/")
    kubectl("-n", "default", "delete", "pvc", "made", "--timeout=60s")
    until(lambda: not node.millrace("ls", "--recursive", "s3://volumes/team/", check=False), "the deletion of the volume")


def pod_identity(node):
    """A pod's volume has the keys of the role that its service account assumes; a pod's own volume needs keys."""
    apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "s3-role"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "csi": {
            "driver": DRIVER, "volumeHandle": "by-role", "volumeAttributes": {
                "bucketName": "corpus", "authenticationSource": "pod", "roleArn": "arn:aws:iam::1:role/r"}}}},
          {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "role", "namespace": "default"}, "spec": {
              "accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "s3-role"}})
    node.stack.callback(kubectl, "delete", "pv", "s3-role", "--timeout=60s", check=False)
    apply(pod("role", "role", "echo mine > /data/by-role && cat /data/by-role"))
    assert finish("role") == "mine\n"
    body = TokenService.tokens[-1].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert claims["sub"] == "system:serviceaccount:default:default" and claims["aud"] == ["sts.amazonaws.com"], claims
    delete_pod("role")
    inline = {"name": "v", "csi": {"driver": DRIVER, "volumeAttributes": {"bucketName": "corpus"}}}
    apply(pod("keyless", "", "true", volumes=[inline]))
    until(lambda: "needs keys of its own" in kubectl("-n", "default", "get", "events", "--field-selector", "involvedObject.name=keyless"),
          "the refusal of an inline volume without keys")
    delete_pod("keyless")
    apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "default"}, "stringData": KEYS})
    node.stack.callback(kubectl, "-n", "default", "delete", "secret", "keys", check=False)
    inline["csi"]["nodePublishSecretRef"] = {"name": "keys"}
    apply(pod("inline", "", "cat /data/by-role", volumes=[inline]))
    assert finish("inline") == "mine\n"
    delete_pod("inline")


def kill_pod(part):
    kubectl("-n", NAMESPACE, "delete", "pod", "-l", f"app.kubernetes.io/name=millrace-csi-{part}", "--force", "--grace-period=0",
            check=False)
    until(lambda: kubectl("-n", NAMESPACE, "get", "daemonset", f"millrace-csi-{part}", "-o", "jsonpath={.status.numberReady}",
                          check=False) == "1", f"the return of the {part}")


def daemons():
    """Of the mounts of this node, seen from the host, which is outside of the containers."""
    found = []
    for process in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if b"--kept-name" in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def killed_mounts(node, times=5):
    """Mount processes, the mounter's pod and the keeper's pod are killed while a pod writes and reads."""
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 9):
        raise Skipped("Linux before 6.9 does not send requests again")
    apply(pod("busy", "s3-claim", BUSY))
    until(lambda: phase("busy") == "Running", "the busy pod")
    counts = {"mount process": 0, "mounter": 0, "keeper": 0}
    for i in range(times):
        until(daemons, "the mount process")
        for process in daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                counts["mount process"] += 1
        turn = node.turn()
        until(lambda t=turn: node.turn() != t, "the pod to go on")
        if i % 5 == 4:
            for part in ("keeper", "mounter"):
                kill_pod(part)
                counts[part] += 1
                turn = node.turn()
                until(lambda t=turn: node.turn() != t, "the pod to go on")
        assert phase("busy") == "Running", kubectl("-n", "default", "logs", "busy")
    turns = node.stop_busy()
    print(f"killed {counts} under a pod that wrote and read {turns} files")


BUSY = ("i=0; while [ ! -e /data/stop ]; do i=$((i+1)); echo line-$i > /data/l-$((i%20)) || exit 1; "
        "[ \"$(cat /data/l-$((i%20)))\" = line-$i ] || exit 2; rm /data/l-$((i%20)) || exit 3; echo $i; done")


def killed_driver(node, times=5):
    """The driver's pod is killed and replaced while a pod writes and reads: no error, no wrong byte."""
    apply(pod("busy", "s3-claim", BUSY))
    until(lambda: phase("busy") == "Running", "the busy pod")
    for _ in range(times):
        kill_pod("node")
        assert phase("busy") == "Running", kubectl("-n", "default", "logs", "busy")
    turns = node.stop_busy()
    print(f"driver killed {times} times under a pod that wrote and read {turns} files")
    assert turns > 20


# Goes on after errors, and ends if it reads a wrong byte.
PATIENT = ("i=0; while [ ! -e /data/stop ]; do i=$((i+1)); f=/data/p-$((i%20)); until rm -f $f && echo line-$i > $f; do sleep 1; done; "
           "until got=$(cat $f); do sleep 1; done; [ \"$got\" = line-$i ] || exit 2; echo $i; done")


def goes_on(node):
    """The busy pod writes and reads."""
    turn = node.turn()
    until(lambda: node.turn() != turn, "the pod to go on")
    assert phase("busy") == "Running", kubectl("-n", "default", "logs", "busy")


def claim(name, size="1Gi", **spec):
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"}, "spec": {
        "accessModes": ["ReadWriteMany"], "storageClassName": "bucket", "resources": {"requests": {"storage": size}}} | spec}


def deleted_in_use(node):
    """A claim that is deleted while a pod uses it stays until the pod has ended. Then its content is deleted."""
    apply(claim("used"), pod("user", "used", "echo kept > /data/f; until [ -e /data/stop ]; do cat /data/f > /dev/null || exit 1; "
                             "sleep 0.2; done; cat /data/f"))
    until(lambda: phase("user") == "Running", "the pod")
    file = until(lambda: next((line.split()[-1] for line in node.millrace(
        "ls", "--recursive", "s3://volumes/team/", check=False).splitlines() if line.endswith("/data/f")), ""), "the pod's file")
    kubectl("-n", "default", "delete", "pvc", "used", "--wait=false")
    until(lambda: kubectl("-n", "default", "get", "pvc", "used", "-o", "jsonpath={.metadata.deletionTimestamp}"), "the refusal")
    (node.folder / "stop").write_text("")
    url = file if file.startswith("s3://") else f"s3://volumes/team/{file}"
    node.millrace("cp", node.folder / "stop", url[:-1] + "stop")
    assert finish("user") == "kept\n"
    delete_pod("user")
    until(lambda: not kubectl("-n", "default", "get", "pvc", "used", check=False), "the end of the claim")
    until(lambda: not node.millrace("ls", "--recursive", "s3://volumes/team/", check=False), "the deletion of the volume")


def grown(node):
    """A claim grows by csi-resizer: the pod that uses the volume, and got ENOSPC, writes on."""
    node.start_resizer()
    apply(claim("small", "1Mi", storageClassName="limited"),
          pod("grower", "small", "until head -c 3000000 /dev/zero > /data/f; do echo full; sleep 0.5; done; stat -c %s /data/f"))
    until(lambda: "full" in kubectl("-n", "default", "logs", "grower", check=False), "the end of the volume's room")
    kubectl("-n", "default", "patch", "pvc", "small", "-p", json.dumps({"spec": {"resources": {"requests": {"storage": "8Mi"}}}}))
    assert finish("grower").splitlines()[-1] == "3000000"
    until(lambda: kubectl("-n", "default", "get", "pvc", "small", "-o", "jsonpath={.status.capacity.storage}") == "8Mi",
          "the claim's new size")
    assert not kubectl("-n", "default", "get", "pvc", "small", "-o", "jsonpath={.status.conditions}")
    delete_pod("grower")
    kubectl("-n", "default", "delete", "pvc", "small", "--timeout=60s")


def copied(node):
    """A snapshot by csi-snapshotter has what the volume had. A clone has what the volume has. Both are copies of their own."""
    node.start_snapshotter()
    apply(claim("origin"), pod("first", "origin", "mkdir /data/d && echo one > /data/d/f"))
    finish("first")
    delete_pod("first")
    apply({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "then", "namespace": "default"},
           "spec": {"volumeSnapshotClassName": "copy", "source": {"persistentVolumeClaimName": "origin"}}})
    snapshot = ("-n", "default", "get", "volumesnapshot", "then", "-o")
    until(lambda: kubectl(*snapshot, "jsonpath={.status.readyToUse}") == "true", "the snapshot")
    assert kubectl(*snapshot, "jsonpath={.status.restoreSize}") == "4"
    apply(pod("second", "origin", "echo two > /data/d/f && echo more > /data/d/g"))
    finish("second")
    delete_pod("second")
    apply(claim("restored", dataSource={"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "then"}),
          claim("cloned", dataSource={"kind": "PersistentVolumeClaim", "name": "origin"}),
          pod("restored", "restored", "cat /data/d/*; echo changed > /data/d/f"),
          pod("cloned", "cloned", "cat /data/d/*; echo changed > /data/d/f"))
    assert finish("restored") == "one\n"
    assert finish("cloned") == "two\nmore\n"
    apply(pod("third", "origin", "cat /data/d/f"))
    assert finish("third") == "two\n"
    for name in ("restored", "cloned", "third"):
        delete_pod(name)
    kubectl("-n", "default", "delete", "pvc", "origin", "restored", "cloned", "--timeout=60s")
    kubectl("-n", "default", "delete", "volumesnapshot", "then", "--timeout=60s")
    until(lambda: not node.millrace("ls", "--recursive", "s3://volumes/team/", check=False), "the deletion of all copies")


def many_volumes(node, count=50):
    """As many pods as volumes start, beside as many pods without volumes."""
    def start(prefix, objects):
        began = time.monotonic()
        apply(*objects)
        kubectl("-n", "default", "wait", "pod", "-l", f"group={prefix}", "--for=jsonpath={.status.phase}=Running", "--timeout=600s")
        took = time.monotonic() - began
        kubectl("-n", "default", "delete", "pod", "-l", f"group={prefix}", "--timeout=300s")
        return took

    def labelled(prefix, i, claimed, command, **spec):
        made = pod(f"{prefix}-{i}", claimed, command, **spec)
        made["metadata"]["labels"] = {"group": prefix}
        return made

    empty = start("empty", [labelled("empty", i, "", "sleep 1000", volumes=[{"name": "v", "emptyDir": {}}]) for i in range(count)])
    names = [f"many-{i}" for i in range(count)]
    full = start("full", [claim(name) for name in names] +
                 [labelled("full", i, name, f"echo {i} > /data/f && [ $(cat /data/f) = {i} ] && sleep 1000")
                  for i, name in enumerate(names)])
    kubectl("-n", "default", "delete", "pvc", *names, "--timeout=300s")
    until(lambda: not node.millrace("ls", "--recursive", "s3://volumes/team/", check=False), "the deletion of the volumes")
    print(f"{count} pods run after {empty:.0f} s, with a volume each after {full:.0f} s")
    assert full - empty <= 60


def endpoint_away(node, seconds=60):
    """The endpoint is away for a minute: the pod gets errors, and goes on when it is back."""
    apply(pod("busy", "s3-claim", PATIENT))
    until(lambda: phase("busy") == "Running", "the busy pod")
    goes_on(node)
    node.stop_endpoint()
    time.sleep(seconds)
    assert phase("busy") == "Running", kubectl("-n", "default", "logs", "busy")
    node.start_endpoint(KEYS)
    goes_on(node)
    print(f"the endpoint was away for {seconds} s under a pod that wrote and read {node.stop_busy()} files")


def new_keys(node):
    """The driver's keys are revoked, and it gets others: the pod goes on."""
    apply(pod("busy", "s3-claim", PATIENT))
    until(lambda: phase("busy") == "Running", "the busy pod")
    goes_on(node)
    for keys in (KEYS | {"AWS_ACCESS_KEY_ID": "next", "AWS_SECRET_ACCESS_KEY": "next-secret"}, KEYS):
        node.use_keys(keys)
        kubectl("-n", NAMESPACE, "delete", "pods", "-l", "app.kubernetes.io/name=millrace-csi-mounter")
        goes_on(node)
    node.stop_busy()


def program(node):
    """A job's program of its own, in two pods: it reads a folder of the bucket, and goes on from its checkpoint when it failed."""
    if "MILLRACE_KUBE_LOAD" not in os.environ:
        raise Skipped("MILLRACE_KUBE_LOAD is not set")
    image, archive = "millrace-job-tested:1", node.folder / "image.tar"
    run(node.source / "deploy/image/build", "--programs", node.programs, "--output", node.folder / "image", "--tar", archive,
        "--tag", image)
    run(*shlex.split(os.environ["MILLRACE_KUBE_LOAD"]), image, archive)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bucket-keys", "namespace": "default"}, "stringData": KEYS}
    apply(secret)
    node.millrace("mb", "s3://runs")
    node.millrace("cp", "-", "s3://corpus/texts/one", text="a text\n")
    script = ('cat /data/one && ! touch /data/two 2>/dev/null || exit 3; saved=$MILLRACE_CHECKPOINTS/$RANK; '
              'if test -e $saved; then echo "rank $RANK goes on from $(cat $saved)"; exit 0; fi; '
              'echo "step 7" > $saved.new && mv $saved.new $saved; test $RANK = 0 || exit 1; sleep 600')
    words = json.dumps(["sh", "-c", script])
    job = node.folder / "job.yaml"
    job.write_text(f'name: programs\nrun: {{launcher: kubernetes, nodes: 2, image: "{image}", image_pull_policy: Never, '
                   f'namespace: default, env_from: [bucket-keys], mounts_secret: bucket-keys, command: {words}, '
                   'mounts: {"s3://corpus/texts": "/data:ro"}}\n'
                   'checkpoint: {url: "s3://runs/programs"}\nlog: {url: "s3://runs/log"}\n')
    node.environment |= {"KUBECONFIG": os.environ["MILLRACE_KUBE_CONFIG"], "MILLRACE_STATE_DIR": str(node.folder / "state")}
    node.millrace("--endpoint-url", node.endpoint, "job", "submit", job)
    printed = node.millrace("job", "attach", "programs")
    assert "a text" in printed and "rank 0 goes on from step 7" in printed, printed
    status = json.loads(node.millrace("--json", "job", "status", "programs"))
    assert (status["state"], status["restarts"]) == ("done", 1), status
    until(lambda: not [line for line in node.mounts() if "s3://runs" in line], "the end of the job's mounts")
    assert [node.millrace("cat", f"s3://runs/programs/{rank}") for rank in (0, 1)] == ["step 7\n"] * 2
    kubectl("-n", "default", "delete", "job,service,configmap,secret", "-l", "millrace.io/job=programs", "--timeout=60s")


def script_of_an_estimator(node):
    """A Python script that an Estimator starts in two pods: it goes on from its checkpoint, and its model is in the bucket."""
    if not (archive := os.environ.get("MILLRACE_KUBE_PYTHON_IMAGE")):
        raise Skipped("MILLRACE_KUBE_PYTHON_IMAGE is not set")
    image, scripts = "millrace-python-tested:1", node.source / "tests/csi/estimator"
    run("skopeo", "copy", "--quiet", f"docker-archive:{archive}", f"docker-archive:{node.folder}/python.tar:{image}")
    run(*shlex.split(os.environ["MILLRACE_KUBE_LOAD"]), image, node.folder / "python.tar")
    apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bucket-keys", "namespace": "default"}, "stringData": KEYS})
    node.millrace("mb", "s3://runs", check=False)  # another case may have made it
    node.millrace("cp", "-", "s3://corpus/texts/one", text="a text\n")
    environment = node.environment | {
        "KUBECONFIG": os.environ["MILLRACE_KUBE_CONFIG"], "MILLRACE_STATE_DIR": str(node.folder / "state"),
        "MILLRACE_ENDPOINT_URL": node.endpoint, "MILLRACE_PROGRAM": str(node.programs / "millrace"),
        "PYTHONPATH": str(node.programs.parent / "python")}
    printed = run(sys.executable, scripts / "fit.py", image, scripts / "code", env=environment)
    assert "rank 0 goes on from step 7: loss 3.5" in printed and "loss was 3.5" in printed, printed
    model = printed.split("model in ")[1].strip()
    assert node.millrace("cat", f"{model.rstrip('/')}/weights") == "A TEXT\n"
    until(lambda: not [line for line in node.mounts() if "s3://runs" in line], "the end of the job's mounts")
    kubectl("-n", "default", "delete", "job,service,configmap,secret", "-l", "millrace.io/job", "--timeout=60s")


def restarted(node):
    """Kubelet is restarted under a pod, which notices nothing. All of the node is restarted: volumes come back, and
    nothing stale is left."""
    if not (command := shlex.split(os.environ.get("MILLRACE_KUBE_RESTART", ""))):
        raise Skipped("MILLRACE_KUBE_RESTART is not set")
    apply(pod("busy", "s3-claim", BUSY))
    until(lambda: phase("busy") == "Running", "the busy pod")
    goes_on(node)
    run(*command)
    goes_on(node)
    apply(pod("next", "s3-claim", "echo new > /data/new && cat /data/new"))
    assert finish("next") == "new\n"
    delete_pod("next")
    node.stop_busy()

    node.millrace("cp", "-", "s3://corpus/before", text="written before\n")
    apply(pod("busy", "s3-claim", f"cat /data/before && {PATIENT}", restartPolicy="Always"))
    until(lambda: phase("busy") == "Running", "the busy pod")
    goes_on(node)
    run(*command, "node")
    until(lambda: kubectl("-n", "default", "get", "pod", "busy", "-o", "jsonpath={.status.containerStatuses[0].restartCount}") != "0",
          "the pod's restart")
    goes_on(node)
    for line in node.mounts():
        os.statvfs(line.split()[1])
    delete_pod("busy")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--kills", type=int, default=5, help="how often the driver and the mount processes are killed")
    parser.add_argument("--cases", default="", help="only those that contain this, besides those that others need")
    parser.add_argument("--run", default="", help="a command of a shell to run in place of the cases")
    arguments = parser.parse_args()
    if reason := missing():
        print(f"skipped: {reason}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        node = Node(arguments.bin.resolve(), arguments.source.resolve(), pathlib.Path(folder), stack, anonymous=bool(arguments.run))
        stack.callback(kubectl, "delete", "pv", "s3-pv", "--timeout=60s", check=False)
        stack.callback(kubectl, "delete", "storageclass", "bucket", "limited", check=False)
        stack.callback(kubectl, "-n", "default", "delete", "pvc", "--all", "--timeout=60s", check=False)
        stack.callback(kubectl, "-n", "default", "delete", "pods", "--all", "--timeout=60s", check=False)
        if arguments.run:
            node.provision()
            for start in (node.start_resizer, node.start_snapshotter):
                try:
                    start()
                except Skipped as reason:
                    print(f"the command runs without a sidecar: {reason}", flush=True)
            environment = node.environment | {"KUBECONFIG": os.environ["MILLRACE_KUBE_CONFIG"]}
            sys.exit(subprocess.run(arguments.run, shell=True, env=environment, check=False).returncode)
        done, skipped = 0, 0
        for case in (article, dynamic, grown, copied, deleted_in_use, program, script_of_an_estimator, many_volumes, pod_identity, endpoint_away, new_keys,
                     killed_driver, killed_mounts, restarted):
            if arguments.cases not in case.__name__ and case not in (article, dynamic):
                continue
            try:
                case(node, arguments.kills) if case in (killed_driver, killed_mounts) else case(node)
            except Skipped as reason:
                print(f"skipped {case.__name__}: {reason}", flush=True)
                skipped += 1
                continue
            except BaseException:
                for name in ("keeper", "mounter", "node"):
                    print(kubectl("-n", NAMESPACE, "logs", "-l", f"app.kubernetes.io/name=millrace-csi-{name}", "--tail=40", check=False))
                for log in pathlib.Path(folder).glob("*.log"):
                    print(f"--- {log.name}\n{log.read_text()[-3000:]}")
                raise
            print(f"ok {case.__name__}", flush=True)
            done += 1
        print(f"{done} cases passed, {skipped} skipped")
        until(lambda: not node.mounts(), "the end of all mounts")


if __name__ == "__main__":
    main()
