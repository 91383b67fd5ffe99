#!/usr/bin/env python3
"""Jobs on a real Kubernetes: losses are those of a run on this machine, bit for bit, whatever happens.

    kubernetes_jobs.py --millrace PROGRAM --source FOLDER [--image ARCHIVE] [--only NAME...]

The cluster is that of kubernetes_cluster.py; without one, the test is skipped (exit status 77). Jobs of the MPI Operator,
JobSets and queues of Kueue are tested where the cluster has them. --image: an image in place of the one that
deploy/image/build makes, such as that of tests/build/containerfile_test.
"""
import argparse
import contextlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from kubernetes_cluster import IMAGE, KEYS, Cluster, Store, load_image, missing

STEPS, WAIT_S = 1200, 300


def losses(path):
    """The loss of each step in the lines of rank 0; none without a file. Steps that were made again count once."""
    if not path.exists():
        return {}
    found = {}
    for line in path.read_text().splitlines():
        if not line.startswith("{"):
            continue
        entry = json.loads(line)
        if "loss" in entry and "event" not in entry:
            step, loss = entry["step"], entry["loss"]
            assert found.setdefault(step, loss) == loss, f"step {step}: {loss}, and before {found[step]}"
    return found


class Jobs:
    def __init__(self, millrace, folder, cluster, endpoint):
        self.millrace, self.folder, self.cluster = millrace, folder, cluster
        self.environment = cluster.environment | KEYS | {"MILLRACE_STATE_DIR": str(folder / "state"),
                                                         "MILLRACE_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}
        words = random.Random(1)
        texts = (" ".join(words.choice(("mill", "race", "wheel", "water", "stone")) for _ in range(40)) for _ in range(400))
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.run("tokenizer", "train", "--input", folder / "texts.jsonl", "--vocab-size", "300", "--output", folder / "t.model")
        for bucket in ("corpus", "runs"):
            self.run("mb", f"s3://{bucket}")
        for file in ("texts.jsonl", "t.model"):
            self.run("cp", folder / file, f"s3://corpus/{file}")

    def run(self, *words, check=True):
        return subprocess.run([self.millrace, *map(str, words)], env=self.environment, check=check, stdout=subprocess.PIPE,
                              text=True).stdout

    def text(self, name, run):
        return f"""name: {name}
model: {{config: {{hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}}}}
data: {{sources: [{{url: "s3://corpus/texts.jsonl"}}], tokenizer: "s3://corpus/t.model", sequence_length: 128}}
train: {{steps: {STEPS}, global_batch: 8, threads: 1}}
checkpoint: {{url: "s3://runs/{name}", every_steps: 50}}
run: {run}
"""

    def write(self, name, run):
        path = self.folder / f"{name}.yaml"
        path.write_text(self.text(name, run))
        return path

    def here(self):
        """The losses of two ranks on this machine."""
        self.run("job", "run", self.write("here", "{processes_per_node: 2}"), "--json")
        return losses(self.folder / "state/jobs/here/logs/rank-0.out")

    def submit(self, name, launcher="kubernetes", more=""):
        job = self.write(name, f"{{launcher: {launcher}, nodes: 2, image: \"{IMAGE}\", image_pull_policy: Never, "
                               f"namespace: {self.cluster.space}, env_from: [aws], max_restarts: 10{more}}}")
        return json.loads(self.run("--json", "job", "submit", job))["id"]

    def status(self, name):
        return json.loads(self.run("--json", "job", "status", name))

    def until(self, name, holds, what):
        end = time.monotonic() + WAIT_S
        while not holds(status := self.status(name)):
            if time.monotonic() > end:
                raise TimeoutError(f"waited {WAIT_S} s for {name} {what}; it is {status}")
        return status

    def at_step(self, name, step):
        return self.until(name, lambda status: (status.get("step") or 0) >= step, f"to reach step {step}")

    def expect_done(self, name, wanted):
        assert self.run("job", "attach", name) != ""
        status = self.status(name)
        assert (status["state"], status["step"]) == ("done", STEPS), status
        made = losses(self.folder / "state/jobs" / name / "logs/rank-0.out")
        assert max(made) == STEPS
        for step, loss in made.items():
            assert loss == wanted[step], f"step {step}: {loss}, not {wanted[step]}"
        return status

    def saved(self, name):
        """The steps of the run's checkpoints in the bucket."""
        shown = self.run("--json", "ckpt", "ls", f"s3://runs/{name}")
        return [json.loads(line)["step"] for line in shown.splitlines() if "step" in json.loads(line)]


def test_trains(jobs, wanted):
    jobs.submit("trains")
    status = jobs.expect_done("trains", wanted)
    assert status["restarts"] == 0, status
    assert [rank["node"] for rank in status["ranks"]] == ["trains-0", "trains-1"], status
    assert "rank 1" not in jobs.run("job", "logs", "trains")
    jobs.run("job", "logs", "trains", "--rank", "1")


def test_a_deleted_pod_saves_and_comes_back(jobs, wanted):
    jobs.submit("heals")
    jobs.at_step("heals", 100)
    jobs.cluster.run("delete", "pod", jobs.cluster.pod("heals-1"), "--wait=false")
    status = jobs.expect_done("heals", wanted)
    assert status["restarts"] >= 1, status
    # It saved when it was asked to leave, and not only every 50 steps.
    log = (jobs.folder / "state/jobs/heals/logs/supervisor.log").read_text()
    assert "saved and left" in log, log


def test_a_killed_pod_comes_back(jobs, wanted):
    jobs.submit("dies")
    jobs.at_step("dies", 100)
    jobs.cluster.run("exec", jobs.cluster.pod("dies-1"), "--", "/bin/sh", "-c", "kill -9 $(pidof millrace-train)")
    assert jobs.expect_done("dies", wanted)["restarts"] >= 1


def test_the_supervisors_pod_comes_back(jobs, wanted):
    jobs.submit("returns")
    jobs.at_step("returns", 100)
    jobs.cluster.run("delete", "pod", jobs.cluster.pod("returns-0"), "--wait=false")
    jobs.expect_done("returns", wanted)


def test_a_stopped_job_saves_and_goes_on_when_submitted_again(jobs, wanted):
    jobs.submit("stopped")
    jobs.at_step("stopped", 60)
    jobs.run("job", "stop", "stopped")
    status = jobs.status("stopped")
    assert status["state"] == "interrupted", status
    assert max(jobs.saved("stopped")) >= status["step"], (status, jobs.saved("stopped"))
    jobs.submit("stopped")
    jobs.expect_done("stopped", wanted)


def suspend(jobs, name, kind, suspended):
    spec = {"suspend": suspended}
    patch = {"spec": {"runPolicy": spec} if kind == "mpijob" else spec}
    jobs.cluster.run("patch", kind, name, "--type=merge", "-p", json.dumps(patch))


def test_a_suspended_job_keeps_the_run(jobs, wanted):
    jobs.submit("pauses")
    jobs.at_step("pauses", 60)
    suspend(jobs, "pauses", "job", True)
    status = jobs.until("pauses", lambda status: status["state"] == "queued", "to be suspended")
    assert "suspended" in status["message"], status
    suspend(jobs, "pauses", "job", False)
    jobs.expect_done("pauses", wanted)


def test_what_cannot_run_says_why(jobs, _):
    jobs.submit("large", more=", resources: {cpu: \"10000\"}")
    status = jobs.until("large", lambda status: "nsufficient" in status["message"], "to say why it waits")
    assert status["state"] == "queued", status
    again = subprocess.run([jobs.millrace, "job", "submit", jobs.folder / "large.yaml"], env=jobs.environment, check=False,
                           stderr=subprocess.PIPE, text=True)
    assert again.returncode != 0 and "queued already" in again.stderr, again.stderr
    jobs.run("job", "stop", "large")
    assert jobs.status("large")["state"] == "interrupted"


def test_a_failed_job_says_why(jobs, _):
    path = jobs.write("fails", f"{{launcher: kubernetes, nodes: 2, image: \"{IMAGE}\", image_pull_policy: Never, "
                               f"namespace: {jobs.cluster.space}, env_from: [aws]}}")
    path.write_text(path.read_text().replace("corpus/texts.jsonl", "corpus/absent.jsonl"))
    jobs.run("job", "submit", "--no-check", path)
    attached = subprocess.run([jobs.millrace, "job", "attach", "fails"], env=jobs.environment, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert attached.returncode == 1, attached
    assert "rank" in attached.stderr, attached.stderr


def test_an_mpi_job_trains(jobs, wanted):
    jobs.submit("mpi", "mpijob")
    jobs.at_step("mpi", 100)
    jobs.cluster.run("delete", "pod", "mpi-worker-1", "--wait=false")
    jobs.expect_done("mpi", wanted)


def test_an_mpi_job_is_suspended(jobs, wanted):
    jobs.submit("mpi-pauses", "mpijob")
    jobs.at_step("mpi-pauses", 60)
    suspend(jobs, "mpi-pauses", "mpijob", True)
    jobs.until("mpi-pauses", lambda status: status["state"] == "queued", "to be suspended")
    suspend(jobs, "mpi-pauses", "mpijob", False)
    jobs.expect_done("mpi-pauses", wanted)


def test_an_mpi_job_by_hand(jobs, wanted):
    """As the Llama 2 example of Data on EKS: mpirun starts the ranks; checkpoints and data are where the script says."""
    name, space = "by-hand", jobs.cluster.space
    script = ("mpirun --allow-run-as-root -np 2 --map-by slot -x MILLRACE_ENDPOINT_URL -x AWS_ACCESS_KEY_ID -x AWS_SECRET_ACCESS_KEY "
              "sh -c 'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK "
              f"LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE MASTER_ADDR={name}-worker-0.{name} MASTER_PORT=29500 "
              "MILLRACE_JSON=true exec millrace-train /job/job.yaml'")
    env = [{"name": "MILLRACE_ENDPOINT_URL", "value": jobs.environment["MILLRACE_ENDPOINT_URL"]}]
    container = {"image": IMAGE, "imagePullPolicy": "Never", "volumeMounts": [{"name": "job", "mountPath": "/job"}]}
    volumes = [{"name": "job", "configMap": {"name": f"{name}-file"}}]
    reach = f"until ssh {name}-worker-0.{name} true && ssh {name}-worker-1.{name} true; do sleep 1; done"
    launcher = container | {"name": "launcher", "env": env, "envFrom": [{"secretRef": {"name": "aws"}}],
                            "command": ["/bin/sh", "-c", f"{reach}; {script}"]}
    worker = container | {"name": "worker"}
    jobs.cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-file"},
         "data": {"job.yaml": jobs.text(name, "{processes_per_node: 2}")}},
        {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": name, "namespace": space},
         "spec": {"slotsPerWorker": 1, "runPolicy": {"cleanPodPolicy": "Running"}, "mpiReplicaSpecs": {
             "Launcher": {"replicas": 1, "restartPolicy": "OnFailure",
                          "template": {"spec": {"containers": [launcher], "volumes": volumes}}},
             "Worker": {"replicas": 2, "template": {"spec": {"containers": [worker], "volumes": volumes}}}}}})
    jobs.cluster.run("wait", "--for=condition=Succeeded", f"mpijob/{name}", f"--timeout={WAIT_S}s")
    log = jobs.folder / "by-hand.log"
    log.write_text(jobs.cluster.run("logs", "-l", f"training.kubeflow.org/job-name={name},training.kubeflow.org/job-role=launcher",
                                    "--tail=-1"))
    assert losses(log) == wanted


