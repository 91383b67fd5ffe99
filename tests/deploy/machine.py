"""A copy of this machine, for tests that install and remove: what happens in it, nobody outside sees.

    with Machine(systemd=True) as machine:
        machine.install_package(millrace, source)
        machine.run("systemctl", "status")

Its root is this machine's, with an overlay that is gone afterwards; /etc/systemd/system, /run, /tmp and /var/lib/millrace are
empty. It has its own processes, the first of which is systemd or, without it, a shell that waits. It shares the network.
"""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import time

START_S = 30
PROGRAMS = ("unshare", "nsenter", "dpkg-deb")
SYSTEMD = "/lib/systemd/systemd"
NAME = "tested-node"
ADDRESS = "198.51.100.11"  # for documentation only (RFC 5737): no other machine has it
# Which files the package has, by the path in the source tree.
PACKAGED = {
    "packaging/systemd": "lib/systemd/system",
    "deploy/slurm/prolog": "usr/lib/millrace/slurm/prolog",
    "deploy/slurm/epilog": "usr/lib/millrace/slurm/epilog",
    "deploy/slurm/task-prolog": "usr/lib/millrace/slurm/task-prolog",
    "deploy/slurm/node-check": "usr/lib/millrace/slurm/node-check",
}
MAKE = r"""
set -euo pipefail
# A copy of another test's mount would keep it alive after its unmount.
while read -r _ point type _; do [[ $type != fuse.* ]] || umount -l "$point" || true; done </proc/mounts
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
rm -rf etc/systemd/system/* etc/millrace var/lib/millrace var/cache/millrace usr/lib/millrace usr/bin/millrace
mount -t proc proc proc
mount --bind proc/sys proc/sys; mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 dev dev
for node in null zero full random urandom tty fuse; do touch "dev/$node"; mount --bind "/dev/$node" "dev/$node"; done
mkdir dev/pts dev/shm; ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
hostname "$NAME"; echo "$NAME" >etc/hostname; echo "127.0.0.1 localhost" >etc/hosts; echo "$ADDRESS $NAME" >>etc/hosts
: >etc/machine-id
if [[ $2 == systemd ]]; then
  # systemd keeps its services in a control group of its own: of version 2, or of version 1 without any controller.
  if [[ $(stat -fc %T /sys/fs/cgroup) == cgroup2fs ]]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
  else
    mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
    mkdir sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
  fi
  # Its other units would touch what the machines share.
  for unit in systemd-udevd systemd-udev-trigger systemd-networkd systemd-resolved systemd-timesyncd systemd-logind; do
    ln -s /dev/null "etc/systemd/system/$unit.service"
  done
  set -- /lib/systemd/systemd --log-target=null --unit=multi-user.target
  ln -s /dev/null etc/systemd/system/getty.target
else
  mount --rbind /sys/fs/cgroup sys/fs/cgroup
  set -- /bin/sh -c 'trap : TERM; while sleep 1000; do :; done'
fi
exec chroot . /usr/bin/env -i container=tested PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
"""


