#!/usr/bin/env python3
"""The lifecycle scripts of deploy/hyperpod on a node with systemd: created, changed, upgraded, disturbed and removed.

    hyperpod_lifecycle.py --millrace PROGRAM --source FOLDER

The node is a copy of this machine with systemd as its first process, and with a made-up resource_config.json. Its package is
installed by apt. Exit status 77: there can be none.
"""
import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import machine

FOLDER = "/lifecycle"
PARAMETERS = f"{FOLDER}/provisioning_parameters.json"
RESOURCES = "/opt/ml/config/resource_config.json"
CONF = "/opt/slurm/etc/slurm.conf"
WORKER, CONTROLLER = "worker-group-1", "controller-machine"
OF_MILLRACE = ("/etc", "/mnt", "/opt/slurm", "/usr/lib/millrace", "/usr/bin/millrace", "/sbin/mount.millrace", "/lib/systemd/system",
               "/run/millrace", "/var/cache/millrace")


class Test:
    def __init__(self, node, store):
        self.node, self.store = node, store
        example = json.loads(node.path(PARAMETERS).read_text())
        self.example = example["millrace"]
        assert set(self.example) == {"packages", "environment", "mounts", "node_check"}, "the example has all keys"
        self.parameters = example
        self.parameters["millrace"] = {
            "packages": "packages-1", "environment": store, "node_check": {"by": "timer", "urls": ["s3://corpus"]},
            "mounts": [{"name": "corpus", "url": "s3://corpus", "directory": "/mnt/corpus", "groups": [WORKER],
                        "flags": ["--read-only", "--allow-other"]},
                       {"name": "runs", "url": "s3://runs", "directory": "/mnt/runs", "flags": ["--allow-other", "--dir-mode", "0777"]}]}

    def group(self, name):
        """This node is one of that group."""
        groups = {CONTROLLER: ["198.51.100.1"], WORKER: ["198.51.100.2"]}
        groups[name].append(machine.ADDRESS)
        self.node.write(RESOURCES, machine.resource_config(groups))

    def create(self, **changes):
        parameters = dict(self.parameters, millrace=dict(self.parameters["millrace"], **changes))
        self.node.write(PARAMETERS, json.dumps(parameters))
        return self.node.status("bash", f"{FOLDER}/on_create.sh")

    def created(self, **changes):
        status, said = self.create(**changes)
        assert status == 0, said
        return said

    def fails(self, sentence, **changes):
        status, said = self.create(**changes)
        assert status == 1 and sentence in said and "Traceback" not in said, said

    def active(self, unit):
        return self.node.run("systemctl", "is-active", unit, check=False).strip() == "active"

    def invocation(self, unit):
        return self.node.run("systemctl", "show", "--property=InvocationID,MainPID", unit)

    def words(self):
        return self.node.status("cat", "/mnt/corpus/words")[1] == "mill race\n"


def wrong_parameters(test):
    test.fails('millrace has no key "mount"', mount=[])
    test.fails('"../corpus" is not an absolute path', mounts=[{"name": "c", "url": "s3://corpus", "directory": "../corpus"}])
    test.fails('there is no group "nodes"', mounts=[{"name": "c", "url": "s3://corpus", "directory": "/mnt/c", "groups": ["nodes"]}])
    test.fails('"--log-file a b" is not a text without spaces',
               mounts=[{"name": "c", "url": "s3://corpus", "directory": "/mnt/c", "flags": ["--log-file a b"]}])
    test.fails(f"packages: {FOLDER}/nothing is not a folder", packages="nothing")
    test.node.write(RESOURCES, machine.resource_config({WORKER: ["198.51.100.2"]}))
    test.fails("has an address of this node")
    test.node.path(RESOURCES).unlink()
    assert "no node of a HyperPod cluster" in test.created()
    assert test.node.status("dpkg-query", "--show", "millrace")[0] != 0 and not test.node.path("/etc/millrace").exists()


def bucket_is_not_there(test):
    """The step that fails is named, with the reason; what came before it stays, and the next run goes on."""
    test.fails("millrace: failed to start millrace@models.service", mounts=[
        {"name": "models", "url": "s3://not-there", "directory": "/mnt/models"}])
    assert "The specified bucket does not exist" in test.node.path("/var/log/provision/millrace.log").read_text()
    assert not test.node.mounts() and not test.active("millrace@models")