def test_a_job_set_trains(jobs, wanted):
    jobs.submit("set", "jobset")
    jobs.expect_done("set", wanted)


def small(jobs, name, run, more=""):
    """Writes a job whose pods run a program of its own."""
    path = jobs.folder / f"{name}.yaml"
    path.write_text(f"""name: {name}
run: {{launcher: kubernetes, nodes: 2, image: "{IMAGE}", image_pull_policy: Never, namespace: {jobs.cluster.space}, env_from: [aws], {run}}}
log: {{url: "s3://runs/{name}/log"{more}}}
""")
    return path


def test_code_travels_with_a_program(jobs, _):
    """The pods unpack the folder, run the program there, and its numbers are metrics. A rank that fails runs again."""
    code = jobs.folder / "code"
    (code / "parts").mkdir(parents=True)
    (code / "parts" / "words.sh").write_text("says='it came along'\n")
    (code / "train.sh").write_text('. ./parts/words.sh\necho "$says, rank $RANK of $WORLD_SIZE, attempt $MILLRACE_ATTEMPT"\n'
                                   'for step in 1 2 3; do echo "loss $step.5"; done\n'
                                   'test "$RANK$MILLRACE_ATTEMPT" = 11 && exit 7\nexit 0\n')
    definitions = ", metric_definitions: [{Name: loss, Regex: 'loss ([0-9.]+)'}]"
    path = small(jobs, "travels", f"source: \"{code}\", command: [sh, train.sh], max_restarts: 3", definitions)
    jobs.run("job", "submit", path)
    assert "it came along, rank 0 of 2, attempt 2" in jobs.run("job", "attach", "travels")
    status = jobs.status("travels")
    assert (status["state"], status["restarts"]) == ("done", 1), status
    assert "it came along, rank 1 of 2" in jobs.run("job", "logs", "travels", "--rank", "1")
    found = json.loads(jobs.run("cat", "s3://runs/travels/log/metrics.json"))
    assert "3.5" in json.dumps(found), found


