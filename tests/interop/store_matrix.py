#!/usr/bin/env python3
"""Millrace against S3 servers that others wrote: sizes, names, listings, moves, syncs, deletions, uploads, URLs. boto3 is
the control: a check that fails with both counts against the server.

    store_matrix.py --millrace PROGRAM --server NAME...      starts minio, versitygw, gofakes3, moto
    store_matrix.py --millrace PROGRAM --endpoint URL         an endpoint of yours, with AWS_ACCESS_KEY_ID and so on
    store_matrix.py … --table                                 also prints a table for docs/guide/stores.md

Servers are found as in s3d_interop.py. Exit status: 0 no fault of Millrace's, 1 there is one, 77 no server is here.
"""
import argparse
import base64
import contextlib
import datetime
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
import zlib

from s3d_interop import ACCESS, PEERS, SECRET, skip, with_boto3

MIB = 1 << 20
SIZES = (0, 1, 4095, 65537, 5 * MIB - 1, 5 * MIB, 8 * MIB + 1, 20_000_000)
NAMES = ("plain", "with blank", "plus+sign", "per%cent", "per%20cent", "quote'\"", "<&>", "Grüße/中文", "🚂", "a=b?c#d", "~tilde",
         "dot.", ".hidden", "trailing ", "semi;colon", "comma,", "back\\slash", "star*", "[brackets]", "at@sign", "new\nline",
         "bell\x07", "p" * 200, "deep/" * 20 + "x", "double//slash", "./dot/x")
CHECKS = {}


def check(name, control=None):
    """Registers a check of the product and its control with boto3, if it has one."""
    def register(function):
        CHECKS[name] = (function, control)
        return function
    return register


