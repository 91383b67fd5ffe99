#!/usr/bin/env python3
"""The image of deploy/image: skopeo pushes its OCI layout to a registry and gets it back; the Containerfile is well formed. Helm
installs the chart of a release from the registry.

    image_layout.py --source FOLDER

The programs in the image are stand-ins, because only its form is looked at. The registry is a few lines of this test, by the
OCI Distribution Specification 1.1. Helm is that of $MILLRACE_PEERS. Exit status 77: skopeo or what `build` needs is not here.
"""
import argparse
import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import uuid

#: https://docs.docker.com/reference/dockerfile/
INSTRUCTIONS = {"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "ONBUILD", "RUN", "SHELL",
                "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}


class Registry(http.server.BaseHTTPRequestHandler):
    """Keeps blobs and manifests in memory."""
    protocol_version = "HTTP/1.1"
    blobs, manifests, uploads = {}, {}, {}

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def content(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path
        if path == "/v2/":
            return self.answer(200)
        kind, _, name = path.rpartition("/")
        kept = self.manifests if kind.endswith("/manifests") else self.blobs
        if name not in kept:
            return self.answer(404)
        body, media = kept[name]
        self.answer(200, body, Content_Type=media, Docker_Content_Digest=f"sha256:{hashlib.sha256(body).hexdigest()}")

    do_HEAD = do_GET

    def do_POST(self):
        self.content()
        number = uuid.uuid4().hex
        self.uploads[number] = b""
        self.answer(202, Location=f"{self.path}{number}", Range="0-0")

    def do_PATCH(self):
        number = self.path.rpartition("/")[2]
        self.uploads[number] += self.content()
        self.answer(202, Location=self.path, Range=f"0-{max(0, len(self.uploads[number]) - 1)}")

    def do_PUT(self):
        body, split = self.content(), urllib.parse.urlsplit(self.path)
        name = split.path.rpartition("/")[2]
        if "/manifests/" in split.path:
            media = self.headers["Content-Type"]
            for entry in (json.loads(body)["config"], *json.loads(body)["layers"]):
                if entry["digest"] not in self.blobs:
                    return self.answer(404)
            self.manifests[name] = self.manifests[f"sha256:{hashlib.sha256(body).hexdigest()}"] = body, media
            return self.answer(201, Location=self.path)
        wanted = urllib.parse.parse_qs(split.query)["digest"][0]
        whole = self.uploads.pop(name) + body
        if wanted != f"sha256:{hashlib.sha256(whole).hexdigest()}":
            return self.answer(400)
        self.blobs[wanted] = whole, "application/octet-stream"
        self.answer(201, Location=self.path, Docker_Content_Digest=wanted)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def registry():
    """A registry that runs meanwhile. Yields its host and port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def skopeo(*words):
    return subprocess.run(["skopeo", "--insecure-policy", *map(str, words)], check=True, stdout=subprocess.PIPE, text=True).stdout


def test_a_registry_takes_the_image_and_gives_it_back(source, folder):
    programs = folder / "programs"
    programs.mkdir()
    for name in ("millrace", "millrace-train", "millrace-serve"):
        (programs / name).write_text(f"#!/bin/sh\necho {name}\n")
        (programs / name).chmod(0o755)
    images = []
    for name in ("one", "two"):
        subprocess.run([source / "deploy/image/build", "--programs", programs, "--output", folder / name, "--tag", "millrace:1"], check=True)
        images.append({path.relative_to(folder / name): path.read_bytes() for path in (folder / name).rglob("*") if path.is_file()})
    assert images[0] == images[1], "the same files make the same image"
    with registry() as host:
        there = f"docker://{host}/team/millrace:1"
        skopeo("copy", "--dest-tls-verify=false", f"oci:{folder}/one:1", there)
        seen = json.loads(skopeo("inspect", "--no-tags", "--tls-verify=false", there))
        assert (seen["Os"], len(seen["Layers"])) == ("linux", 2), seen
        skopeo("copy", "--src-tls-verify=false", there, f"oci:{folder}/back:1")
    blobs = [{path.name for path in (folder / name / "blobs/sha256").iterdir()} for name in ("one", "back")]
    assert blobs[0] == blobs[1], "the blobs, the manifest among them, came back as they were"
    # podman and containerd unpack the layers from there.
    skopeo("copy", f"oci:{folder}/back:1", f"docker-archive:{folder}/back.tar:millrace:1")


def test_helm_installs_the_chart_from_a_registry(source, folder):
    version = "9.8.7"
    for name in ("chart", "again"):
        subprocess.run([source / "tools/release/chart", version, folder / name], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["diff", "-r", folder / "chart", folder / "again"], check=True)
    helm = shutil.which("helm", path=os.environ.get("MILLRACE_PEERS", "") + "/bin:" + os.environ["PATH"])
    if helm is None:
        print("no helm here: tests/install-peers FOLDER helm installs one, and MILLRACE_PEERS=FOLDER names it")
        return
    own = os.environ | {f"HELM_{name}_HOME": str(folder / "helm") for name in ("CACHE", "CONFIG", "DATA")}

    def run(*words):
        return subprocess.run([helm, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True, env=own).stdout

    with registry() as host:
        skopeo("copy", "--dest-tls-verify=false", f"oci:{folder}/chart/millrace-chart:{version}", f"docker://{host}/charts/millrace:{version}")
        there = f"oci://{host}/charts/millrace"
        shown = run("show", "chart", there, "--version", version, "--plain-http")
        assert f"version: {version}" in shown and f"appVersion: {version}" in shown, shown
        from_registry = run("template", "here", "--kube-version", "1.31.0", there, "--version", version, "--plain-http")
    assert run("template", "here", "--kube-version", "1.31.0", folder / f"chart/millrace-{version}.tgz") == from_registry
    # But for the versions, it is the chart of the source tree.
    same = [line for line in from_registry.splitlines() if version not in line]
    from_tree = run("template", "here", "--kube-version", "1.31.0", source / "deploy/kubernetes/chart").splitlines()
    assert len(same) > 100 and not set(same) - set(from_tree), sorted(set(same) - set(from_tree))


def test_the_containerfile_is_well_formed(source, _):
    text = (source / "deploy/image/Containerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    instructions = [line.split(None, 1) for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]
    assert instructions[0][0] == "FROM" and {word for word, _ in instructions} <= INSTRUCTIONS, instructions
    packages = set()
    for word, rest in instructions:
        if word == "COPY":
            *names, _destination = rest.split()
            for name in names:
                assert name.startswith("build/packages/") or (source / name).is_file(), f"COPY {name}: there is no such file"
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
            if installed := re.search(r"apt-get install ([^&]*)", rest):
                packages |= {name for name in installed[1].split() if not name.startswith(("-", "/"))}
    assert packages >= {"openssh-server", "openmpi-bin", "ca-certificates"}, packages
    # What `make package` calls its packages.
    named = set(re.findall(r"build/packages/([a-z-]+)_", text))
    assert named == {"millrace", "millrace-engine"}, named
    if shutil.which("apt-cache"):
        for package in packages:
            subprocess.run(["apt-cache", "show", package], check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    absent = [name for name in ("skopeo", "busybox") if shutil.which(name) is None]
    absent += [] if os.path.exists("/usr/sbin/sshd") else ["sshd"]
    if absent:
        print(f"skipped: not installed: {', '.join(absent)}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        for test in (test_a_registry_takes_the_image_and_gives_it_back, test_helm_installs_the_chart_from_a_registry,
                     test_the_containerfile_is_well_formed):
            test(arguments.source.resolve(), pathlib.Path(name))
            print(f"ok {test.__name__}", flush=True)


main()
