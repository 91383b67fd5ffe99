"""Reads what earlier versions wrote. See README.md.

    python3 kept_files.py BIN_FOLDER

Exit status 77: the programs that train are not built. Without /dev/fuse, the checks of mounts are left out.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
KEPT = HERE / "0.1"
KEYS = {
    "corpus": {".millrace/texts.jsonl.4aff2896f331e0d8.index", "texts.jsonl", "tokenizer.model"},
    "mounted": {".millrace/root", "empty/", "folder/", "folder/text.txt", "link"},
}
STAGED = b"staged by 0.1, never published\n"


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Kept:
    """Copies of the kept folders, owned by this user, and the endpoints of two of them."""

    def __init__(self, programs, folder):
        self.millrace, self.folder, self.servers = programs / "millrace", folder, []
        for name in ("s3d", "renaming", "staging"):
            shutil.copytree(KEPT / name, folder / name)
            (folder / name).chmod(0o700)
            for path in (folder / name).rglob("*"):
                path.chmod(0o700 if path.is_dir() else 0o600)
            marker = folder / name / ".millrace-folder"
            marker.write_text(re.sub(r'"uid":\d+', f'"uid":{os.getuid()}', marker.read_text()))
        for name in ("home", "state", "point"):
            (folder / name).mkdir()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MILLRACE_", "XDG_"))}
        self.env |= {"HOME": str(folder / "home"), "MILLRACE_STATE_DIR": str(folder / "state"), "AWS_REGION": "us-east-1"}
        for name in ("AWS_ACCESS_KEY_ID", "MILLRACE_S3D_ACCESS_KEY"):
            self.env[name] = "kept"
        for name in ("AWS_SECRET_ACCESS_KEY", "MILLRACE_S3D_SECRET_KEY"):
            self.env[name] = "kept-secret"
        self.renaming = self.serve("renaming")
        self.endpoint = self.env["AWS_ENDPOINT_URL"] = self.serve("s3d")

    def serve(self, name):
        """Returns the URL of an endpoint that serves a folder."""
        port = self.folder / f"{name}-port"
        server = subprocess.Popen([self.millrace, "s3d", "--root", self.folder / name, "--listen", "127.0.0.1:0",
                                   "--port-file", port], env=self.env, stdout=subprocess.DEVNULL)
        self.servers.append(server)
        end = time.monotonic() + 30
        while not port.exists() or not port.read_text().strip():
            assert server.poll() is None and time.monotonic() < end, f"the endpoint of {name} does not start"
            time.sleep(0.02)
        return f"http://127.0.0.1:{port.read_text().strip()}"

    def close(self):
        for server in self.servers:
            server.terminate()
            server.wait()

    def run(self, *arguments):
        ran = subprocess.run([self.millrace, *map(str, arguments)], env=self.env, cwd=self.folder, capture_output=True, text=True)
        assert ran.returncode == 0, f"{arguments}: exit status {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    def objects(self, url, *more):
        return {row["key"]: row for row in map(json.loads, self.run("--json", "ls", "-r", "--all", url, *more).splitlines())}


def check_endpoint(kept):
    for bucket, keys in KEYS.items():
        found = kept.objects(f"s3://{bucket}/")
        assert set(found) == keys, found
    texts = kept.run("cat", "s3://corpus/texts.jsonl").splitlines()
    assert len(texts) == 60 and all(json.loads(line)["text"] for line in texts)


def check_run(kept):
    kept.run("ckpt", "verify", "s3://runs/kept")
    status = kept.run("job", "status", "s3://runs/log")
    assert "kept" in status and "step 4" in status, status
    before = kept.objects("s3://corpus/")
    lines = [json.loads(line) for line in kept.run("--json", "train", KEPT / "job.yaml").splitlines() if line.startswith("{")]
    plan = next(line for line in lines if line.get("event") == "plan")
    assert plan["resumed_from"] == 4, plan
    losses = {line["step"]: line["loss"] for line in lines if "event" not in line and "loss" in line}
    wanted = {int(step): loss for step, loss in json.loads((KEPT / "losses.json").read_text()).items()}
    assert losses.keys() == wanted.keys(), losses
    # Another processor may round differently; other data or another state would differ by far more.
    assert all(abs(losses[step] - wanted[step]) < 1e-4 for step in wanted), losses
    assert kept.objects("s3://corpus/") == before, "the index of records was made again"
    kept.run("ckpt", "verify", "s3://runs/kept", "--all")


def check_staged(kept):
    """The record names the store by an address of that time: it gets the address of now, and its checksum."""
    record = next((kept.folder / "staging").glob("*.record"))
    head, body = record.read_text().splitlines()
    assert json.loads(head) == {"format": 1, "crc32c": crc32c(body.encode())}, head
    body = json.dumps({**json.loads(body), "target": f"{kept.endpoint}/mounted"}, separators=(",", ":"))
    record.write_text(json.dumps({"format": 1, "crc32c": crc32c(body.encode())}, separators=(",", ":")) + f"\n{body}\n")
    kept.run("mount", "s3://mounted", "--recover", "--staging-dir", kept.folder / "staging")
    assert kept.run("cat", "s3://mounted/staged.txt").encode() == STAGED


def check_rename(kept):
    """A mount was killed when the copies were made and the rename was committed: the old names are to go."""
    there = ("--endpoint-url", kept.renaming)
    names = {f"{n}.txt" for n in range(1, 7)}
    before = kept.objects("s3://renaming/", *there)
    assert {f"old/{name}" for name in names} | {f"new/{name}" for name in names} < before.keys(), before
    kept.run("mount", "s3://renaming", "--recover", "--staging-dir", kept.folder / "staging", *there)
    after = kept.objects("s3://renaming/", *there).keys() - {".millrace/root"}
    assert after == {"new/", *(f"new/{name}" for name in names)}, after


def check_mount(kept):
    point = kept.folder / "point"
    kept.run("mount", "s3://mounted", point, "--staging-dir", kept.folder / "staging")
    try:
        text = point / "folder/text.txt"
        stat = text.stat()
        assert stat.st_mode & 0o7777 == 0o640 and int(stat.st_mtime) == 1767323045, stat
        assert text.read_text() == "written by 0.1\n" and os.getxattr(text, "user.kept") == b"0.1"
        assert os.readlink(point / "link") == "folder/text.txt" and not list((point / "empty").iterdir())
    finally:
        kept.run("umount", point)


def check_job_files(kept):
    for path in sorted(KEPT.glob("rendered-*.yaml")):
        missing = [line for line in path.read_text().splitlines() if line not in kept.run("job", "render", path).splitlines()]
        assert not missing, f"{path.name}: {missing}"


def main(programs):
    if not (programs / "millrace-train").exists():
        print("millrace-train is not built")
        return 77
    with tempfile.TemporaryDirectory(prefix="millrace-kept-") as folder:
        kept = Kept(programs, pathlib.Path(folder))
        try:
            checks = [check_endpoint, check_run, check_staged, check_rename, check_job_files]
            if os.access("/dev/fuse", os.R_OK | os.W_OK):
                checks.append(check_mount)
            for check in checks:
                check(kept)
                print(f"ok {check.__name__}", flush=True)
        finally:
            kept.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
