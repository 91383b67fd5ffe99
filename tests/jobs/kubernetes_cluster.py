"""A real Kubernetes for tests of jobs. It comes from the environment:

    MILLRACE_KUBE_CONFIG   its kubeconfig; who it names may make namespaces
    MILLRACE_KUBE_LOAD     a command that loads an image: it gets the image's name and an archive of it
    MILLRACE_KUBE_HOST     an address of this machine that pods reach: the bucket is there

    with Store(millrace, folder / "s3") as store, Cluster() as cluster:
        cluster.run("get", "pods")
"""
import json
import os
import shlex
import shutil
import subprocess
import time

IMAGE = "millrace-tested:1"
KEYS = {"AWS_ACCESS_KEY_ID": "tested", "AWS_SECRET_ACCESS_KEY": "tested-secret"}


def missing():
    """Why there can be no test; "" if there can."""
    absent = [name for name in ("MILLRACE_KUBE_CONFIG", "MILLRACE_KUBE_LOAD", "MILLRACE_KUBE_HOST") if name not in os.environ]
    if absent:
        return f"no cluster: {', '.join(absent)} not set"
    return "" if shutil.which("kubectl") else "kubectl is not in PATH"


def load_image(source, programs, folder, archive=None):
    """Gives the cluster an image of the programs, or the archive's. Returns whether it has OpenMPI."""
    mpi, made = archive is not None or shutil.which("mpirun") is not None, folder / "image.tar"
    if archive is not None:
        subprocess.run(["skopeo", "copy", "--quiet", f"docker-archive:{archive}", f"docker-archive:{made}:{IMAGE}"], check=True)
    else:
        subprocess.run([source / "deploy/image/build", "--programs", programs, "--output", folder / "image", "--tar", made, "--tag", IMAGE,
                        *(["--mpi"] if mpi else [])], check=True)
    subprocess.run([*shlex.split(os.environ["MILLRACE_KUBE_LOAD"]), IMAGE, made], check=True)
    made.unlink()
    return mpi


class Store:
    """An S3 server on this machine that pods reach, with KEYS."""

    def __init__(self, millrace, folder):
        self.millrace, self.folder, self.server, self.endpoint = millrace, folder, None, ""

    def __enter__(self):
        keys = {"MILLRACE_S3D_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "MILLRACE_S3D_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
        host, port_file = os.environ["MILLRACE_KUBE_HOST"], self.folder.parent / "port"
        self.server = subprocess.Popen([self.millrace, "s3d", "--root", self.folder, "--listen", f"{host}:0", "--port-file", port_file],
                                       env=os.environ | keys)
        while not port_file.exists():
            assert self.server.poll() is None, "the S3 server has ended"
            time.sleep(0.05)
        self.endpoint = f"http://{host}:{port_file.read_text().strip()}"
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait()


class Cluster:
    """A namespace of its own."""

    def __init__(self):
        self.environment = os.environ | {"KUBECONFIG": os.environ["MILLRACE_KUBE_CONFIG"]}
        self.space = f"millrace-tested-{os.getpid()}"

    def __enter__(self):
        self.run("create", "namespace", self.space)
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "aws"}, "stringData": KEYS})
        return self

    def __exit__(self, *_):
        self.run("delete", "namespace", self.space, "--wait=false", check=False)
        # Pods that are killed need not be waited for.
        self.run("delete", "pods", "--all", "--force", "--grace-period=0", check=False)

    def run(self, *words, check=True, text=None):
        return subprocess.run(["kubectl", "--namespace", self.space, *map(str, words)], env=self.environment, check=check,
                              input=text, stdout=subprocess.PIPE, stderr=None if check else subprocess.DEVNULL, text=True).stdout

    def apply(self, *objects):
        self.run("apply", "-f", "-", text="\n---\n".join(map(json.dumps, objects)))

    def get(self, *words):
        return json.loads(self.run("get", *words, "-o", "json"))

    def has(self, kind):
        return subprocess.run(["kubectl", "--namespace", self.space, "get", kind], env=self.environment, check=False,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    def pod(self, name):
        """The name of a running pod of a job: its own is NAME and a suffix."""
        pods = [pod["metadata"]["name"] for pod in self.get("pods")["items"]
                if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]
        found = [pod for pod in pods if pod == name or pod.rpartition("-")[0] == name]
        assert found, f"no running pod {name} among {pods}"
        return found[0]