class Context:
    def __init__(self, millrace, folder, environment):
        import boto3
        from botocore.config import Config
        self.millrace, self.folder = str(pathlib.Path(millrace).resolve()), pathlib.Path(folder)
        self.environment = dict(os.environ, **environment, AWS_CONFIG_FILE="/dev/null", AWS_SHARED_CREDENTIALS_FILE="/dev/null",
                                AWS_MAX_ATTEMPTS="4", XDG_STATE_HOME=str(self.folder / "state"))
        self.s3 = boto3.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"],
                               aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
                               aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"], region_name=environment["AWS_REGION"],
                               config=Config(retries={"max_attempts": 2}, s3={"addressing_style": "path"}))
        self.bucket = f"matrix-{os.getpid()}"

    def url(self, key=""):
        return f"s3://{self.bucket}/{key}"

    def run(self, *words, status=(0,), text=None):
        """Runs the program and returns its output. `status`: those that it may end with."""
        ran = subprocess.run([self.millrace, *map(str, words)], env=self.environment, cwd=self.folder, input=text,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)
        assert ran.returncode in status, f"{' '.join(map(str, words))[:120]}: status {ran.returncode}: {ran.stderr.decode()[-300:]}"
        return ran.stdout

    def file(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def keys(self, prefix):
        lines = [json.loads(line) for line in self.run("ls", "-r", "--json", self.url(prefix), status=(0, 4)).splitlines()]
        return [line["key"] for line in lines if "key" in line]  # status 4: nothing is there, which is a line, too

    def stored(self, key):
        return self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()


def content(size):
    return random.Random(size).randbytes(size)


def size_checks():
    for size in SIZES:
        def control(c, size=size):
            c.file("control", content(size))
            c.s3.upload_file(str(c.folder / "control"), c.bucket, "control")
            assert c.stored("control") == content(size)

        @check(f"cp up and down, {size} B", control)
        def copy(c, size=size):
            c.file("up", content(size))
            c.run("cp", "up", c.url(f"size/{size}"))
            assert c.stored(f"size/{size}") == content(size), "other bytes were stored"
            c.run("cp", c.url(f"size/{size}"), "down")
            assert (c.folder / "down").read_bytes() == content(size), "other bytes came back"

        @check(f"mv there and back, {size} B", control)
        def move(c, size=size):
            c.file("moved", content(size))
            c.run("mv", "moved", c.url("moved"))
            assert not (c.folder / "moved").exists(), "the source stays"
            c.run("mv", c.url("moved"), c.url("moved-on"))
            c.run("mv", c.url("moved-on"), "moved")
            assert (c.folder / "moved").read_bytes() == content(size), "other bytes came back"
            assert not c.keys("moved"), "an object stays"

        @check(f"pipe and cat, {size} B", control)
        def stream(c, size=size):
            c.run("pipe", c.url(f"piped/{size}"), text=content(size))
            assert c.run("cat", c.url(f"piped/{size}")) == content(size), "other bytes came back"

    # gofakes3 keeps the checksum of the object that a multipart upload replaces, so that nobody who looks can read it.
    def control(c):
        small, large = content(100), content(8 * MIB + 1)
        checksum = base64.b64encode(zlib.crc32(small).to_bytes(4, "big")).decode()
        c.s3.put_object(Bucket=c.bucket, Key="replaced-control", Body=small, ChecksumCRC32=checksum)
        c.file("control", large)
        c.s3.upload_file(str(c.folder / "control"), c.bucket, "replaced-control")
        assert c.stored("replaced-control") == large

    @check("a large object replaces a small one", control)
    def replace(c):
        for size in (100, 8 * MIB + 1):
            c.run("pipe", c.url("replaced"), text=content(size))
            assert c.run("cat", c.url("replaced")) == content(size), "other bytes came back"


def name_checks():
    for number, name in enumerate(NAMES):
        def control(c, number=number, name=name):
            key = f"control{number}/{name}"
            c.s3.put_object(Bucket=c.bucket, Key=key, Body=b"x")
            assert c.stored(key) == b"x"
            listed = [o["Key"] for o in c.s3.list_objects_v2(Bucket=c.bucket, Prefix=f"control{number}/").get("Contents", [])]
            c.s3.delete_object(Bucket=c.bucket, Key=key)
            assert listed == [key], f"lists {listed}"

        @check(f"the name {name[:24]!r}", control)
        def named(c, number=number, name=name):
            key, prefix = f"names{number}/{name}", f"names{number}/"
            c.run("pipe", c.url(key), text=name.encode())
            assert c.keys(prefix) == [key], f"lists {c.keys(prefix)}"
            assert c.run("cat", "--raw", c.url(key)) == name.encode(), "other bytes came back"
            c.run("rm", "--raw", c.url(key))
            assert not c.keys(prefix), "it stays"


def many(c, prefix, count):
    for i in range(count):
        c.file(f"{prefix}/{i % 7}/f{i:05}", b"x" * (i % 5))


def boto_list(c):
    for i in range(1200):
        c.s3.put_object(Bucket=c.bucket, Key=f"control-list/{i:05}", Body=b"")
    pages = c.s3.get_paginator("list_objects_v2").paginate(Bucket=c.bucket, Prefix="control-list/")
    listed = [o["Key"] for page in pages for o in page.get("Contents", [])]
    assert listed == sorted(listed) and len(listed) == 1200, f"lists {len(listed)} of 1200 keys, sorted: {listed == sorted(listed)}"


@check("1,500 objects up, listed, down", boto_list)
def listing(c):
    many(c, "many", 1500)
    c.run("cp", "-r", "--quiet", "many/", c.url("many/"))
    assert len(c.keys("many/")) == 1500, f"lists {len(c.keys('many/'))}"
    c.run("cp", "-r", "--quiet", c.url("many/"), "again/")
    assert sum(1 for p in (c.folder / "again").rglob("*") if p.is_file()) == 1500


@check("du", boto_list)
def usage(c):
    assert json.loads(c.run("du", "--json", c.url("many/")).splitlines()[-1])["objects"] == 1500


@check("ls of folders")
def folders(c):
    lines = [json.loads(line) for line in c.run("ls", "--json", c.url("many/")).splitlines()]
    assert len(lines) == 7, lines


def boto_delete(c):
    c.s3.put_object(Bucket=c.bucket, Key="control-rm", Body=b"")
    assert "Errors" not in c.s3.delete_objects(Bucket=c.bucket, Delete={"Objects": [{"Key": "control-rm"}]})


@check("sync has nothing to do twice")
def sync_twice(c):
    assert json.loads(c.run("--json", "sync", "many/", c.url("many/")).splitlines()[-1])["items"] == 0
    assert json.loads(c.run("--json", "sync", c.url("many/"), "again/").splitlines()[-1])["items"] == 0


@check("sync --delete up and down")
def sync_delete(c):
    c.file("one/a", b"a")
    c.run("pipe", c.url("sync/extra"), text=b"x")
    c.run("sync", "--delete", "one/", c.url("sync/"))
    assert c.keys("sync/") == ["sync/a"], c.keys("sync/")
    c.file("two/extra", b"x")
    c.run("sync", "--delete", c.url("sync/"), "two/")
    assert [p.name for p in (c.folder / "two").iterdir()] == ["a"]


@check("sync in the store")
def sync_inside(c):
    c.run("sync", "--quiet", c.url("many/0/"), c.url("copy/"))
    assert len(c.keys("copy/")) == len(c.keys("many/0/"))


@check("cp -n keeps what is there", lambda c: control_condition(c))
def no_clobber(c):
    c.run("pipe", c.url("kept"), text=b"first")
    c.file("second", b"second")
    c.run("cp", "-n", "second", c.url("kept"))
    assert c.stored("kept") == b"first", "it was replaced"


def control_condition(c):
    c.s3.put_object(Bucket=c.bucket, Key="condition", Body=b"1")
    with contextlib.suppress(Exception):
        c.s3.put_object(Bucket=c.bucket, Key="condition", Body=b"2", IfNoneMatch="*")
    assert c.stored("condition") == b"1", "If-None-Match is ignored"


@check("doctor finds conditional writes", control_condition)
def conditions(c):
    c.run("doctor", c.url())


def control_metadata(c):
    c.s3.put_object(Bucket=c.bucket, Key="metadata", Body=b"", ContentType="text/x", CacheControl="max-age=5", Metadata={"a": "1"})
    head = c.s3.head_object(Bucket=c.bucket, Key="metadata")
    assert (head["ContentType"], head["CacheControl"], head["Metadata"]) == ("text/x", "max-age=5", {"a": "1"}), head


@check("metadata and headers stay in a copy", control_metadata)
def metadata(c):
    c.file("page.html", b"<p>")
    c.run("cp", "--cache-control", "max-age=5", "--metadata", "a=1", "page.html", c.url("page.html"))
    c.run("cp", c.url("page.html"), c.url("copied.html"))
    head = c.s3.head_object(Bucket=c.bucket, Key="copied.html")
    assert head["ContentType"].startswith("text/html"), head["ContentType"]
    assert (head["CacheControl"], head["Metadata"]) == ("max-age=5", {"a": "1"}), head


def control_presigned(c):
    where = {"Bucket": c.bucket, "Key": "control-signed"}
    put = c.s3.generate_presigned_url("put_object", Params=where)
    urllib.request.urlopen(urllib.request.Request(put, data=b"signed", method="PUT"), timeout=30).close()
    with urllib.request.urlopen(c.s3.generate_presigned_url("get_object", Params=where), timeout=30) as answer:
        assert answer.read() == b"signed", "other bytes came back"


@check("presigned URLs", control_presigned)
def presigned(c):
    put = c.run("presign", "--method", "PUT", c.url("signed")).decode().strip()
    urllib.request.urlopen(urllib.request.Request(put, data=b"signed", method="PUT"), timeout=30).close()
    with urllib.request.urlopen(c.run("presign", c.url("signed")).decode().strip(), timeout=30) as answer:
        assert answer.read() == b"signed"


@check("an absent object is status 4")
def absent(c):
    c.run("cat", c.url("absent"), status=(4,))
    c.run("cp", c.url("absent"), "never", status=(4,))
    assert not (c.folder / "never").exists()


def control_uploads(c):
    upload = c.s3.create_multipart_upload(Bucket=c.bucket, Key="control-upload")["UploadId"]
    listed = c.s3.list_multipart_uploads(Bucket=c.bucket).get("Uploads", [])
    c.s3.abort_multipart_upload(Bucket=c.bucket, Key="control-upload", UploadId=upload)
    assert [u["Key"] for u in listed] == ["control-upload"], listed


@check("unfinished uploads are listed and aborted", control_uploads)
def uploads(c):
    c.s3.create_multipart_upload(Bucket=c.bucket, Key="up/a b")
    listed = [json.loads(line)["key"] for line in c.run("uploads", "ls", "--json", c.url()).splitlines()]
    assert listed == ["up/a b"], listed
    c.run("uploads", "abort", c.url())
    assert not c.run("uploads", "ls", c.url())


@check("rm -r of 1,500 objects", boto_delete)
def remove(c):
    c.run("rm", "-r", "--quiet", c.url("many/"))
    assert not c.keys("many/")


def control_empty(c):
    for page in c.s3.get_paginator("list_objects_v2").paginate(Bucket=c.bucket):
        for listed in page.get("Contents", []):
            c.s3.delete_object(Bucket=c.bucket, Key=listed["Key"])
    c.s3.delete_bucket(Bucket=c.bucket)


@check("rb --force", control_empty)
def remove_bucket(c):
    c.run("rb", "--force", "--yes", "--quiet", c.url().rstrip("/"))


size_checks()
name_checks()
# What removes comes last.
for last in ("rm -r of 1,500 objects", "rb --force"):
    CHECKS[last] = CHECKS.pop(last)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def command(name, folder, port):
    """The command line of a server, or None if it is not installed."""
    address = f"127.0.0.1:{port}"
    path = os.pathsep.join([os.path.join(PEERS, "bin"), os.path.join(PEERS, "venv", "bin"), os.environ["PATH"]])
    program = shutil.which("moto_server" if name == "moto" else name, path=path)
    if not program:
        return None
    return {"minio": [program, "server", "--quiet", "--address", address, folder],
            "versitygw": [program, "--access", ACCESS, "--secret", SECRET, "--port", address, "posix", folder],
            "gofakes3": [program, "-backend", "memory", "-host", address],
            "moto": [program, "-H", "127.0.0.1", "-p", str(port)]}[name]


@contextlib.contextmanager
def server(name, folder):
    """Starts a server. Yields the environment of its clients, or None if it is not here."""
    port, data = free_port(), folder / "data"
    data.mkdir()
    words = command(name, data, port)
    if words is None:
        yield None
        return
    environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET,
                   "AWS_REGION": "us-east-1"}
    process = subprocess.Popen(words, env=dict(os.environ, MINIO_ROOT_USER=ACCESS, MINIO_ROOT_PASSWORD=SECRET, MINIO_BROWSER="off"),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, f"{name} ended with {process.returncode}"
            time.sleep(0.1)
        yield environment
    finally:
        process.terminate()
        process.wait(30)


def failure(function, context):
    try:
        function(context)
        return None
    except subprocess.TimeoutExpired as error:
        return f"no end after {error.timeout} s"
    except AssertionError as error:
        return str(error) or traceback.extract_tb(error.__traceback__)[-1].line
    except Exception as error:  # noqa: BLE001: whatever the server makes boto3 raise is evidence
        return f"{type(error).__name__}: {error}"


def run_matrix(name, context):
    """Returns a verdict for each check: "ok", "server" or "product"."""
    context.run("mb", context.url().rstrip("/"))
    verdicts = {}
    for title, (product, control) in CHECKS.items():
        wrong = failure(product, context)
        at_server = failure(control, context) if wrong and control else None
        verdicts[title] = "ok" if not wrong else "server" if at_server else "product"
        if wrong:
            print(f"{name}: {title}: {verdicts[title]}: {wrong[:300]}" + (f"\n    boto3: {at_server[:200]}" if at_server else ""), flush=True)
    return verdicts


def print_table(results):
    print("| check | " + " | ".join(results) + " |\n|---|" + "---|" * len(results))
    for title in CHECKS:
        print(f"| {title.replace('|', chr(92) + '|')} | " + " | ".join(verdicts[title] for verdicts in results.values()) + " |")
    for word in ("ok", "server", "product"):
        print(f"| **{word}** | " + " | ".join(str(list(v.values()).count(word)) for v in results.values()) + " |")
    print(f"\n{len(CHECKS)} checks, {datetime.date.today()}.")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--server", nargs="*", default=[], choices=["minio", "versitygw", "gofakes3", "moto"])
    parser.add_argument("--endpoint")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    with_boto3()
    results = {}
    with tempfile.TemporaryDirectory() as top:
        for name in arguments.server:
            folder = pathlib.Path(top) / name
            folder.mkdir()
            with server(name, folder) as environment:
                if environment:
                    results[name] = run_matrix(name, Context(arguments.millrace, folder, environment))
        if arguments.endpoint:
            keep = {key: os.environ[key] for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
            environment = {"AWS_ENDPOINT_URL": arguments.endpoint, "AWS_REGION": os.environ.get("AWS_REGION", "us-east-1"), **keep}
            results[arguments.endpoint] = run_matrix(arguments.endpoint, Context(arguments.millrace, top, environment))
    if not results:
        skip(f"none of {', '.join(arguments.server)} is here")
    if arguments.table:
        print_table(results)
    for name, verdicts in results.items():
        counts = {word: list(verdicts.values()).count(word) for word in ("ok", "server", "product")}
        print(f"{name}: {counts['ok']} of {len(verdicts)} right, {counts['server']} the server's, {counts['product']} Millrace's")
    return 1 if any("product" in verdicts.values() for verdicts in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
