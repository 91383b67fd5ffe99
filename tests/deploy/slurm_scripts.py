#!/usr/bin/env python3
"""The programs of deploy/slurm on a real Slurm: a job sees its buckets, and leaves nothing behind, however it ends.

    slurm_scripts.py --millrace PROGRAM --source FOLDER

All in a copy of this machine, where the package is installed and removed. Exit status 77: there can be none, or no Slurm is here.
"""
import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "jobs")]
import machine  # noqa: E402
import slurm_cluster  # noqa: E402

SCRIPTS = pathlib.Path("/usr/lib/millrace/slurm")
JOBS = pathlib.Path("/run/millrace/jobs")
LINES = f"""Prolog={SCRIPTS}/prolog
Epilog={SCRIPTS}/epilog
TaskProlog={SCRIPTS}/task-prolog
HealthCheckProgram={SCRIPTS}/node-check
HealthCheckInterval=1
HealthCheckNodeState=ANY
"""
MOUNTS = """# a remark
corpus   s3://corpus   --read-only
scratch  s3://scratch
"""
USER = "tested-user"


class Jobs:
    """Runs within the machine."""
    def __init__(self, folder, cluster):
        self.folder, self.cluster = folder, cluster

    def submit(self, script):
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        return self.cluster.run("sbatch", "--parsable", f"--uid={USER}", "--chdir=/tmp", f"--output={self.folder}/%j.out", path).strip()

    def state(self, job):
        return self.cluster.run("scontrol", "-o", "show", "job", job).split("JobState=")[1].split()[0]

    def node(self):
        line = self.cluster.run("scontrol", "-o", "show", "node", "n1")
        return line.split("State=")[1].split()[0], line.split("Reason=")[1].split(" [")[0] if "Reason=" in line else ""

    def ended(self, job, *states):
        self.cluster.await_that(lambda: self.state(job) in states, f"job {job} to be {states}; it is {self.state(job)}")
        self.nothing_left()

    def nothing_left(self):
        """The epilog has run: the job has ended for Slurm a little earlier."""
        self.cluster.await_that(lambda: not list(JOBS.glob("*")), f"{JOBS} to be empty")
        mounted = [line for line in pathlib.Path("/proc/self/mounts").read_text().splitlines() if str(JOBS) in line]
        assert not mounted, mounted
        self.cluster.await_that(lambda: not daemons(), "the mounts' daemons to end")

    def output(self, job):
        return (self.folder / f"{job}.out").read_text()

    def running(self, job):
        """Waits until a job says that it is there."""
        out = self.folder / f"{job}.out"
        self.cluster.await_that(lambda: out.exists() and "ready" in out.read_text(), f"job {job} to run")


def daemons():
    """The processes of mounts."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if words[0].endswith(b"millrace") and b"mount" in words:
            found.append(int(place.parent.name))
    return found


def cat(url):
    return subprocess.run(["millrace", "cat", url], check=True, stdout=subprocess.PIPE, text=True).stdout


def sees_its_buckets(jobs):
    job = jobs.submit("""cat "$MILLRACE_MOUNT_corpus/words"
srun sh -c 'id -un; stat -c %U "$MILLRACE_MOUNT_scratch"; echo "by a task" >"$MILLRACE_MOUNT_scratch/task"'
touch "$MILLRACE_MOUNT_corpus/mine" && echo "the corpus can be written"
echo ready; read -r _ </tmp/gate""")
    jobs.running(job)
    other = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "ls", str(JOBS / job / "corpus")],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert other.returncode != 0, "another user reads the job's mount"
    pathlib.Path("/tmp/gate").write_text("go\n")
    jobs.ended(job, "COMPLETED")
    said = jobs.output(job)
    assert "mill race\n" in said and f"{USER}\n{USER}\n" in said and "can be written" not in said, said
    assert cat("s3://scratch/task") == "by a task\n"


def killed(jobs):
    for number, disturb in enumerate((lambda job: jobs.cluster.run("scancel", job),
                                      lambda job: jobs.cluster.run("scancel", "--signal=KILL", "--full", job))):
        job = jobs.submit(f"""trap '' TERM