def test_a_sweep_runs_in_the_cluster(jobs, _):
    """Each run is a Job; the metrics come from the bucket. Values are those of runs on this machine."""
    path = jobs.write("swept", f"{{launcher: kubernetes, nodes: 1, processes_per_node: 2, image: \"{IMAGE}\", image_pull_policy: Never, "
                               f"namespace: {jobs.cluster.space}, env_from: [aws]}}")
    path.write_text(path.read_text().replace(f"steps: {STEPS}", "steps: 20") + 'log: {url: "s3://runs/swept/log"}\n')
    vary = ("--vary", "train.optimizer.lr=1e-3,1e-2")
    lines = list(map(json.loads, jobs.run("--json", "job", "sweep", path, *vary, "--at-once", "2").splitlines()))
    assert [line["state"] for line in lines] == ["done", "done"], lines
    here = jobs.folder / "swept-here.yaml"
    here.write_text(path.read_text().replace("name: swept", "name: swept-here").replace("s3://runs/swept", "s3://runs/swept-here"))
    local = ("--set", "run.launcher=local", "--set", "run.image=null", "--set", "run.image_pull_policy=null", "--set", "run.namespace=null",
             "--set", "run.env_from=null")
    wanted = list(map(json.loads, jobs.run("--json", "job", "sweep", here, *vary, *local).splitlines()))
    assert [line["value"] for line in lines] == [line["value"] for line in wanted], (lines, wanted)
    assert [line["best"] for line in lines] == [line["best"] for line in wanted]


