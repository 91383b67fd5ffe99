#!/usr/bin/env python3
"""The two ways to install the CSI driver make the same objects, with minimal rights.

    csi_manifests.py --source FOLDER

Needs kubectl, helm ($MILLRACE_PEERS/bin or PATH) and PyYAML; without them the test is skipped (exit status 77).
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import yaml
except ImportError:
    yaml = None

OFF = "submitter.enabled=false,tensorboard.enabled=false,grafanaBoard.enabled=false"


def program(name):
    path = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent"), "bin", name)
    return str(path) if path.exists() else shutil.which(name)


def objects(text):
    """By kind and name, without the labels that Helm adds; the namespace is the release's."""
    found = {}
    for entry in yaml.safe_load_all(text):
        if not entry or entry["kind"] == "Namespace":
            continue
        entry["metadata"].pop("labels", None)
        entry["metadata"].pop("namespace", None)
        found[entry["kind"], entry["metadata"]["name"]] = entry
    return found


def chart(source, values=""):
    return objects(subprocess.run(
        [program("helm"), "template", "csi", source / "deploy/kubernetes/chart", "--kube-version", "1.34.0", "--namespace", "millrace-csi",
         "--set", f"csi.enabled=true,{OFF}{values}"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout)


def kustomized(folder):
    return objects(subprocess.run([program("kubectl"), "kustomize", folder], check=True, stdout=subprocess.PIPE, text=True).stdout)


def overlay(source, components):
    """The objects of an overlay with optional parts, made as a user makes one."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, "csi")
        shutil.copytree(source / "deploy/kubernetes/csi", copy)
        mine = pathlib.Path(folder, "mine")
        mine.mkdir()
        (mine / "kustomization.yaml").write_text(yaml.safe_dump(
            {"resources": ["../csi"], "components": [f"../csi/{component}" for component in components]}))
        return kustomized(mine)


def same(plain, made):
    for found in (plain, made):  # labels of pods' templates: kustomize sets them on objects alone
        for (kind, _), entry in found.items():
            if kind in ("DaemonSet", "Deployment"):
                entry["spec"]["template"]["metadata"]["labels"].pop("app.kubernetes.io/part-of", None)
    assert plain.keys() == made.keys(), plain.keys() ^ made.keys()
    for key, entry in plain.items():
        assert made[key] == entry, f"{key}: {made[key]}\nand not\n{entry}"


def values_are_checked(source):
    """`helm lint` passes with the chart's own values, and refuses what the schema does not know."""
    lint = [program("helm"), "lint", source / "deploy/kubernetes/chart"]
    subprocess.run(lint, check=True, stdout=subprocess.DEVNULL)
    for wrong, named in {"csi.enabled=perhaps": "enabled", "csi.cacheSize=lots": "cacheSize", "csi.kubletFolder=/x": "kubletFolder",
                         "csi.place=bucket": "place", "tensorboard.eventsUrl=/runs": "eventsUrl", "csi.aliases={a/b}": "aliases"}.items():
        refused = subprocess.run([*lint, "--set", wrong], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert refused.returncode != 0 and named in refused.stdout, (wrong, refused.stdout)


def containers(found):
    return {(name, container["name"]): container for (kind, name), entry in found.items() if kind in ("DaemonSet", "Deployment")
            for container in entry["spec"]["template"]["spec"]["containers"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=pathlib.Path, required=True)
    source = parser.parse_args().source.resolve()
    absent = [name for name in ("kubectl", "helm") if not program(name)] + (["PyYAML"] if yaml is None else [])
    if absent:
        print(f"skipped: {', '.join(absent)} not installed")
        sys.exit(77)
    values_are_checked(source)
    plain = kustomized(source / "deploy/kubernetes/csi")
    same(plain, chart(source))
    for component in ("resizer", "snapshotter"):
        same(overlay(source, [component]), chart(source, f",csi.{component}.enabled=true"))
    both = overlay(source, ["resizer", "snapshotter"])
    same(both, chart(source, ",csi.resizer.enabled=true,csi.snapshotter.enabled=true"))
    assert {"resizer", "snapshotter"} <= {name for _, name in containers(both)}

    privileged = [key for key, container in containers(plain).items() if container["securityContext"].get("privileged")]
    assert privileged == [("millrace-csi-mounter", "mounter")], privileged
    for key, container in containers(both).items():
        assert container["securityContext"]["readOnlyRootFilesystem"], key
    rules = both["ClusterRole", "millrace-csi-controller"]["rules"]
    assert not any("secrets" in rule["resources"] or "*" in str(rule) for rule in rules), "secrets of the whole cluster"

    more = chart(source, ",csi.aliases={s3.csi.aws.com},csi.kubeletFolder=/data/kubelet,csi.place=s3://v/p,csi.cacheSize=1GiB,csi.nodeMemory=8GiB")
    assert ("CSIDriver", "s3.csi.aws.com") in more
    words = {key: " ".join(container["args"]) for key, container in containers(more).items()}
    assert "--alias=s3.csi.aws.com" in words["millrace-csi-node", "driver"]
    assert "--place=s3://v/p" in words["millrace-csi-controller", "driver"]
    assert all(word in words["millrace-csi-mounter", "mounter"] for word in ("--cache-size=1GiB", "--node-memory=8GiB"))
    assert "/var/lib/kubelet" not in str(more)
    print(f"{len(plain)} objects, the same by kustomize and Helm")


if __name__ == "__main__":
    main()