def created(test):
    said = test.created()
    assert test.node.mounts() == ["/mnt/corpus", "/mnt/runs"], test.node.mounts()
    assert "unmounted /mnt/models" in said and not test.node.path("/mnt/models").exists(), said
    assert test.words()
    assert test.node.status("touch", "/mnt/corpus/mine")[0] != 0, "--read-only"
    test.node.run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", "echo written >/mnt/runs/by-a-user")
    assert test.node.run("millrace", "cat", "s3://runs/by-a-user", environment=test.store) == "written\n"
    for unit in ("millrace@corpus", "millrace-check@corpus.timer", "millrace-check@runs.timer", "millrace-node-check.timer"):
        assert test.active(unit), unit
    assert test.node.path("/etc/millrace/corpus.conf").stat().st_mode & 0o777 == 0o600, "it may have secrets"
    test.node.run("systemctl", "start", "millrace-node-check.service")
    log = test.node.path("/var/log/provision/millrace.log").read_text()
    assert said in log and test.store["AWS_SECRET_ACCESS_KEY"] not in log


def again(test):
    """Nothing is changed, and the mounts' daemons go on."""
    files, daemons = test.node.files("/etc", "/mnt", "/lib/systemd/system"), test.invocation("millrace@corpus")
    assert "nothing to do on this node, of group worker-group-1" in test.created()
    assert test.node.files("/etc", "/mnt", "/lib/systemd/system") == files
    assert test.invocation("millrace@corpus") == daemons


def mounted_anew(test):
    # The daemon is killed: systemd starts another.
    before = test.invocation("millrace@corpus")
    test.node.run("systemctl", "kill", "--signal=KILL", "millrace@corpus")
    test.node.await_that(lambda: test.invocation("millrace@corpus") != before and test.active("millrace@corpus") and test.words(),
                         "a new daemon")
    # Somebody unmounts: the daemon has done its work, and the check mounts anew.
    test.node.run("umount", "/mnt/corpus")
    test.node.await_that(lambda: not test.active("millrace@corpus"), "the daemon to end")
    assert not test.words()
    status, said = test.node.status("systemctl", "start", "millrace-node-check.service")
    assert status != 0, "a node without its mount is not fit"
    test.node.run("systemctl", "start", "millrace-check@corpus.service")
    assert test.active("millrace@corpus") and test.words()
    listed = test.node.run("systemctl", "list-timers", "--no-pager")
    assert all(timer in listed for timer in ("millrace-check@corpus.timer", "millrace-check@runs.timer", "millrace-node-check.timer"))


def upgraded(test):
    daemon = test.invocation("millrace@corpus")
    said = test.created(packages="packages-2")
    assert "installed millrace 2" in said and "systemctl restart millrace@corpus" in said, said
    assert test.invocation("millrace@corpus") == daemon and test.words()
    test.node.run("systemctl", "restart", "millrace@corpus")
    assert test.words()
    test.parameters["millrace"]["packages"] = "packages-2"
    assert "nothing to do" in test.created()


def changed(test):
    mounts = test.parameters["millrace"]["mounts"]
    corpus = dict(mounts[0], directory="/mnt/texts")
    assert "unmounted /mnt/corpus" in test.created(mounts=[corpus])
    assert test.node.mounts() == ["/mnt/texts"] and not test.node.path("/mnt/runs").exists()
    test.created(mounts=[dict(corpus, flags=["--allow-other"])])
    test.node.run("touch", "/mnt/texts/mine")
    test.created()
    assert test.node.mounts() == ["/mnt/corpus", "/mnt/runs"]
    test.node.write("/etc/millrace/models.conf", "URL=s3://models\n")
    test.fails("/etc/millrace/models.conf was not written by this script",
               mounts=[*mounts, {"name": "models", "url": "s3://corpus", "directory": "/mnt/models"}])
    test.node.path("/etc/millrace/models.conf").unlink()