def test_a_queue_decides_when_a_job_runs(jobs, wanted):
    """Without Kueue: this test does what it does, by the Job's `suspend`."""
    jobs.submit("queued", more=", queue: team")
    job = jobs.cluster.get("job", "queued")
    assert job["spec"]["suspend"] and job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team", job
    assert jobs.status("queued")["state"] == "queued"
    suspend(jobs, "queued", "job", False)
    jobs.at_step("queued", 60)
    suspend(jobs, "queued", "job", True)  # another job is more important
    jobs.until("queued", lambda status: status["state"] == "queued", "to be suspended")
    suspend(jobs, "queued", "job", False)
    jobs.expect_done("queued", wanted)
    jobs.submit("withdrawn", more=", queue: team")
    jobs.run("job", "stop", "withdrawn")
    assert "withdrawn" not in jobs.cluster.run("get", "jobs", "-o", "name"), "Kueue would let it start again"


@contextlib.contextmanager
def queue_for_one(jobs):
    """A queue of Kueue, "team", with room for one job. Gives the name of a class of priority above the others."""
    name, space = f"tested-{jobs.cluster.space}", jobs.cluster.space
    group = json.loads(jobs.cluster.run("get", "--raw", "/apis/kueue.x-k8s.io"))
    version = {"apiVersion": group["preferredVersion"]["groupVersion"]}
    cpu = {"coveredResources": ["cpu"], "flavors": [{"name": name, "resources": [{"name": "cpu", "nominalQuota": "800m"}]}]}
    jobs.cluster.apply(
        version | {"kind": "ResourceFlavor", "metadata": {"name": name}},
        version | {"kind": "ClusterQueue", "metadata": {"name": name},
                   "spec": {"resourceGroups": [cpu], "preemption": {"withinClusterQueue": "LowerPriority"},
                            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space}}}},
        version | {"kind": "LocalQueue", "metadata": {"name": "team"}, "spec": {"clusterQueue": name}},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000})
    try:
        yield name
    finally:
        for kind in ("localqueue/team", f"clusterqueue/{name}", f"resourceflavor/{name}", f"priorityclass/{name}"):
            jobs.cluster.run("delete", kind, "--wait=false", check=False)


