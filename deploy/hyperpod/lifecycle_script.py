#!/usr/bin/env python3
"""Installs Millrace on a node of a SageMaker HyperPod cluster, mounts buckets by systemd and enables the health checks.

    lifecycle_script.py -rc RESOURCE_CONFIG -pp PROVISIONING_PARAMETERS [--remove]

Run again, it changes what differs from the parameters and nothing else. --remove takes away all that it made. The first step
that fails ends it, with status 1 and a sentence that names the step.
"""
import argparse
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

SETTINGS = pathlib.Path("/etc/millrace")
# A file that begins so was written here, and is changed and removed here.
HEAD = "# Written by Millrace's HyperPod lifecycle script from provisioning_parameters.json.\n"
SLURM_CONF = "/opt/slurm/etc/slurm.conf"
NODE_CHECK = "/usr/lib/millrace/slurm/node-check"
SLURM_LINES = f"""HealthCheckProgram={NODE_CHECK}
HealthCheckInterval=300
HealthCheckNodeState=ANY
"""
SLURM_BEGIN, SLURM_END = "# Begin of Millrace's lines\n", "# End of Millrace's lines\n"
PACKAGES = ("millrace", "millrace-engine", "millrace-arrow", "python3-millrace")
KEYS = {
    "millrace": {"packages", "environment", "mounts", "node_check"},
    "mounts": {"name", "url", "directory", "flags", "groups"},
    "node_check": {"by", "urls", "on_failure", "slurm_conf"},
}


class Failure(Exception):
    """A sentence for the user."""


def say(text):
    print(f"millrace: {text}", flush=True)


def run(step, *command, cure=""):
    """Returns what a command prints; step names it in the sentence that a failure gives."""
    try:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True)
    except FileNotFoundError:
        raise Failure(f"{step}: {command[0]} is not installed on this node")
    if done.returncode != 0:
        last = "\n".join(done.stdout.strip().splitlines()[-5:])
        raise Failure(f"{step}: `{' '.join(map(str, command))}` ended with status {done.returncode}: {last}{cure}")
    return done.stdout


def succeeds(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def read(path):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}")
    except ValueError as error:
        raise Failure(f"{path} is not JSON: {error}")


def write(path, text, mode=0o600):
    """Writes a file whole or not at all, if it differs. Returns whether it did."""
    path = pathlib.Path(path)
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=str(path.parent), prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(part, mode)
    os.replace(part, str(path))
    return True


