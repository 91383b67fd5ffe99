#!/usr/bin/env python3
"""Volumes need exactly the rights of `millrace csi policy`: they work with nothing else allowed, and use all of it.

    least_rights.py --bin FOLDER

The endpoint is `millrace s3d --policy`. Needs root or fusermount3, and /dev/fuse; without them the test is skipped (exit
status 77).
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
# For uploads that a killed mount left.
AFTER_A_KILL = {"s3:AbortMultipartUpload", "s3:ListBucketMultipartUploads", "s3:ListMultipartUploadParts"}


class Endpoint:
    """A `millrace s3d` on a folder with the bucket "corpus", with a policy or without."""

    def __init__(self, bin_folder, folder, policy=None):
        self.program, self.folder, self.policy = bin_folder / "millrace", folder, policy
        self.environment = os.environ | {
            "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "tested", "AWS_SECRET_ACCESS_KEY": "tested", "AWS_MAX_ATTEMPTS": "2",
            "MILLRACE_S3D_ACCESS_KEY": "tested", "MILLRACE_S3D_SECRET_KEY": "tested", "XDG_CACHE_HOME": str(folder / "cache")}

    def __enter__(self):
        command = [self.program, "s3d", "--root", self.folder / "buckets", "--port-file", self.folder / "port", "--log-level", "info"]
        if self.policy is not None:
            (self.folder / "policy.json").write_text(json.dumps(self.policy))
            command += ["--policy", self.folder / "policy.json"]
        (self.folder / "port").unlink(missing_ok=True)
        self.log = (self.folder / "s3d.log").open("w")
        self.process = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=self.log)
        end = time.monotonic() + 30
        while not (self.folder / "port").exists():
            assert self.process.poll() is None and time.monotonic() < end, "millrace s3d did not start"
            time.sleep(0.02)
        self.environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{(self.folder / 'port').read_text().strip()}"
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()

    def used(self):
        """The actions that were used, once the endpoint has ended."""
        text = (self.folder / "s3d.log").read_text()
        found = re.search(r'actions="?([^"\n]*)', text)
        assert found, text
        return set(found.group(1).split())

    def run(self, *command, fails=False):
        done = subprocess.run([self.program, *command], env=self.environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        assert (done.returncode != 0) == fails, f"{command}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def mount(self, *flags):
        point = self.folder / "mnt"
        point.mkdir(exist_ok=True)
        self.run("mount", "s3://corpus", point, "--log-file", self.folder / "mount.log", *flags)
        return point


def policy(bin_folder, *flags):
    return json.loads(subprocess.run([bin_folder / "millrace", "csi", "policy", "--bucket", "corpus", *flags], check=True,
                                     stdout=subprocess.PIPE).stdout)


def granted(document):
    return {action for statement in document["Statement"] for action in statement["Action"]}


def write_everything(point):
    """What programs do in a volume."""
    (point / "small").write_text("small")
    large = os.urandom(12 * MIB)
    (point / "large").write_bytes(large)
    with (point / "large").open("ab") as file:
        file.write(b"more")
    assert (point / "large").read_bytes() == large + b"more"
    (point / "small").rename(point / "renamed")
    (point / "renamed").chmod(0o600)
    (point / "folder").mkdir()
    for number in range(5):
        (point / "folder" / str(number)).write_text(str(number))
    (point / "folder").rename(point / "moved")
    assert (point / "moved" / "3").read_text() == "3" and not (point / "folder").exists()
    (point / "renamed").unlink()
    shutil.rmtree(point / "moved")
    assert sorted(path.name for path in point.iterdir()) == ["kept", "large"]


def read_write(bin_folder, folder):
    document = policy(bin_folder, "--prefix", "team/")
    with Endpoint(bin_folder, folder) as plain:
        plain.run("mb", "s3://corpus")
        (folder / "kept").write_text("kept")
        for key in ("team/kept", "other/secret"):
            plain.run("cp", folder / "kept", f"s3://corpus/{key}")
    with Endpoint(bin_folder, folder, document) as limited:
        point = limited.mount("--prefix", "team/", "--write-part-size", "5MiB")
        try:
            write_everything(point)
        finally:
            limited.run("umount", point)
        assert "AccessDenied" not in (folder / "mount.log").read_text(), (folder / "mount.log").read_text()
        limited.run("cat", "s3://corpus/other/secret", fails=True)
        limited.run("ls", "s3://corpus/", fails=True)
    used = limited.used()
    assert used <= granted(document) and granted(document) - used <= AFTER_A_KILL, (used, granted(document))
    return used


def read_only(bin_folder, folder):
    document = policy(bin_folder, "--prefix", "team/", "--read-only")
    with Endpoint(bin_folder, folder, document) as limited:
        point = limited.mount("--prefix", "team/", "--read-only")
        try:
            assert (point / "kept").read_text() == "kept" and not (point / "absent").exists()
            assert sorted(path.name for path in point.iterdir()) == ["kept", "large"]
        finally:
            limited.run("umount", point)
        limited.run("cp", folder / "kept", "s3://corpus/team/new", fails=True)
    assert limited.used() == granted(document), (limited.used(), granted(document))
    return limited.used()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    bin_folder = parser.parse_args().bin.resolve()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or (os.geteuid() != 0 and not shutil.which("fusermount3")):
        print("skipped: nothing can be mounted here")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        try:
            print("read and write:", *sorted(read_write(bin_folder, pathlib.Path(folder))))
            print("read:", *sorted(read_only(bin_folder, pathlib.Path(folder))))
        finally:
            subprocess.run(["umount", "-l", pathlib.Path(folder, "mnt")], stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    main()