def missing(systemd=False):
    """Why there can be no machine; "" if there can."""
    if os.geteuid() != 0:
        return "a copy of this machine needs root"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if systemd and not os.path.exists(SYSTEMD):
        absent.append("systemd")
    if absent:
        return f"not installed: {', '.join(absent)}"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    mounts = "mount -t tmpfs tmpfs /mnt && mkdir /mnt/u /mnt/w /mnt/r && " \
             "mount -t overlay o -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/r"
    if systemd:
        mounts += " && if [ $(stat -fc %T /sys/fs/cgroup) = cgroup2fs ]; then mount -t cgroup2 c /mnt/r/mnt; " \
                  "else mount -t cgroup -o none,name=systemd c /mnt/r/mnt; fi"
    tried = subprocess.run(["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--uts", "--ipc", "--cgroup", "sh",
                            "-c", mounts], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return "" if tried.returncode == 0 else f"no namespaces or overlays here: {tried.stderr.strip()}"


class Machine:
    def __init__(self, folder, systemd=False):
        self.folder, self.systemd = pathlib.Path(folder), systemd
        self.process, self.first, self.others = None, None, []

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--cgroup",
             "bash", "-c", MAKE, "bash", str(self.folder), "systemd" if self.systemd else "shell"],
            env=os.environ | {"NAME": NAME, "ADDRESS": ADDRESS}, stdin=subprocess.DEVNULL)
        try:
            self.await_that(self.started, "the machine's first process")
            if self.systemd:
                self.await_that(lambda: self.run("systemctl", "is-active", "multi-user.target", check=False).strip() == "active",
                                "systemd to have started")
        except BaseException:
            self.__exit__()
            raise
        return self

    def started(self):
        assert self.process.poll() is None, "the machine did not start"
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        if not children:
            return False
        self.first = int(children[0])
        wanted = "systemd" if self.systemd else "sh"
        return pathlib.Path(f"/proc/{self.first}/comm").read_text().strip() == wanted

    @property
    def root(self):
        """The machine's root, as seen from here."""
        return pathlib.Path(f"/proc/{self.first}/root")

    def path(self, path):
        return self.root / str(path).lstrip("/")

    def write(self, path, text, mode=0o644):
        place = self.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def command(self, words, environment):
        variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        variables |= environment or {}
        return ["nsenter", "--target", str(self.first), "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--root", "--wd",
                "env", "-i", *(f"{name}={value}" for name, value in variables.items()), *map(str, words)]

    def run(self, *words, environment=None, check=True):
        """Returns what a command in the machine prints; its standard error is there too."""
        done = subprocess.run(self.command(words, environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        assert not check or done.returncode == 0, f"{words}: status {done.returncode}\n{done.stdout}"
        return done.stdout

    def status(self, *words, environment=None):
        """Returns the exit status of a command in the machine, and what it prints."""
        done = subprocess.run(self.command(words, environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def start(self, *words, environment=None, log="started.log"):
        with open(self.folder.parent / log, "ab") as output:
            self.others.append(subprocess.Popen(self.command(words, environment), stdin=subprocess.DEVNULL, stdout=output,
                                                stderr=output))

    def package(self, millrace, source, version, folder):
        """Makes a Debian package in a folder of the machine. It has what `make package` puts into millrace, but for documents."""
        tree = self.path("/tmp/package")
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "usr/bin").mkdir(parents=True)
        shutil.copy(millrace, tree / "usr/bin/millrace")
        for origin, place in PACKAGED.items():
            origin, place = pathlib.Path(source) / origin, tree / place
            if origin.is_dir():
                shutil.copytree(origin, place)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, place)
        (tree / "sbin").mkdir()
        (tree / "sbin/mount.millrace").symlink_to("../usr/bin/millrace")
        (tree / "DEBIAN").mkdir()
        architecture = self.run("dpkg", "--print-architecture").strip()
        (tree / "DEBIAN/control").write_text(f"Package: millrace\nVersion: {version}\nArchitecture: {architecture}\n"
                                             "Maintainer: tests\nDescription: Millrace as tests install it\n")
        self.path(folder).mkdir(parents=True, exist_ok=True)
        self.run("dpkg-deb", "--build", "-Znone", "--root-owner-group", "/tmp/package", folder)
        shutil.rmtree(tree)

    def files(self, *folders):
        """Each file, folder and link below folders of the machine: its path, and all that can be changed of it."""
        found = {}
        for folder in folders:
            for place in [self.path(folder), *self.path(folder).rglob("*")]:
                with contextlib.suppress(FileNotFoundError):  # the folder itself, or what a daemon removes meanwhile
                    state = place.lstat()
                    content = os.readlink(place) if place.is_symlink() else place.read_bytes() if place.is_file() else None
                    found["/" + str(place.relative_to(self.root))] = (state.st_mode, state.st_uid, state.st_gid, content)
        return found

    def store(self, buckets=(), program="millrace", key="tested", secret="tested-secret"):
        """Starts an S3 endpoint with buckets; returns the variables by which programs reach it."""
        self.path("/tmp/buckets").mkdir()
        self.start(program, "s3d", "--root", "/tmp/buckets", "--listen", "127.0.0.1:0", "--port-file", "/tmp/port",
                   environment={"MILLRACE_S3D_ACCESS_KEY": key, "MILLRACE_S3D_SECRET_KEY": secret}, log="s3d.log")
        self.await_that(lambda: self.path("/tmp/port").exists() and self.path("/tmp/port").read_text().strip(), "the store")
        variables = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1",
                     "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.path('/tmp/port').read_text().strip()}"}
        for bucket in buckets:
            self.run(program, "mb", f"s3://{bucket}", environment=variables)
        return variables

    def mounts(self):
        """The directories that buckets are mounted on."""
        lines = pathlib.Path(f"/proc/{self.first}/mountinfo").read_text().splitlines()
        fields = [(line.split()[4], line.split(" - ")[1].split()[0]) for line in lines]
        return sorted(directory for directory, kind in fields if kind.startswith("fuse.") or kind == "fuse")

    def daemons(self):
        """The command lines of Millrace's mounts."""
        listed = self.run("ps", "-eo", "args").splitlines()
        return [line for line in listed if "millrace" in line.split()[0] and " mount " in line]

    def await_that(self, holds, what, seconds=START_S):
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"waited {seconds} s for {what}"
            time.sleep(0.05)

    def __exit__(self, *_):
        for process in self.others:
            process.kill()
        self.process.kill()  # its only child, the first process, dies with it, and all others with that one
        for process in [*self.others, self.process]:
            process.wait()


def resource_config(groups):
    """A resource_config.json, from groups of addresses."""
    return json.dumps({"ClusterConfig": {"ClusterName": "tested", "ClusterArn": "arn:aws:sagemaker:us-east-1:000000000000:cluster/t"},
                       "InstanceGroups": [{"Name": group, "InstanceType": "ml.c5.xlarge", "Instances": [
                           {"InstanceName": f"{group}-{number}", "AgentIpAddress": address, "CustomerIpAddress": address,
                            "InstanceId": f"i-{number:017x}"} for number, address in enumerate(addresses, 1)]}
                           for group, addresses in groups.items()]}, indent=2)