def users_of(directory):
    """The processes that have something open below a directory, as "NAME (PID)"."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            links = [process / "cwd", process / "root", process / "exe", *(process / "fd").iterdir(), *(process / "map_files").iterdir()]
            for link in links:
                try:
                    if (os.readlink(str(link)) + "/").startswith(directory + "/"):
                        found.append(f"{(process / 'comm').read_text().strip()} ({process.name})")
                        break
                except OSError:  # closed meanwhile, or a thread of the kernel
                    pass
        except OSError:  # it has ended
            pass
    return found


class Parameters:
    """The key "millrace" of provisioning_parameters.json, checked, and the groups of the cluster."""
    def __init__(self, path):
        everything = read(path)
        self.path, self.folder = path, pathlib.Path(path).resolve().parent
        self.controller, self.login = everything.get("controller_group"), everything.get("login_group")
        self.workers = [group["instance_group_name"] for group in everything.get("worker_groups", [])]
        if "millrace" not in everything:
            raise Failure(f'{path} has no key "millrace"; see provisioning_parameters.json of Millrace')
        values = everything["millrace"]
        self.known(values, "millrace")
        self.packages = values.get("packages")
        self.environment = values.get("environment", {})
        for name, value in self.environment.items():
            if not re.fullmatch(r"[A-Za-z_]\w*", name) or not isinstance(value, str) or re.search(r"[^ -~]|[\"\\$`]", value):
                raise Failure(f'{path}: environment: "{name}" is not a name with a text of printable characters, without " \\ $ and `')
        self.mounts = values.get("mounts", [])
        for mount in self.mounts:
            self.check(mount)
        for key in ("name", "directory"):
            named = [mount[key] for mount in self.mounts]
            for value in named:
                if named.count(value) > 1:
                    raise Failure(f'{path}: mounts: two have the {key} "{value}"')
        self.node_check = values.get("node_check")
        if self.node_check is not None:
            self.known(self.node_check, "node_check")
            for key, allowed in (("by", ("timer", "slurm")), ("on_failure", ("drain", "replace", "report"))):
                if self.node_check.get(key, allowed[0]) not in allowed:
                    raise Failure(f'{path}: node_check: {key} is one of {", ".join(allowed)}')
            for url in self.node_check.get("urls", []):
                self.word(url, "node_check: urls")

    def known(self, values, what):
        for key in values:
            if key not in KEYS[what]:
                raise Failure(f'{self.path}: {what} has no key "{key}"; it has {", ".join(sorted(KEYS[what]))}')

    def word(self, value, what):
        if not isinstance(value, str) or not re.fullmatch(r"[!#%&'()*+,\-./0-9:;<=>?@A-Z\[\]^_a-z{|}~]+", value):
            raise Failure(f'{self.path}: {what}: "{value}" is not a text without spaces, quotation marks, \\, $ and `')

    def check(self, mount):
        self.known(mount, "mounts")
        for key in ("name", "url", "directory"):
            if key not in mount:
                raise Failure(f'{self.path}: mounts: one has no "{key}"')
            self.word(mount[key], f"mounts: {key}")
        for flag in mount.get("flags", []):
            self.word(flag, "mounts: flags")
        if not re.fullmatch(r"[A-Za-z0-9_]+", mount["name"]) or mount["name"] == "node":
            raise Failure(f'{self.path}: mounts: "{mount["name"]}" is not a name: letters, digits and _, and not "node"')
        if not mount["directory"].startswith("/") or os.path.normpath(mount["directory"]) != mount["directory"] or \
                mount["directory"] == "/":
            raise Failure(f'{self.path}: mounts: "{mount["directory"]}" is not an absolute path, such as /mnt/corpus')
        for group in mount.get("groups", []):
            if group not in [self.controller, self.login, *self.workers]:
                raise Failure(f'{self.path}: mounts: {mount["name"]}: there is no group "{group}" in this file')


def addresses():
    """The addresses of this node."""
    found = set(run("to find this node's addresses", "hostname", "-I").split())
    try:
        found |= set(socket.gethostbyname_ex(socket.gethostname())[2])
    except OSError:  # the name service does not know it
        pass
    return found


def group_of_this_node(resource_config):
    mine = addresses()
    for group in read(resource_config).get("InstanceGroups", []):
        for instance in group["Instances"]:
            if instance["CustomerIpAddress"] in mine:
                return group["Name"]
    raise Failure(f"no instance in {resource_config} has an address of this node ({', '.join(sorted(mine))})")


class Node:
    def __init__(self, parameters, group):
        self.parameters, self.group = parameters, group
        self.changes = 0

    def changed(self, text):
        self.changes += 1
        say(text)

    # Packages

    def install(self):
        if self.parameters.packages is None:
            if not succeeds("millrace", "--version"):
                raise Failure(f'millrace is not installed on this node; name a folder or bucket as "packages" in {self.parameters.path}')
            return
        with tempfile.TemporaryDirectory() as folder:
            wanted = self.packages_in(self.fetch(folder))
            missing = {name: package for name, package in wanted.items() if self.installed(name) != package[1]}
            if not missing:
                return
            files = [str(path) for path, _ in missing.values()]
            upgraded = any(self.installed(name) for name in missing)
            command = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "--no-install-recommends",
                       "--allow-downgrades", "-o", "DPkg::Lock::Timeout=300", *files)
            # Packages that need nothing more are installed without a network.
            if not succeeds(*command[:3], "--no-download", *command[3:]):
                run("to update the lists of packages", "apt-get", "-o", "DPkg::Lock::Timeout=300", "update")
                run("to install Millrace", *command,
                    cure="\nThe packages must be made on the distribution of the nodes: `make package` there.")
            self.changed("installed " + ", ".join(f"{name} {version}" for name, (_, version) in missing.items()))
            if upgraded and self.ours():
                say("mounts run the old program until they are restarted, best when no job uses them: " +
                    "; ".join(f"systemctl restart millrace@{name}" for name in self.ours()))

    def fetch(self, folder):
        """The folder with the packages, on this node."""
        source = self.parameters.packages
        if not source.startswith("s3://"):
            return self.parameters.folder / source
        environment = [f"{name}={value}" for name, value in self.parameters.environment.items()]
        done = subprocess.run(["env", *environment, "aws", "s3", "cp", source.rstrip("/") + "/", folder, "--recursive", "--exclude", "*",
                               "--include", "*.deb", "--only-show-errors"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True)
        if done.returncode != 0:  # not by run(): its sentence would have the environment's secrets
            raise Failure(f"to fetch packages from {source}: aws s3 cp ended with status {done.returncode}: {done.stdout.strip()}")
        os.chmod(folder, 0o755)  # apt reads them as a user without rights
        return pathlib.Path(folder)

    def packages_in(self, folder):
        if not folder.is_dir():
            raise Failure(f"packages: {folder} is not a folder")
        found = {}
        for path in sorted(folder.glob("*.deb")):
            name, version = run("to read a package", "dpkg-deb", "--show", "--showformat=${Package} ${Version}", path).split()
            if name not in PACKAGES:
                continue
            if name in found:
                raise Failure(f"packages: {folder} has {name} twice: {found[name][0].name} and {path.name}")
            found[name] = (path, version)
        if "millrace" not in found:
            raise Failure(f"packages: {self.parameters.packages} has no file millrace_VERSION_ARCHITECTURE.deb")
        return found

    @staticmethod
    def installed(name):
        done = subprocess.run(["dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${Version}", name], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, universal_newlines=True)
        words = done.stdout.split()
        return words[1] if done.returncode == 0 and words[0] == "ii" else None

    # Mounts

    @staticmethod
    def ours():
        """The names of the mounts that were made here."""
        files = SETTINGS.glob("*.conf") if SETTINGS.is_dir() else []
        return sorted(path.stem for path in files if path.stem != "node" and path.read_text().startswith(HEAD))

    def variables(self, values):
        return HEAD + "".join(f'{name}="{value}"\n' for name, value in values.items())

    def here(self):
        """The mounts of this node's group."""
        return [mount for mount in self.parameters.mounts if self.group in mount.get("groups", [self.group])]

    def mount(self):
        wanted = self.here()
        for name in self.ours():
            if name not in [mount["name"] for mount in wanted]:
                self.unmount(name)
        for mount in wanted:
            name, directory = mount["name"], mount["directory"]
            path = SETTINGS / f"{name}.conf"
            if path.exists() and not path.read_text().startswith(HEAD):
                raise Failure(f"to mount {directory}: {path} was not written by this script; remove it or choose another name")
            values = dict(self.parameters.environment, URL=mount["url"], DIRECTORY=directory, FLAGS=" ".join(mount.get("flags", [])))
            text = self.variables(values)
            moved = path.exists() and f'DIRECTORY="{directory}"\n' not in path.read_text()
            if moved:
                self.unmount(name)
            units = (f"millrace@{name}.service", f"millrace-check@{name}.timer")
            if path.exists() and path.read_text() != text:
                self.unused(f"to mount {directory} with its new settings", directory)
            if write(path, text):
                self.changed(f"wrote {path}")
                if not moved and succeeds("systemctl", "is-active", "--quiet", units[0]):
                    run(f"to mount {directory} with its new settings", "systemctl", "restart", units[0])
                    self.changed(f"mounted {directory} anew")
            for unit in units:
                if succeeds("systemctl", "is-enabled", "--quiet", unit) and succeeds("systemctl", "is-active", "--quiet", unit):
                    continue
                try:
                    run(f"to start {unit}", "systemctl", "enable", "--now", unit)
                except Failure as failure:
                    said = subprocess.run(["journalctl", "--unit", unit, "--lines", "5", "--output", "cat", "--no-pager"],
                                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True).stdout.strip()
                    subprocess.run(["systemctl", "disable", "--now", *units], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    raise Failure(f"{failure}\n{said}")
                self.changed(f"started {unit}")
            run(f"to use {directory}", "millrace", "--quiet", "mount", "--check", directory, "--check-timeout", "30s")

    @staticmethod
    def unused(step, directory):
        """systemd would end a daemon also under programs that use its mount."""
        users = users_of(directory)
        if users:
            raise Failure(f"{step}: it is in use by {', '.join(users[:5])}; end these programs, or let their jobs end, and run this again")

    def unmount(self, name):
        path = SETTINGS / f"{name}.conf"
        directory = re.search(r'^DIRECTORY="(.*)"$', path.read_text(), re.MULTILINE).group(1)
        self.unused(f"to unmount {directory}", directory)
        run(f"to stop the check of {directory}", "systemctl", "disable", "--now", f"millrace-check@{name}.timer")
        # Waits until everything written is in the bucket.
        run(f"to unmount {directory}", "systemctl", "disable", "--now", f"millrace@{name}.service")
        subprocess.run(["systemctl", "reset-failed", f"millrace@{name}.service", f"millrace-check@{name}.service"],
                       stderr=subprocess.DEVNULL)
        if os.path.isdir(directory) and not os.listdir(directory):
            os.rmdir(directory)
        path.unlink()
        self.changed(f"unmounted {directory}")

    # Health checks

    def check_node(self):
        check = self.parameters.node_check
        path, timer = SETTINGS / "node.conf", "millrace-node-check.timer"
        if check is None:
            self.forget_node_check()
            return
        if path.exists() and not path.read_text().startswith(HEAD):
            raise Failure(f"to enable the health check: {path} was not written by this script; remove it")
        values = dict(self.parameters.environment, URLS=" ".join(check.get("urls", [])),
                      MOUNTS=" ".join(mount["directory"] for mount in self.here()), ON_FAILURE=check.get("on_failure", "drain"))
        if write(path, self.variables(values)):
            self.changed(f"wrote {path}")
        by_slurm = check.get("by", "timer") == "slurm"
        if by_slurm and self.group == self.parameters.controller:
            self.slurm_conf(check.get("slurm_conf", SLURM_CONF), SLURM_LINES)
        elif not by_slurm and self.group in self.parameters.workers:
            if not succeeds("systemctl", "is-enabled", "--quiet", timer) or not succeeds("systemctl", "is-active", "--quiet", timer):
                run("to enable the health check", "systemctl", "enable", "--now", timer)
                self.changed(f"started {timer}")
        if by_slurm and succeeds("systemctl", "is-enabled", "--quiet", timer):
            run("to disable the timer of the health check", "systemctl", "disable", "--now", timer)
            self.changed(f"stopped {timer}")
        if not by_slurm:
            self.slurm_conf(check.get("slurm_conf", SLURM_CONF), "")

    def forget_node_check(self):
        path, timer = SETTINGS / "node.conf", "millrace-node-check.timer"
        if succeeds("systemctl", "is-enabled", "--quiet", timer):
            run("to disable the health check", "systemctl", "disable", "--now", timer)
            subprocess.run(["systemctl", "reset-failed", "millrace-node-check.service"], stderr=subprocess.DEVNULL)
            self.changed(f"stopped {timer}")
        if path.exists() and path.read_text().startswith(HEAD):
            path.unlink()
            self.changed(f"removed {path}")
        self.slurm_conf((self.parameters.node_check or {}).get("slurm_conf", SLURM_CONF), "")

    def slurm_conf(self, path, lines):
        """Has these lines, or none, in the controller's slurm.conf."""
        path = pathlib.Path(path).resolve()
        if not path.exists():
            if lines:
                raise Failure(f"to enable the health check: there is no {path}; set up Slurm before Millrace, or name the file as "
                              "slurm_conf of node_check")
            return
        old = path.read_text()
        rest = re.sub(f"{re.escape(SLURM_BEGIN)}.*?{re.escape(SLURM_END)}", "", old, flags=re.DOTALL)
        other = re.search(r"^\s*HealthCheckProgram\s*=\s*(\S+)", rest, re.MULTILINE | re.IGNORECASE)
        if lines and other:
            raise Failure(f"to enable the health check: {path} has HealthCheckProgram={other.group(1)} already; call {NODE_CHECK} in "
                          'that program, or choose "by": "timer"')
        new = rest + ("" if rest.endswith("\n") or not lines else "\n") + (SLURM_BEGIN + lines + SLURM_END if lines else "")
        if new == old:
            return
        state = path.stat()
        write(path, new, state.st_mode & 0o7777)
        os.chown(str(path), state.st_uid, state.st_gid)
        run("to make Slurm read its settings", "scontrol", "reconfigure")
        self.changed(f"{'wrote' if lines else 'removed'} the health check in {path}")

    # All of it

    def create(self):
        self.install()
        self.mount()
        self.check_node()
        say(f"this node, of group {self.group}, is ready" if self.changes else f"nothing to do on this node, of group {self.group}")

    def remove(self):
        for name in self.ours():
            self.unmount(name)
        self.forget_node_check()
        staged = pathlib.Path("/var/cache/millrace/staging")
        left = [path for path in staged.rglob("*.record")] if staged.is_dir() else []
        if left:
            raise Failure(f"{staged} has {len(left)} files that are not in a bucket yet: `millrace mount URL --recover --staging-dir "
                          f"{staged}` uploads them; Millrace stays installed until then")
        gone = [name for name in PACKAGES if self.installed(name)] if self.parameters.packages is not None else []
        if gone:
            run("to remove Millrace", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "purge", "-y", "-o", "DPkg::Lock::Timeout=300",
                *gone)
            self.changed("removed " + ", ".join(gone))
        run("to remove the cache", "rm", "-rf", "--one-file-system", "/var/cache/millrace", "/run/millrace")
        if SETTINGS.is_dir() and not any(SETTINGS.iterdir()):
            SETTINGS.rmdir()
        say("Millrace is removed from this node" if self.changes else "Millrace was not on this node")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-rc", "--resource_config", default=os.environ.get("SAGEMAKER_RESOURCE_CONFIG_PATH",
                                                                           "/opt/ml/config/resource_config.json"))
    parser.add_argument("-pp", "--provisioning_parameters", default="provisioning_parameters.json")
    parser.add_argument("--remove", action="store_true", help="take away all that was made here")
    options = parser.parse_args()
    try:
        if os.geteuid() != 0:
            raise Failure("this script must run as root")
        node = Node(Parameters(options.provisioning_parameters), group_of_this_node(options.resource_config))
        node.remove() if options.remove else node.create()
    except Failure as failure:
        print(f"millrace: failed {failure}" if str(failure).startswith("to ") else f"millrace: {failure}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