def test_kueue_admits_and_preempts(jobs, wanted):
    with queue_for_one(jobs) as urgent:
        for kind, launcher in (("jobs", "kubernetes"), ("mpijobs", "mpijob"), ("jobsets", "jobset")):
            if not jobs.cluster.has(kind):
                continue
            first, second, third = (f"{word}-{launcher}" for word in ("first", "second", "urgent"))
            team = ", queue: team, resources: {cpu: 250m}"
            jobs.submit(first, launcher, team)
            jobs.at_step(first, 60)
            jobs.submit(second, launcher, team)
            status = jobs.until(second, lambda status: "quota" in status["message"], "to say what its queue lacks")
            assert status["state"] == "queued", status
            jobs.submit(third, launcher, team + f", priority: {urgent}")
            jobs.until(first, lambda status: status["state"] == "queued", "to make room")
            jobs.run("job", "stop", second)
            jobs.expect_done(third, wanted)
            jobs.expect_done(first, wanted)
            assert jobs.status(second)["state"] == "interrupted"
            print(f"   {launcher}: waited, made room, went on", flush=True)


def test_the_cluster_takes_what_render_prints(jobs, _):
    rich = ("priority: system-node-critical, service_account: default, shared_memory: 64MiB, node_selector: {kubernetes.io/os: linux}, "
            "tolerations: [{key: nvidia.com/gpu, operator: Exists}], resources: {cpu: 1, memory: 1Gi}")
    for kind, name in (("job", "kubernetes"), ("mpijob", "mpijob"), ("jobset", "jobset")):
        if not jobs.cluster.has(kind):
            continue
        path = jobs.write(f"rendered-{name}", f"{{nodes: 2, image: \"{IMAGE}\", namespace: {jobs.cluster.space}, env_from: [aws], {rich}}}")
        manifest = jobs.run("job", "render", path, "--launcher", name)
        jobs.cluster.run("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", text=manifest)


ALWAYS = [test_trains, test_a_deleted_pod_saves_and_comes_back, test_a_killed_pod_comes_back,
          test_the_supervisors_pod_comes_back, test_a_stopped_job_saves_and_goes_on_when_submitted_again,
          test_a_suspended_job_keeps_the_run, test_what_cannot_run_says_why, test_a_failed_job_says_why,
          test_code_travels_with_a_program, test_a_sweep_runs_in_the_cluster, test_a_queue_decides_when_a_job_runs,
          test_the_cluster_takes_what_render_prints]
WITH = {"mpijobs": [test_an_mpi_job_trains, test_an_mpi_job_is_suspended, test_an_mpi_job_by_hand], "jobsets": [test_a_job_set_trains],
        "localqueues": [test_kueue_admits_and_preempts]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, type=pathlib.Path)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--image", type=pathlib.Path, help="an archive of an image with OpenMPI")
    parser.add_argument("--only", nargs="*", default=[], help="words of the names of tests")
    arguments = parser.parse_args()
    if why := missing():
        print(f"skipped: {why}")
        sys.exit(77)
    millrace = arguments.millrace.resolve()
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = pathlib.Path(name)
        mpi = load_image(arguments.source, millrace.parent, folder, arguments.image)
        with Store(millrace, folder / "s3") as store, Cluster() as cluster:
            jobs = Jobs(str(millrace), folder, cluster, store.endpoint)
            wanted = jobs.here()
            assert len(wanted) == STEPS
            # Kueue decides about a job of a queue, and not this test.
            kueue = cluster.has("localqueues")
            tests = [test for test in ALWAYS if not kueue or test is not test_a_queue_decides_when_a_job_runs]
            for kind, more in WITH.items():
                if cluster.has(kind):
                    tests += more
                else:
                    print(f"the cluster has no {kind}: {len(more)} tests are left out")
            if not mpi:
                print("the image has no mpirun")
                tests = [test for test in tests if test is not test_an_mpi_job_by_hand]
            for test in tests:
                if arguments.only and not any(word in test.__name__ for word in arguments.only):
                    continue
                start = time.monotonic()
                test(jobs, wanted)
                print(f"ok {test.__name__} ({time.monotonic() - start:.0f} s)", flush=True)


main()