echo written >"$MILLRACE_MOUNT_scratch/before-{number}"
exec 3>"$MILLRACE_MOUNT_scratch/open-{number}"; echo more >&3
cd "$MILLRACE_MOUNT_corpus"; echo ready; while :; do sleep 1000; done""")
        jobs.running(job)
        disturb(job)
        jobs.ended(job, "CANCELLED", "FAILED")
        assert cat(f"s3://scratch/before-{number}") == "written\n"
        assert cat(f"s3://scratch/open-{number}") == "more\n"


def daemon_dies(jobs):
    job = jobs.submit("echo ready; read -r _ </tmp/gate")
    jobs.running(job)
    for daemon in daemons():
        os.kill(daemon, signal.SIGKILL)
    pathlib.Path("/tmp/gate").write_text("go\n")
    jobs.cluster.await_that(lambda: jobs.state(job) == "COMPLETED", "the job to end")
    jobs.nothing_left()
    resume(jobs)


def resume(jobs):
    jobs.cluster.await_that(lambda: "COMPLETING" not in jobs.node()[0], "the node to be free")
    if "DRAIN" in jobs.node()[0]:
        jobs.cluster.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    jobs.cluster.await_that(lambda: jobs.node()[0] == "IDLE", "the node to be idle")


def prolog_fails(jobs):
    """A job does not start without its buckets: Slurm drains the node and keeps the job."""
    mounts = pathlib.Path("/etc/millrace/slurm/default.mounts")
    mounts.write_text(MOUNTS + "models s3://not-there --read-only\n")
    job = jobs.submit("echo ready")
    jobs.cluster.await_that(lambda: "DRAIN" in jobs.node()[0], "the node to be drained")
    jobs.nothing_left()
    jobs.cluster.await_that(lambda: jobs.state(job) == "PENDING", f"job {job} to be kept; it is {jobs.state(job)}")
    out = jobs.folder / f"{job}.out"
    assert not out.exists() or "ready" not in out.read_text(), out.read_text()
    asked = subprocess.run([SCRIPTS / "prolog"], env={"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "0"}, stderr=subprocess.PIPE, text=True)
    assert asked.returncode == 1 and "cannot mount s3://not-there: " in asked.stderr, asked.stderr
    jobs.nothing_left()
    mounts.write_text(MOUNTS + "../etc s3://corpus\n")
    asked = subprocess.run([SCRIPTS / "prolog"], env={"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "0"}, stderr=subprocess.PIPE, text=True)
    assert asked.returncode == 1 and 'default.mounts:4: "../etc" is not a name' in asked.stderr, asked.stderr
    subprocess.run([SCRIPTS / "epilog"], env={"SLURM_JOB_ID": "4711"}, check=True)
    jobs.nothing_left()
    mounts.write_text(MOUNTS)
    jobs.cluster.run("scancel", job)
    resume(jobs)


def unfit_node(jobs):
    conf = pathlib.Path("/etc/millrace/node.conf")
    keys = pathlib.Path("/etc/millrace/slurm/environment").read_text()
    for unfit, reason in (("URLS=s3://corpus AWS_ENDPOINT_URL=http://127.0.0.1:1\n", "network"), ("MOUNTS=/tmp\n", "mount /tmp")):
        conf.write_text(keys + unfit)
        jobs.cluster.await_that(lambda: "DRAIN" in jobs.node()[0], "an unfit node to be drained")
        assert jobs.node()[1].startswith("millrace: ") and reason in jobs.node()[1], jobs.node()
        conf.write_text(keys + "URLS=s3://corpus\n")
        jobs.cluster.await_that(lambda: jobs.node()[0] == "IDLE", "a fit node to be resumed")
    # What an administrator drained stays drained.
    jobs.cluster.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=disk")
    subprocess.run([SCRIPTS / "node-check"], env=jobs.cluster.environment | {"SLURMD_NODENAME": "n1"}, check=True)
    assert "DRAIN" in jobs.node()[0] and jobs.node()[1] == "disk"
    conf.unlink()
    resume(jobs)


def upgrade(jobs):
    """A job that runs meanwhile keeps its mounts."""
    job = jobs.submit('echo ready; read -r _ </tmp/gate; cat "$MILLRACE_MOUNT_corpus/words"')
    jobs.running(job)
    subprocess.run("dpkg -i /packages/millrace_2_*.deb", shell=True, check=True, stdout=subprocess.DEVNULL)
    pathlib.Path("/tmp/gate").write_text("go\n")
    jobs.ended(job, "COMPLETED")
    assert "mill race" in jobs.output(job)


def inside():
    folder = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    os.mkfifo("/tmp/gate")
    os.chmod("/tmp/gate", 0o666)
    with slurm_cluster.SlurmCluster(folder / "slurm", nodes=1, lines=LINES) as cluster:
        # Where Slurm's programs look for it: slurmd does not tell its HealthCheckProgram.
        place = pathlib.Path("/etc/slurm/slurm.conf")
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(folder / "slurm/slurm.conf")
        jobs = Jobs(folder, cluster)
        try:
            for test in (sees_its_buckets, killed, daemon_dies, prolog_fails, unfit_node, upgrade):
                test(jobs)
                print("passed:", test.__name__, flush=True)
        except BaseException:
            print((folder / "slurm/n1.log").read_text()[-3000:], flush=True)
            raise
    return 0


def outside(options):
    why = machine.missing() or slurm_cluster.missing()
    if why:
        print(f"skipped: {why}")
        return 77
    of_millrace = ("/etc/millrace", "/run/millrace", "/usr/lib/millrace", "/usr/bin/millrace", "/lib/systemd/system")
    with tempfile.TemporaryDirectory() as folder, machine.Machine(pathlib.Path(folder) / "machine") as tested:
        before = tested.files(*of_millrace)
        for version in ("1", "2"):
            tested.package(options.millrace, options.source, version, "/packages")
        tested.run("sh", "-c", "dpkg -i /packages/millrace_1_*.deb")
        tested.run("useradd", "--no-create-home", USER)
        variables = tested.store(("corpus", "scratch"))
        tested.write("/tmp/words", "mill race\n")
        tested.run("millrace", "cp", "/tmp/words", "s3://corpus/words", environment=variables)
        tested.write("/etc/millrace/slurm/default.mounts", MOUNTS)
        tested.write("/etc/millrace/slurm/environment", "".join(f"{name}={value}\n" for name, value in variables.items()), 0o600)
        for place in (HERE, HERE.parent / "jobs"):
            shutil.copytree(place, tested.path(f"/tmp/tests/{place.name}"))
        done = subprocess.run(tested.command(["/usr/bin/python3", "/tmp/tests/deploy/slurm_scripts.py", "--inside"], variables),
                              stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            tested.run("rm", "-r", "/etc/millrace/slurm")
            tested.run("dpkg", "--purge", "millrace")
            tested.run("sh", "-c", "rmdir /run/millrace/jobs /run/millrace; rmdir /etc/millrace")
            left = {path for path, state in tested.files(*of_millrace).items() if before.get(path) != state and path != "/lib/systemd/system"}
            assert not left, left
            print("passed: removal")
        return done.returncode


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace")
    parser.add_argument("--source")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    return inside() if options.inside else outside(options)


if __name__ == "__main__":
    sys.exit(main())