def controller(test):
    """By Slurm: the lines are in the controller's slurm.conf. A stand-in for scontrol writes down that it was called."""
    test.group(CONTROLLER)
    original = "ClusterName=tested\nHealthCheckProgram=/opt/other\n"
    test.node.write(CONF, original)
    test.node.write("/usr/local/bin/scontrol", '#!/bin/sh\necho "$*" >>/tmp/scontrol.log\n', 0o755)
    test.fails("has HealthCheckProgram=/opt/other already", node_check={"by": "slurm"})
    test.node.write(CONF, "ClusterName=tested\n")
    assert "wrote the health check" in test.created(node_check={"by": "slurm"})
    assert "\nHealthCheckProgram=/usr/lib/millrace/slurm/node-check\n" in test.node.path(CONF).read_text()
    assert test.node.path("/tmp/scontrol.log").read_text() == "reconfigure\n"
    assert test.node.mounts() == ["/mnt/runs"], "the corpus is for workers"
    assert not test.active("millrace-node-check.timer")
    assert "nothing to do" in test.created(node_check={"by": "slurm"})
    test.created(node_check=None)
    assert test.node.path(CONF).read_text() == "ClusterName=tested\n"
    test.node.run("rm", "-r", "/opt/slurm", "/usr/local/bin/scontrol")
    test.group(WORKER)
    test.created()


def packages_in_a_bucket(test):
    """A stand-in for the AWS command line fetches them."""
    test.node.write("/usr/local/bin/aws", """#!/bin/sh
[ "$1 $2 $5 $6 $7 $8 $9" = "s3 cp --recursive --exclude * --include *.deb" ] && [ -n "$AWS_ENDPOINT_URL" ] || exit 2
exec millrace --quiet cp --recursive "$3" "$4"
""", 0o755)
    test.node.run("sh", "-c", f"millrace --quiet cp {FOLDER}/packages-1/*.deb s3://runs/packages/", environment=test.store)
    assert "installed millrace 1" in test.created(packages="s3://runs/packages")
    assert "nothing to do" in test.created(packages="s3://runs/packages/")
    test.fails("to fetch packages from s3://not-there: aws s3 cp ended with status", packages="s3://not-there")
    test.node.path("/usr/local/bin/aws").unlink()


def in_use(test, remove):
    """A mount that a program uses stays as it is."""
    test.created()
    test.node.start("sh", "-c", "cd /mnt/runs && echo written >in-use && exec sleep 1000")
    test.node.await_that(lambda: test.node.path("/mnt/runs/in-use").exists(), "the program to start")
    status, said = test.node.status(*remove)
    assert status == 1 and "/mnt/runs" in said and "in use" in said, said
    assert test.node.status("dpkg-query", "--show", "millrace")[0] == 0
    test.node.run("pkill", "--full", "^sleep 1000$")
    assert test.node.run("millrace", "cat", "s3://runs/in-use", environment=test.store) == "written\n"


def removed(test, before):
    remove = ("python3", f"{FOLDER}/lifecycle_script.py", "-pp", PARAMETERS, "--remove")
    in_use(test, remove)
    status, said = test.node.status(*remove)
    assert status == 0 and "Millrace is removed" in said, said
    after = test.node.files(*OF_MILLRACE)
    left = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert not left, left
    assert not test.node.mounts() and not test.node.daemons()
    # systemd forgets a unit some time after its end.
    test.node.await_that(lambda: "millrace" not in test.node.run(
        "systemctl", "list-units", "--all", "--no-pager", "--type=service,timer,mount"), "the end of all units")
    assert "Millrace was not on this node" in test.node.run(*remove)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--source", required=True)
    options = parser.parse_args()
    why = machine.missing(systemd=True) or ("" if shutil.which("apt-get") else "not installed: apt-get")
    if why:
        print(f"skipped: {why}")
        return 77
    with tempfile.TemporaryDirectory() as folder, machine.Machine(pathlib.Path(folder) / "machine", systemd=True) as node:
        shutil.copy(options.millrace, node.path("/tmp/millrace"))
        shutil.copytree(pathlib.Path(options.source) / "deploy/hyperpod", node.path(FOLDER))
        for version in ("1", "2"):
            node.package(options.millrace, options.source, version, f"{FOLDER}/packages-{version}")
        node.path("/usr/local/bin").mkdir(parents=True, exist_ok=True)
        before = node.files(*OF_MILLRACE)
        store = node.store(("corpus", "runs"), program="/tmp/millrace")
        node.write("/tmp/words", "mill race\n")
        node.run("/tmp/millrace", "cp", "/tmp/words", "s3://corpus/words", environment=store)
        test = Test(node, store)
        test.group(WORKER)
        wrong_parameters(test)
        test.group(WORKER)
        for step in (bucket_is_not_there, created, again, mounted_anew, upgraded, changed, controller, packages_in_a_bucket, lambda test: removed(test, before)):
            step(test)
            print("passed:", step.__name__ if step.__name__ != "<lambda>" else "removed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
