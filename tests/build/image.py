#!/usr/bin/env python3
"""The container image of deploy/image: it is the same each time, other tools read it, and its programs run.

    image.py SOURCE_FOLDER MILLRACE_PROGRAM

Exit status 77: a package that the image needs is not here.
"""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile


def build(source, programs, output, *more):
    return subprocess.run([source / "deploy/image/build", "--programs", programs, "--output", output, *more], check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def blob(layout, descriptor):
    content = (layout / "blobs" / descriptor["digest"].replace(":", "/")).read_bytes()
    assert hashlib.sha256(content).hexdigest() == descriptor["digest"].removeprefix("sha256:")
    assert len(content) == descriptor["size"]
    return content


def check_layout(layout, root):
    """Checks the hashes of a layout, and unpacks its layers."""
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads(blob(layout, index["manifests"][0]))
    config = json.loads(blob(layout, manifest["config"]))
    assert config["os"] == "linux" and len(config["rootfs"]["diff_ids"]) == len(manifest["layers"]) == 2
    for descriptor in manifest["layers"]:
        blob(layout, descriptor)
        with tarfile.open(layout / "blobs" / descriptor["digest"].replace(":", "/")) as layer:
            for entry in layer:
                assert entry.mtime == 0 and not entry.mode & 0o6000, entry.name
                assert not entry.name.startswith("/") and ".." not in entry.name.split("/"), entry.name
                assert "ssh_host" not in entry.name and entry.uid in (0, 1000), entry.name
            layer.extractall(root, numeric_owner=True)
    return index["manifests"][0]["digest"]


def main():
    source, millrace = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # One program is enough, and quick.
        programs = folder / "programs"
        programs.mkdir()
        shutil.copy(millrace, programs / "millrace")
        first = build(source, programs, folder / "first", "--tar", folder / "first.tar", "--tag", "tested:1")
        if "install the package" in first.stderr:
            print(f"skipped: {first.stderr.strip()}")
            sys.exit(77)
        assert first.returncode == 0, first.stderr
        assert "cannot train" in first.stderr, first.stderr
        (programs / "millrace").touch()  # times do not count
        second = build(source, programs, folder / "second", "--tar", folder / "second.tar", "--tag", "tested:1")
        assert second.stdout == first.stdout, (first, second)
        assert (folder / "first.tar").read_bytes() == (folder / "second.tar").read_bytes()
        root = folder / "root"
        digest = check_layout(folder / "first", root)
        assert digest in first.stdout, (digest, first.stdout)

        refused = build(source, programs, folder / "first")
        assert refused.returncode != 0 and "exists already" in refused.stderr, refused
        (programs / "millrace").unlink()
        refused = build(source, programs, folder / "third")
        assert refused.returncode != 0 and "build it first" in refused.stderr and not (folder / "third").exists(), refused

        if shutil.which("skopeo"):
            seen = json.loads(subprocess.run(["skopeo", "inspect", f"oci:{folder}/first:1"], check=True, stdout=subprocess.PIPE).stdout)
            assert seen["Digest"] == digest, seen
        if os.geteuid() != 0:
            print("not root: the programs are not run within the image")
            return
        # Mounts of a namespace of their own, which end with the program.
        inside = ["unshare", "--mount", "sh", "-c", 'root=$1 user=$2; shift 2; for folder in dev proc; do mount --rbind /$folder "$root/$folder"; done; '
                  'exec chroot --userspec="$user" "$root" env HOME=/var/lib/millrace "$@"', "sh", root]
        repository = ("cd && mkdir mine && cd mine && git init -q && echo text >file && git add file && "
                      "git -c user.name=me -c user.email=me commit -qm first && git clone -q . copy && cat copy/file && cd .. && rm -rf mine")
        python = "import ctypes, hashlib, json, sqlite3, ssl, urllib.request; print(ssl.OPENSSL_VERSION)"
        stranger = "4321:4321"  # nobody whom /etc/passwd knows, as clusters choose users
        for user, command, says in ((stranger, ["millrace", "--version"], "millrace "), (stranger, ["bash", "-c", repository], "text"),
                                    (stranger, ["python3", "-c", python], "OpenSSL"), (stranger, ["flock", "/tmp", "echo", "held"], "held"),
                                    (stranger, ["git", "ls-remote", "https://127.0.0.1:1/"], "Failed to connect"),
                                    ("0:0", ["sh", "-c", "ssh -V && sshd -t && ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key"], "ED25519")):
            ran = subprocess.run([*inside, user, *command], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert says in ran.stdout and ran.returncode == (128 if "ls-remote" in command else 0), (command, ran)
            print(ran.stdout.strip())


main()
