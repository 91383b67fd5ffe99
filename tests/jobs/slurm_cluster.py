"""A Slurm with several nodes on loopback, for tests: munged, slurmctld and one slurmd a node, with their files in one folder.

    with SlurmCluster(folder, nodes=3) as cluster:
        cluster.run("sbatch", …)
"""
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
START_S = 120


def missing():
    """Why there can be no cluster; "" if there can."""
    if os.geteuid() != 0:
        return "a Slurm of several nodes on one machine needs root"
    path = os.environ["PATH"] + ":/usr/sbin"
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class SlurmCluster:
    def __init__(self, folder, nodes, lines=""):
        """lines: more of slurm.conf."""
        self.lines = lines
        self.folder, self.nodes = pathlib.Path(folder), [f"n{i + 1}" for i in range(nodes)]
        self.environment = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": os.environ["PATH"] + ":/usr/sbin"}
        self.daemons, self.sockets = [], None

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        # The folder of a test may be too deep for a socket's path, which has at most 107 bytes: jobs would not start then.
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="millrace-slurm-", dir="/tmp"))
        munge, spool = self.sockets / "munge", self.sockets / "spool"
        for folder in (munge, spool, self.folder / "state"):
            folder.mkdir()
        # munged wants that its socket's folder can be reached.
        for folder in (self.sockets, munge):
            folder.chmod(0o755)
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        ports = free_ports(1 + len(self.nodes))
        lines = [f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={os.cpu_count()} RealMemory=1000"
                 for name, port in zip(self.nodes, ports[1:])]
        (self.folder / "slurm.conf").write_text(f"""ClusterName=tested
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={munge}/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=100000,bf_interval=1
ReturnToService=0
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{os.linesep.join(lines)}
PartitionName=main Nodes={','.join(self.nodes)} Default=YES State=UP PriorityTier=1
PartitionName=urgent Nodes={','.join(self.nodes)} State=UP PriorityTier=9
{self.lines}""")
        self.daemon("munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
                    f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed")
        self.await_that(lambda: (munge / "socket").exists(), "munged")
        self.daemon("slurmctld", "-D")
        for name in self.nodes:
            self.daemon("slurmd", "-D", "-N", name, log=f"{name}.log")
        self.await_that(lambda: self.run("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D", check=False).strip() ==
                        str(len(self.nodes)), "all nodes to be idle")

    def daemon(self, *command, log=None):
        with open(self.folder / (log or f"{command[0]}.log"), "ab") as output:
            self.daemons.append(subprocess.Popen(command, env=self.environment, stdout=output, stderr=output))

    def lose(self, node):
        """Ends a node's daemon and all that it started at once, as a machine that loses its power would."""
        log, mine = str(self.folder / f"{node}.log"), f"SLURMD_NODENAME={node}".encode()
        conf = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        daemons, tasks = [], []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
                if any(os.readlink(fd) == log for fd in (process / "fd").iterdir()):
                    daemons.append(int(process.name))
                elif mine in environment and conf in environment:
                    tasks.append(int(process.name))
            except OSError:  # it has ended
                pass
        for pid in daemons + tasks:  # a lost machine reports nothing: daemons first
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def revive(self, node):
        """Brings a lost node back."""
        self.daemon("slurmd", "-D", "-N", node, log=f"{node}.log")
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        self.await_that(lambda: self.run("sinfo", "-h", "-n", node, "-p", "main", "-o", "%T").strip() == "idle", f"{node} to be idle")

    def run(self, *command, check=True):
        """Returns what a command of Slurm prints."""
        return subprocess.run([str(word) for word in command], env=self.environment, check=check, stdout=subprocess.PIPE,
                              stderr=None if check else subprocess.DEVNULL, text=True).stdout

    def keepers_of(self, slurm_id):
        """The processes (slurmstepd) that keep steps of a job."""
        return self.keepers(f"slurmstepd: [{slurm_id}.")

    def keepers(self, title="slurmstepd: ["):
        """The processes of this cluster that keep steps, by the beginning of their titles."""
        mine = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cmdline").read_bytes().startswith(title.encode()) and \
                        mine in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:  # it has ended
                pass
        return found

    def await_that(self, holds, what, seconds=START_S):
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {seconds} s for {what}")
            time.sleep(0.05)

    def __exit__(self, *_):
        if len(self.daemons) > 1:
            self.run("scancel", "--full", "--user=root", "--signal=KILL", check=False)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for keeper in self.keepers():  # of a step that did not end in time; its processes die with it
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)
        if self.sockets is not None:
            shutil.rmtree(self.sockets, ignore_errors=True)
