#!/usr/bin/env python3
"""csi-sanity, the conformance test of the CSI specification, against the driver: every case passes.

    csi_sanity.py --bin FOLDER

Cases are skipped only for what CSI makes optional and the driver does not claim: SKIPPED has them all, with reasons, and
a case that is skipped without being named there fails the test. Needs csi-sanity ($MILLRACE_PEERS/bin or PATH), root and
/dev/fuse; without them the test is skipped (exit status 77).
"""
import argparse
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

# What a case's name contains, and why it does not apply.
SKIPPED = {
    "ModifyVolume": "no parameter of a volume can change",
    "volume attribute class": "no parameter of a volume can change",
    "ControllerPublishVolume": "a bucket is not attached to nodes",
    "ControllerUnpublishVolume": "a bucket is not attached to nodes",
    "volume lifecycle": "a bucket is not attached to nodes",
    "GroupController": "snapshots of several volumes at one moment need a store that has them",
    "VolumeGroupSnapshot": "as GroupController",
    "NodeExpandVolume": "a larger volume needs nothing on the node",
    "VolumeHealth": "alpha calls of CSI 1.13; the driver implements 1.12, and reports conditions",
    "StorageHealth": "as VolumeHealth",
    "accessibility requirements": "snapshots are reached from everywhere",
}


def peer(name):
    path = pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent"), "bin", name)
    return str(path) if path.exists() else shutil.which(name)


def missing():
    if not peer("csi-sanity"):
        return "csi-sanity is not installed (tests/install-peers FOLDER csi)"
    if os.geteuid() != 0:
        return "mounting for pods needs root"
    return "" if os.access("/dev/fuse", os.R_OK | os.W_OK) else "there is no usable /dev/fuse"


def wait_for(path, process):
    end = time.monotonic() + 30
    while not path.exists():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{process.args[0]} did not start")
        time.sleep(0.02)


def unmount_below(folder):
    points = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    for point in reversed(points):
        if point.startswith(str(folder)):
            subprocess.run(["umount", "-l", point], check=False)


def run(programs, folder):
    for part in ("pods", "plugins/kubernetes.io/csi"):
        (folder / "k" / part).mkdir(parents=True)
    environment = os.environ | {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "tested", "AWS_SECRET_ACCESS_KEY": "tested",
                                "MILLRACE_S3D_ACCESS_KEY": "tested", "MILLRACE_S3D_SECRET_KEY": "tested"}
    running = []
    try:
        running.append(subprocess.Popen([programs / "millrace", "s3d", "--root", folder / "buckets", "--listen", "127.0.0.1:0",
                                         "--port-file", folder / "port"], env=environment, stdout=subprocess.DEVNULL))
        wait_for(folder / "port", running[-1])
        environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{(folder / 'port').read_text().strip()}"
        subprocess.run([programs / "millrace", "mb", "s3://volumes"], env=environment, check=True)
        running.append(subprocess.Popen(
            [programs / "millrace-csi", "all", "--socket", folder / "k/csi.sock", "--kubelet-folder", folder / "k", "--state-folder",
             folder / "state", "--place", "s3://volumes/tested", "--node-id", "node"], env=environment,
            stderr=(folder / "driver.log").open("w")))
        wait_for(folder / "k/csi.sock", running[-1])
        report = folder / "report.json"
        done = subprocess.run(
            [peer("csi-sanity"), "--csi.endpoint", f"unix://{folder}/k/csi.sock", "--csi.mountdir", folder / "k/pods/target",
             "--csi.stagingdir", folder / "k/plugins/kubernetes.io/csi/staging", "--ginkgo.no-color", "--ginkgo.json-report", report],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        left = [line for line in pathlib.Path("/proc/mounts").read_text().splitlines() if f" {folder}/" in line]
        return done, json.loads(report.read_text()) if report.exists() else [], left
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()
        unmount_below(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if reason := missing():
        print(f"skipped: {reason}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        done, reports, left = run(arguments.bin.resolve(), pathlib.Path(folder).resolve())
        log = pathlib.Path(folder, "driver.log").read_text() if done.returncode else ""
    cases = [case for report in reports for case in report["SpecReports"] if case["LeafNodeType"] == "It"]
    counts, unnamed = collections.Counter(case["State"] for case in cases), []
    for case in cases:
        name = " ".join([*case["ContainerHierarchyTexts"], case["LeafNodeText"]])
        if case["State"] == "skipped" and not any(part in name for part in SKIPPED):
            unnamed.append(f"{name}: {case.get('Failure', {}).get('Message', '')}")
    print(dict(counts))
    if done.returncode or unnamed or left or counts["passed"] < 67:
        print(done.stdout[-6000:], log[-6000:], *unnamed, *left, sep="\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
