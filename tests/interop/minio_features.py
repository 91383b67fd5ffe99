#!/usr/bin/env python3
"""What `millrace s3d` does not do, against a MinIO server with TLS: keys of the owner's (SSE-C), versions, and objects of
which the store keeps no checksum but the ETag of a multipart upload.

    minio_features.py --millrace PROGRAM

minio and boto3 are found as in s3d_interop.py. Exit status: 0 all right, 77 one of them or openssl is missing.
"""
import argparse
import base64
import hashlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from s3d_interop import ACCESS, SECRET, find_program, skip, with_boto3

MIB = 1 << 20


class Minio:
    def __init__(self, folder, millrace):
        self.folder, self.millrace = pathlib.Path(folder), millrace
        certificates = self.folder / "certs"
        certificates.mkdir()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", certificates / "private.key",
                        "-out", certificates / "public.crt"], check=True, capture_output=True)
        self.authority = certificates / "public.crt"
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.url = f"https://127.0.0.1:{s.getsockname()[1]}"
        self.environment = dict(os.environ, AWS_ENDPOINT_URL=self.url, AWS_ACCESS_KEY_ID=ACCESS, AWS_REGION="us-east-1",
                                AWS_SECRET_ACCESS_KEY=SECRET, AWS_CA_BUNDLE=str(self.authority), MINIO_ROOT_USER=ACCESS,
                                MINIO_ROOT_PASSWORD=SECRET, MINIO_BROWSER="off", AWS_CONFIG_FILE="/dev/null",
                                AWS_SHARED_CREDENTIALS_FILE="/dev/null", XDG_STATE_HOME=str(self.folder / "state"))
        self.server = subprocess.Popen([find_program("minio"), "server", "--quiet", "--certs-dir", certificates,
                                        "--address", self.url.removeprefix("https://"), self.folder / "data"],
                                       env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        import boto3
        from botocore.config import Config
        self.s3 = boto3.client("s3", endpoint_url=self.url, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET,
                               region_name="us-east-1", verify=str(self.authority),
                               config=Config(request_checksum_calculation="when_required",
                                             response_checksum_validation="when_required"))
        for attempt in range(300):
            try:
                self.s3.create_bucket(Bucket="bucket")
                return self
            except Exception:
                if attempt == 299 or self.server.poll() is not None:
                    raise
                time.sleep(0.1)

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait(timeout=30)

    def run(self, *words, status=0):
        done = subprocess.run([self.millrace, *map(str, words)], env=self.environment, cwd=self.folder, text=True,
                              capture_output=True)
        assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr


def customers_keys(minio):
    for name in ("key", "other"):
        (minio.folder / name).write_text(base64.b64encode(os.urandom(32)).decode() + "\n")
    content = {"small": os.urandom(1000), "large": os.urandom(20 * MIB + 17)}
    for name, data in content.items():
        (minio.folder / name).write_bytes(data)
        minio.run("--sse-c-key-file", "key", "cp", name, f"s3://bucket/secret/{name}")
        minio.run("--sse-c-key-file", "key", "cp", f"s3://bucket/secret/{name}", "back")
        assert (minio.folder / "back").read_bytes() == data
        minio.run("cp", f"s3://bucket/secret/{name}", "back", status=2)
        assert minio.run("--sse-c-key-file", "other", "cp", f"s3://bucket/secret/{name}", "back", status=5)
        # From one key to another, and to none.
        minio.run("--sse-c-key-file", "other", "--sse-c-source-key-file", "key", "cp", f"s3://bucket/secret/{name}",
                  f"s3://bucket/moved/{name}")
        minio.run("--sse-c-key-file", "other", "cp", f"s3://bucket/moved/{name}", "back")
        assert (minio.folder / "back").read_bytes() == data
        minio.run("--sse-c-key-file", "none", "--sse-c-source-key-file", "other", "mv", f"s3://bucket/moved/{name}",
                  f"s3://bucket/plain/{name}")
        minio.run("cp", f"s3://bucket/plain/{name}", "back")
        assert (minio.folder / "back").read_bytes() == data
    head = json.loads(minio.run("--json", "--sse-c-key-file", "key", "head", "s3://bucket/secret/small"))
    assert head["size"] == 1000, head
    (minio.folder / "short").write_text("not a key")
    told = minio.run("--sse-c-key-file", "short", "ls", "s3://bucket/", status=2)
    assert "holds no key" in told and "not a key" not in told, told
    journals = [path for path in (minio.folder / "state").rglob("*") if path.is_file()]
    key = (minio.folder / "key").read_text().strip()
    assert all(key not in path.read_text() for path in journals)


def versions(minio):
    minio.s3.create_bucket(Bucket="kept")
    minio.s3.put_bucket_versioning(Bucket="kept", VersioningConfiguration={"Status": "Enabled"})
    for body in (b"1", b"22", b"333"):
        minio.s3.put_object(Bucket="kept", Key="a b/f", Body=body)
    minio.s3.delete_object(Bucket="kept", Key="a b/f")
    minio.s3.put_object(Bucket="kept", Key="g", Body=b"4444")
    lines = [json.loads(line) for line in
             minio.run("--json", "ls", "-r", "--all-versions", "s3://kept/").splitlines()]
    assert [(v["key"], v.get("size"), v["latest"], v["deleted"]) for v in lines] == [
        ("a b/f", None, True, True), ("a b/f", 3, False, False), ("a b/f", 2, False, False), ("a b/f", 1, False, False),
        ("g", 4, True, False)], lines
    assert len({v["version_id"] for v in lines}) == 5
    level = minio.run("ls", "--all-versions", "s3://kept/").splitlines()
    assert len(level) == 2 and level[0].endswith("DIR a b/"), level
    assert len(minio.run("ls", "--all-versions", "s3://kept/a*").splitlines()) == 4
    for i in range(1005):
        minio.s3.put_object(Bucket="kept", Key="many", Body=b"")
    assert len(minio.run("ls", "--all-versions", "s3://kept/many").splitlines()) == 1005


def old_versions(minio):
    """Reads, restores and deletes versions: by their ids, and as of a time."""
    minio.s3.create_bucket(Bucket="past")
    minio.s3.put_bucket_versioning(Bucket="past", VersioningConfiguration={"Status": "Enabled"})

    def put(key, body):
        return minio.s3.put_object(Bucket="past", Key=key, Body=body, Metadata={"body": body.decode()})["VersionId"]

    def now():
        """The time of the last write, in milliseconds of the store. Later writes have later ones."""
        versions = minio.s3.list_object_versions(Bucket="past")["Versions"]
        time.sleep(0.002)
        return max(version["LastModified"] for version in versions).isoformat(timespec="milliseconds")[:23]

    first = put("d/a", b"old a")
    put("d/b", b"old b")
    put("d/only", b"old only")
    then = now()
    put("d/a", b"new a, longer")
    put("d/new", b"new")
    minio.s3.delete_object(Bucket="past", Key="d/b")
    marker = minio.s3.delete_object(Bucket="past", Key="d/only")["VersionId"]

    assert [line.split()[-1] for line in minio.run("ls", "-r", "--at", then, "s3://past/").splitlines()] == [
        "d/a", "d/b", "d/only"]
    assert minio.run("ls", "--at", then, "s3://past/").split() == ["DIR", "d/"]
    assert minio.run("cat", "--at", then, "s3://past/d/a") == "old a"
    assert minio.run("cat", "--version-id", first, "s3://past/d/a") == "old a"
    assert minio.run("cat", "s3://past/d/a") == "new a, longer"
    assert json.loads(minio.run("--json", "du", "--at", then, "s3://past/d/"))["objects"] == 3
    head = json.loads(minio.run("--json", "head", "--version-id", first, "s3://past/d/a"))
    assert head["version_id"] == first and head["metadata"] == {"body": "old a"}, head
    minio.run("cp", "--version-id", first, "s3://past/d/a", "back")
    assert (minio.folder / "back").read_text() == "old a"
    minio.run("cp", "-r", "--at", then, "s3://past/d/", "as-of")
    assert sorted(path.name for path in (minio.folder / "as-of").iterdir()) == ["a", "b", "only"]
    # Faults are named.
    assert "is no time" in minio.run("ls", "--at", "yesterday", "s3://past/", status=2)
    assert "are for s3://" in minio.run("ls", "--at", then, ".", status=2)
    assert "may be many" in minio.run("cp", "-r", "--version-id", first, "s3://past/d/a", "x", status=2)
    assert "delete marker" in minio.run("cat", "--version-id", marker, "s3://past/d/only", status=2)
    minio.run("cat", "--version-id", "00000000-0000-0000-0000-000000000000", "s3://past/d/a", status=4)
    minio.run("cat", "--at", then, "s3://past/d/new", status=4)

    # An old version becomes the current one again, by a copy on the server, and with it all that was there.
    minio.run("cp", "--version-id", first, "s3://past/d/a", "s3://past/d/a")
    assert minio.run("cat", "s3://past/d/a") == "old a"
    minio.run("undelete", "s3://past/d/only")
    assert minio.run("cat", "s3://past/d/only") == "old only"
    assert "is or was" in minio.run("undelete", "s3://past/d/never", status=4)
    minio.s3.delete_object(Bucket="past", Key="d/only")
    minio.s3.delete_object(Bucket="past", Key="d/only")
    assert len(minio.run("undelete", "-r", "--dry-run", "s3://past/d/").splitlines()) == 2
    minio.run("undelete", "-r", "s3://past/d/")
    assert minio.run("cat", "s3://past/d/b", "s3://past/d/only") == "old bold only"
    put("d/a", b"newer")
    minio.run("sync", "--at", then, "--checksum", "--delete", "s3://past/d/", "s3://past/d/")
    assert minio.run("cat", "s3://past/d/*") == "old aold bold only"

    # Versions go for good.
    minio.run("rm", "--version-id", first, "s3://past/d/a")
    assert first not in minio.run("ls", "-r", "--versions", "s3://past/")
    assert "has no version" in minio.run("rm", "--version-id", first, "s3://past/d/a", status=4)
    minio.run("rm", "--versions", "s3://past/d/a")
    assert "d/a" not in minio.run("ls", "-r", "--versions", "s3://past/")
    assert "d/b" in minio.run("ls", "-r", "--versions", "s3://past/")
    minio.run("rm", "-r", "--versions", "--exclude", "new", "s3://past/d/")
    assert {json.loads(line)["key"] for line in
            minio.run("--json", "ls", "-r", "--versions", "s3://past/").splitlines()} == {"d/new"}
    minio.run("rb", "--force", "s3://past")
    assert "past" not in minio.run("ls")


def properties(minio):
    """Tags, headers, locks and legal holds."""
    (minio.folder / "file").write_text("x")
    (minio.folder / "large").write_bytes(os.urandom(17 * MIB))
    for name in ("file", "large"):
        minio.run("cp", "--tagging", "team=a%2Bb&stage=raw", "--expires", "2030-01-31T00:00:00Z", "--content-language", "de",
                  name, f"s3://bucket/tagged/{name}")
        minio.run("cp", f"s3://bucket/tagged/{name}", f"s3://bucket/copied/{name}")
        minio.run("cp", "--tagging", "other=1", f"s3://bucket/tagged/{name}", f"s3://bucket/retagged/{name}")
        for folder, tags in (("tagged", {"team": "a+b", "stage": "raw"}), ("copied", {"team": "a+b", "stage": "raw"}),
                             ("retagged", {"other": "1"})):
            found = minio.s3.get_object_tagging(Bucket="bucket", Key=f"{folder}/{name}")["TagSet"]
            assert {tag["Key"]: tag["Value"] for tag in found} == tags, (folder, name, found)
            head = json.loads(minio.run("--json", "head", f"s3://bucket/{folder}/{name}"))
            assert head.get("content_language") == "de", head
            # MinIO drops Expires in its own copies.
            assert folder != "tagged" or head.get("expires") == "Thu, 31 Jan 2030 00:00:00 GMT", head
    minio.s3.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    version = minio.s3.put_object(Bucket="locked", Key="k", Body=b"x", ObjectLockLegalHoldStatus="ON",
                                  ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate="2030-01-31T00:00:00Z",
                                  ContentMD5=base64.b64encode(hashlib.md5(b"x").digest()).decode())["VersionId"]
    head = json.loads(minio.run("--json", "head", "s3://locked/k"))
    assert (head["lock_mode"], head["legal_hold"]) == ("GOVERNANCE", "ON"), head
    assert head["lock_until"].startswith("2030-01-31"), head
    assert "WORM" in minio.run("rm", "--version-id", version, "s3://locked/k", status=2)
    assert version in minio.run("ls", "--versions", "s3://locked/")


def etags_of_parts(minio):
    """Uneven parts, no checksum: the sizes of all parts must be asked for; a wrong byte must be found."""
    sizes = [5 * MIB, 7 * MIB, 6 * MIB, 100]
    data = os.urandom(sum(sizes))
    upload = minio.s3.create_multipart_upload(Bucket="bucket", Key="parts")["UploadId"]
    parts, at = [], 0
    for number, size in enumerate(sizes, 1):
        etag = minio.s3.upload_part(Bucket="bucket", Key="parts", UploadId=upload, PartNumber=number,
                                    Body=data[at:at + size])["ETag"]
        parts.append({"PartNumber": number, "ETag": etag})
        at += size
    minio.s3.complete_multipart_upload(Bucket="bucket", Key="parts", UploadId=upload, MultipartUpload={"Parts": parts})
    head = json.loads(minio.run("--json", "head", "s3://bucket/parts"))
    minio.run("cp", "s3://bucket/parts", "parts")
    assert (minio.folder / "parts").read_bytes() == data
    if "md5" in head:
        before = (minio.folder / "parts").stat().st_mtime_ns
        minio.run("cp", "--checksum", "s3://bucket/parts", "parts")
        assert (minio.folder / "parts").stat().st_mtime_ns == before
        (minio.folder / "parts").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        minio.run("cp", "--checksum", "s3://bucket/parts", "parts")
        assert (minio.folder / "parts").read_bytes() == data


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    options = parser.parse_args()
    with_boto3()
    find_program("minio")
    if not shutil.which("openssl"):
        skip("openssl is not installed")
    with tempfile.TemporaryDirectory() as folder, Minio(folder, os.path.abspath(options.millrace)) as minio:
        for part in (customers_keys, versions, old_versions, properties, etags_of_parts):
            part(minio)
            print(part.__name__, "passed", flush=True)


if __name__ == "__main__":
    sys.exit(main())
