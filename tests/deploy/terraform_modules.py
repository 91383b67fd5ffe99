#!/usr/bin/env python3
"""The Terraform modules of deploy/terraform: their format, and what `node` makes, on a machine with systemd.

    terraform_modules.py --millrace PROGRAM --source FOLDER

Needs terraform (or OpenTofu's tofu); exit status 77 without it. `eks` and `vms` are validated if their provider can be had,
from the registry or from the folder $MILLRACE_TERRAFORM_AWS.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import machine

MOUNTS = {"corpus": {"url": "s3://corpus", "directory": "/mnt/corpus", "flags": ["--read-only", "--allow-other"]}}
WRONG = ({"packages": "/a b"}, {"environment": {"A": 'x"y'}}, {"environment": {"A": "$(id)"}}, {"check_urls": ["s3://a `id`"]},
         {"mounts": {"a-b": MOUNTS["corpus"]}}, {"mounts": {"corpus": MOUNTS["corpus"] | {"directory": "mnt"}}},
         {"mounts": {"corpus": MOUNTS["corpus"] | {"flags": ["--log-file a"]}}})


class Terraform:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_CLI_ARGS")} | {
            "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}
        self.has_aws = "MILLRACE_TERRAFORM_AWS" in os.environ
        if self.has_aws:
            overrides = f'dev_overrides {{ "hashicorp/aws" = "{os.environ["MILLRACE_TERRAFORM_AWS"]}" }}'
            (folder / "cli.tfrc").write_text(f"provider_installation {{\n  {overrides}\n  direct {{}}\n}}\n")
            self.environment["TF_CLI_CONFIG_FILE"] = str(folder / "cli.tfrc")

    def status(self, *words, folder=None):
        done = subprocess.run([self.program, *map(str, words)], cwd=folder or self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def run(self, *words):
        status, said = self.status(*words)
        assert status == 0, f"{words}: {said}"
        return said


def node(terraform, source, values):
    """The script that the module makes."""
    (terraform.folder / "main.tf.json").write_text(json.dumps({
        "module": {"node": {"source": str(source)} | values}, "output": {"user_data": {"value": "${module.node.user_data}"}}}))
    status, said = terraform.status("apply", "-auto-approve", "-no-color", "-input=false")
    if status != 0:
        return None, said
    return json.loads((terraform.folder / "terraform.tfstate").read_text())["outputs"]["user_data"]["value"], said


def wrong_values(terraform, source):
    for values in WRONG:
        script, said = node(terraform, source, {"packages": "/packages"} | values)
        assert script is None and f"{next(iter(values))} must" in " ".join(said.split()), (values, said)


def on_a_machine(terraform, source, options, folder):
    with machine.Machine(folder / "machine", systemd=True) as tested:
        for version in ("1", "2"):
            tested.package(options.millrace, options.source, version, f"/packages-{version}")
        shutil.copy(options.millrace, tested.path("/tmp/millrace"))
        variables = tested.store(("corpus",), program="/tmp/millrace")
        tested.write("/tmp/words", "mill race\n")
        tested.run("/tmp/millrace", "cp", "/tmp/words", "s3://corpus/words", environment=variables)

        def set_up(**values):
            script, said = node(terraform, source, {"packages": "/packages-1", "environment": variables, "mounts": MOUNTS,
                                                    "check_urls": ["s3://corpus"]} | values)
            assert script is not None, said
            tested.write("/tmp/user-data", script, 0o700)
            return tested.status("/tmp/user-data")

        status, said = set_up(packages="/nothing")
        assert status != 0 and "millrace: failed: find millrace_VERSION_ARCHITECTURE.deb in /nothing" in said, said
        status, said = set_up()
        assert status == 0 and "installed millrace 1" in said, said
        assert tested.run("cat", "/mnt/corpus/words") == "mill race\n"
        assert tested.path("/etc/millrace/corpus.conf").stat().st_mode & 0o777 == 0o600
        for unit in ("millrace@corpus.service", "millrace-check@corpus.timer", "millrace-node-check.timer"):
            assert tested.run("systemctl", "is-enabled", unit).strip() == "enabled" and tested.run("systemctl", "is-active", unit), unit
        tested.run("systemctl", "start", "millrace-node-check.service")
        files = tested.files("/etc")
        assert set_up() == (0, "millrace: this machine is ready\n")
        assert tested.files("/etc") == files
        status, said = set_up(packages="/packages-2", mounts={"corpus": MOUNTS["corpus"] | {"flags": ["--allow-other"]}})
        assert status == 0 and "installed millrace 2" in said and "wrote /etc/millrace/corpus.conf" in said, said
        tested.run("touch", "/mnt/corpus/mine")
        assert "mine" in tested.run("/tmp/millrace", "ls", "s3://corpus", environment=variables)


def validated(terraform, source, folder):
    """Whether the provider could be had; Terraform's own check of a module."""
    place = folder / source.name
    shutil.copytree(source.parent, place)
    # A provider of one's own is not installed.
    prepare = ("get",) if terraform.has_aws else ("init", "-backend=false", "-input=false")
    status, said = terraform.status(*prepare, "-no-color", folder=place / source.name)
    if status != 0:
        print(f"left out: {source.name} is not validated, because Terraform cannot get its provider")
        return
    status, said = terraform.status("validate", "-no-color", folder=place / source.name)
    assert status == 0, said
    print("passed: validate", source.name, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--source", required=True)
    options = parser.parse_args()
    program = shutil.which("terraform") or shutil.which("tofu")
    if program is None:
        print("skipped: neither terraform nor tofu is in PATH")
        return 77
    modules = pathlib.Path(options.source).resolve() / "deploy/terraform"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "used").mkdir()
        terraform = Terraform(program, folder / "used")
        terraform.run("fmt", "-check", "-diff", "-recursive", modules)
        (terraform.folder / "main.tf.json").write_text(json.dumps({"module": {"node": {"source": str(modules / "node"), "packages": "/p"}}}))
        terraform.run("init", "-no-color", "-input=false")
        terraform.run("validate", "-no-color")
        print("passed: format, validate node", flush=True)
        wrong_values(terraform, modules / "node")
        print("passed: wrong values", flush=True)
        for module in ("vms", "eks"):
            validated(terraform, modules / module, folder)
        why = machine.missing(systemd=True) or ("" if shutil.which("apt-get") else "not installed: apt-get")
        if why:
            print("left out: the script on a machine:", why)
        else:
            on_a_machine(terraform, modules / "node", options, folder)
            print("passed: on a machine", flush=True)
        terraform.run("destroy", "-auto-approve", "-no-color", "-input=false")
        assert not json.loads((terraform.folder / "terraform.tfstate").read_text())["outputs"]
    return 0


if __name__ == "__main__":
    sys.exit(main())
