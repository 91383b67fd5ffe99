#!/usr/bin/env python3
"""Runs one client (boto3, s5cmd, rclone, awscli) through what its users do, against a fresh `millrace s3d`.

Exit status: 0 all right, 77 the client is not installed (the reason is printed), anything else a failure.
"""
import argparse
import hashlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ACCESS, SECRET = "interop", "interop-" + os.urandom(8).hex()
PEERS = os.environ.get("MILLRACE_PEERS", "")
SKIPPED = 77
MIB = 1 << 20


def skip(reason):
    print("skipped:", reason)
    sys.exit(SKIPPED)


def find_program(name):
    found = shutil.which(name, path=os.path.join(PEERS, "bin")) if PEERS else None
    found = found or (shutil.which(name, path=os.path.join(PEERS, "venv", "bin")) if PEERS else None)
    return found or shutil.which(name) or skip(f"{name} is neither under MILLRACE_PEERS nor on PATH")


class Endpoint:
    """A `millrace s3d` on a free port, with a folder of its own; gone when the block ends."""

    def __init__(self, millrace, folder):
        self.millrace, self.folder = millrace, pathlib.Path(folder)
        self.environment = dict(
            os.environ, AWS_ACCESS_KEY_ID=ACCESS, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1",
            AWS_DEFAULT_REGION="us-east-1", AWS_CONFIG_FILE="/dev/null", AWS_SHARED_CREDENTIALS_FILE="/dev/null",
            AWS_EC2_METADATA_DISABLED="true", MILLRACE_S3D_ACCESS_KEY=ACCESS, MILLRACE_S3D_SECRET_KEY=SECRET)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_CA_BUNDLE", "HTTP_PROXY", "http_proxy"):
            self.environment.pop(name, None)

    def __enter__(self):
        port_file = self.folder / "port"
        self.process = subprocess.Popen(
            [self.millrace, "s3d", "--root", str(self.folder / "root"), "--port-file", str(port_file)],
            env=self.environment, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit("millrace s3d did not start")
            time.sleep(0.01)
        self.url = "http://127.0.0.1:" + port_file.read_text().strip()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        if self.process.wait(timeout=30) != 0:
            sys.exit(f"millrace s3d ended with {self.process.returncode}")

    def run(self, *command, check=True):
        done = subprocess.run([str(word) for word in command], env=self.environment, text=True, cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if check and done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout}")
        return done.stdout if check else done


def make_tree(folder, seed=1):
    """A few files, small and large, with names that are hard to encode."""
    rng = random.Random(seed)
    files = {"plain.txt": 20, "empty": 0, "with space+plus %25.txt": 100, "sub/dir/é中文.bin": 5000, "big.bin": 18 * MIB + 7}
    for name, size in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(size))
    return files


def digest_tree(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


# --- boto3 ----------------------------------------------------------------------------------------------------------


def with_boto3():
    """Goes on under the peers' Python where this one has no boto3."""
    try:
        import boto3  # noqa: F401
    except ImportError:
        python = os.path.join(PEERS, "venv", "bin", "python")
        if not PEERS or not os.path.exists(python) or sys.prefix == os.path.dirname(os.path.dirname(python)):
            skip("boto3 is neither installed nor in MILLRACE_PEERS/venv")
        os.execv(python, [python, *sys.argv])


class Boto3:
    def __init__(self, endpoint):
        import boto3
        from botocore.config import Config
        self.endpoint = endpoint
        config = Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}, signature_version="s3v4")
        self.s3 = boto3.client("s3", endpoint_url=endpoint.url, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET,
                               region_name="us-east-1", config=config)
        self.s3.create_bucket(Bucket="bucket")

    def expect(self, code, call, **arguments):
        from botocore.exceptions import ClientError
        try:
            call(**arguments)
        except ClientError as error:
            assert error.response["Error"]["Code"] == code, (code, error.response)
            return
        raise AssertionError(f"{call.__name__} should have failed with {code}")

    def body(self, key, **arguments):
        return self.s3.get_object(Bucket="bucket", Key=key, **arguments)["Body"].read()

    def objects(self):
        put = self.s3.put_object(Bucket="bucket", Key="a b/+é%2F", Body=b"content", ContentType="text/x", Metadata={"k": "v"},
                                 CacheControl="no-cache", ContentDisposition="inline")
        got = self.s3.get_object(Bucket="bucket", Key="a b/+é%2F")
        assert got["Body"].read() == b"content" and got["ETag"] == put["ETag"] == f'"{hashlib.md5(b"content").hexdigest()}"'
        assert (got["ContentType"], got["Metadata"], got["CacheControl"], got["ContentDisposition"]) == (
            "text/x", {"k": "v"}, "no-cache", "inline")
        assert "ContentEncoding" not in got
        assert self.body("a b/+é%2F", Range="bytes=2-3") == b"nt" and self.body("a b/+é%2F", Range="bytes=-2") == b"nt"
        self.expect("InvalidRange", self.s3.get_object, Bucket="bucket", Key="a b/+é%2F", Range="bytes=9-")
        self.expect("NoSuchKey", self.s3.get_object, Bucket="bucket", Key="none")
        self.expect("NoSuchBucket", self.s3.get_object, Bucket="nobucket", Key="none")
        self.expect("404", self.s3.head_object, Bucket="bucket", Key="none")

    def checksums(self):
        for kind in ("CRC32", "SHA1", "SHA256"):
            put = self.s3.put_object(Bucket="bucket", Key="sum", Body=b"x" * 100_000, ChecksumAlgorithm=kind)
            head = self.s3.head_object(Bucket="bucket", Key="sum", ChecksumMode="ENABLED")
            assert put["Checksum" + kind] == head["Checksum" + kind] and head["ChecksumType"] == "FULL_OBJECT"
        self.expect("BadDigest", self.s3.put_object, Bucket="bucket", Key="sum", Body=b"x", ChecksumCRC32="AAAAAA==")
        self.expect("BadDigest", self.s3.put_object, Bucket="bucket", Key="sum", Body=b"x",
                    ContentMD5="1B2M2Y8AsgTpgAmY7PhCfg==")

    def conditions(self):
        etag = self.s3.put_object(Bucket="bucket", Key="c", Body=b"1", IfNoneMatch="*")["ETag"]
        self.expect("PreconditionFailed", self.s3.put_object, Bucket="bucket", Key="c", Body=b"2", IfNoneMatch="*")
        self.expect("304", self.s3.get_object, Bucket="bucket", Key="c", IfNoneMatch=etag)
        self.expect("PreconditionFailed", self.s3.get_object, Bucket="bucket", Key="c", IfMatch='"other"')
        self.s3.put_object(Bucket="bucket", Key="c", Body=b"2", IfMatch=etag)
        self.expect("PreconditionFailed", self.s3.put_object, Bucket="bucket", Key="c", Body=b"3", IfMatch=etag)
        self.expect("NoSuchKey", self.s3.put_object, Bucket="bucket", Key="free", Body=b"3", IfMatch=etag)
        assert self.body("c") == b"2"

    def listing(self):
        names = [f"l/{i % 7}/{i:03}" for i in range(60)] + ["l/\u0001odd", "l/é", "l/~"]
        for name in names:
            self.s3.put_object(Bucket="bucket", Key=name, Body=b"")
        for operation in ("list_objects_v2", "list_objects"):
            pages = self.s3.get_paginator(operation).paginate(Bucket="bucket", Prefix="l/", PaginationConfig={"PageSize": 9})
            assert [entry["Key"] for page in pages for entry in page["Contents"]] == sorted(names, key=str.encode)
            pages = self.s3.get_paginator(operation).paginate(Bucket="bucket", Prefix="l/", Delimiter="/",
                                                              PaginationConfig={"PageSize": 3})
            folders = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
            assert folders == [f"l/{i}/" for i in range(7)], folders
        after = self.s3.list_objects_v2(Bucket="bucket", Prefix="l/6", StartAfter="l/6/048")
        assert [entry["Key"] for entry in after["Contents"]] == ["l/6/055"] and after["KeyCount"] == 1

    def multipart(self):
        from boto3.s3.transfer import TransferConfig
        content = random.Random(3).randbytes(17 * MIB + 5)
        path = self.endpoint.folder / "big"
        path.write_bytes(content)
        config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
        self.s3.upload_file(str(path), "bucket", "big", Config=config, ExtraArgs={"Metadata": {"m": "1"}})
        self.s3.download_file("bucket", "big", str(path) + ".back", Config=config)
        assert pathlib.Path(str(path) + ".back").read_bytes() == content
        head = self.s3.head_object(Bucket="bucket", Key="big")
        assert head["ETag"].endswith('-4"') and head["Metadata"] == {"m": "1"}
        assert self.s3.head_object(Bucket="bucket", Key="big", PartNumber=2)["PartsCount"] == 4

        upload = self.s3.create_multipart_upload(Bucket="bucket", Key="manual", ChecksumAlgorithm="CRC32",
                                                 ChecksumType="FULL_OBJECT")["UploadId"]
        name = dict(Bucket="bucket", Key="manual", UploadId=upload)
        one = self.s3.upload_part(**name, PartNumber=1, Body=content[:5 * MIB])
        two = self.s3.upload_part_copy(**name, PartNumber=2, CopySource={"Bucket": "bucket", "Key": "big"},
                                       CopySourceRange=f"bytes={5 * MIB}-{len(content) - 1}")["CopyPartResult"]
        parts = [{"PartNumber": 1, "ETag": one["ETag"], "ChecksumCRC32": one["ChecksumCRC32"]},
                 {"PartNumber": 2, "ETag": two["ETag"], "ChecksumCRC32": two["ChecksumCRC32"]}]
        assert [part["Size"] for part in self.s3.list_parts(**name)["Parts"]] == [5 * MIB, len(content) - 5 * MIB]
        assert self.s3.list_multipart_uploads(Bucket="bucket")["Uploads"][0]["UploadId"] == upload
        self.expect("InvalidPart", self.s3.complete_multipart_upload, **name,
                    MultipartUpload={"Parts": [dict(parts[0], ETag='"00"')]})
        self.s3.complete_multipart_upload(**name, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
        assert self.body("manual") == content
        upload = self.s3.create_multipart_upload(Bucket="bucket", Key="gone")["UploadId"]
        self.s3.abort_multipart_upload(Bucket="bucket", Key="gone", UploadId=upload)
        self.expect("NoSuchUpload", self.s3.list_parts, Bucket="bucket", Key="gone", UploadId=upload)

    def copies(self):
        self.s3.put_object(Bucket="bucket", Key="from é", Body=b"x", Metadata={"a": "1"})
        source = {"Bucket": "bucket", "Key": "from é"}
        self.s3.copy_object(Bucket="bucket", Key="to", CopySource=source)
        assert self.s3.head_object(Bucket="bucket", Key="to")["Metadata"] == {"a": "1"}
        self.s3.copy_object(Bucket="bucket", Key="to", CopySource=source, MetadataDirective="REPLACE", Metadata={"b": "2"})
        assert self.s3.head_object(Bucket="bucket", Key="to")["Metadata"] == {"b": "2"}
        self.expect("PreconditionFailed", self.s3.copy_object, Bucket="bucket", Key="to", CopySource=source,
                    CopySourceIfMatch='"other"')

    def presigned(self):
        url = self.s3.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "p é"}, ExpiresIn=60)
        urllib.request.urlopen(urllib.request.Request(url, data=b"by url", method="PUT"))
        url = self.s3.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "p é",
                                                                   "ResponseContentType": "text/y"}, ExpiresIn=60)
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == b"by url" and answer.headers["Content-Type"] == "text/y"
        try:
            urllib.request.urlopen(url.replace("text%2Fy", "text%2Fz"))
            raise AssertionError("a changed URL was accepted")
        except urllib.error.HTTPError as error:
            assert error.code == 403

    def identities(self):
        import boto3
        for access, secret, code in ((ACCESS, "wrong", "SignatureDoesNotMatch"), ("who", SECRET, "InvalidAccessKeyId")):
            other = boto3.client("s3", endpoint_url=self.endpoint.url, aws_access_key_id=access,
                                 aws_secret_access_key=secret, region_name="eu-west-1")
            self.expect(code, other.list_buckets)

    def buckets(self):
        assert [bucket["Name"] for bucket in self.s3.list_buckets()["Buckets"]] == ["bucket"]
        assert self.s3.get_bucket_location(Bucket="bucket")["LocationConstraint"] is None
        assert "Status" not in self.s3.get_bucket_versioning(Bucket="bucket")
        self.expect("NoSuchBucketPolicy", self.s3.get_bucket_policy, Bucket="bucket")
        self.expect("NoSuchTagSet", self.s3.get_bucket_tagging, Bucket="bucket")
        assert self.s3.get_object_tagging(Bucket="bucket", Key="c")["TagSet"] == []
        assert self.s3.get_object_acl(Bucket="bucket", Key="c")["Grants"][0]["Permission"] == "FULL_CONTROL"
        self.expect("NotImplemented", self.s3.put_bucket_policy, Bucket="bucket", Policy="{}")
        self.expect("BucketNotEmpty", self.s3.delete_bucket, Bucket="bucket")

    def deletes(self):
        keys = [entry["Key"] for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket="bucket")
                for entry in page["Contents"]]
        odd = "l/\u0001odd"  # no XML can name it, so that DeleteObjects could not report it
        keys.remove(odd)
        self.s3.delete_object(Bucket="bucket", Key=odd)
        done = self.s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": key} for key in keys]})
        assert sorted(entry["Key"] for entry in done["Deleted"]) == sorted(keys) and "Errors" not in done
        self.s3.delete_bucket(Bucket="bucket")
        self.expect("404", self.s3.head_bucket, Bucket="bucket")


def boto3(endpoint):
    client = Boto3(endpoint)
    for step in (client.objects, client.checksums, client.conditions, client.listing, client.multipart, client.copies,
                 client.presigned, client.identities, client.buckets, client.deletes):
        print("boto3:", step.__name__, flush=True)
        step()


# --- command lines --------------------------------------------------------------------------------------------------


def s5cmd(endpoint, program):
    s5 = [program, "--endpoint-url", endpoint.url, "--retry-count", "0"]
    source = endpoint.folder / "tree"
    files = make_tree(source)
    endpoint.run(*s5, "mb", "s3://bucket")
    endpoint.run(*s5, "cp", "--part-size", "5", f"{source}/", "s3://bucket/data/")
    listed = endpoint.run(*s5, "ls", "s3://bucket/data/*")
    assert all(name in listed for name in files), listed
    assert "DIR" in endpoint.run(*s5, "ls", "s3://bucket/")
    back = endpoint.folder / "back"
    endpoint.run(*s5, "sync", "s3://bucket/data/*", f"{back}/")
    assert digest_tree(back) == digest_tree(source)
    endpoint.run(*s5, "cp", "s3://bucket/data/big.bin", "s3://bucket/copy.bin")
    (source / "plain.txt").write_text("changed to another length")
    (source / "empty").unlink()
    endpoint.run(*s5, "sync", "--delete", f"{source}/", "s3://bucket/data/")
    shutil.rmtree(back)
    endpoint.run(*s5, "sync", "s3://bucket/data/*", f"{back}/")
    assert digest_tree(back) == digest_tree(source)
    endpoint.run(*s5, "rm", "s3://bucket/*")
    assert endpoint.run(*s5, "ls", "s3://bucket/*", check=False).returncode != 0
    endpoint.run(*s5, "rb", "s3://bucket")


def rclone(endpoint, program):
    remote = (f":s3,provider=Other,env_auth=true,force_path_style=true,region=us-east-1,endpoint='{endpoint.url}',"
              "upload_cutoff=6M,chunk_size=5M:")
    tool = [program, "--config", "/dev/null", "--retries", "1", "--low-level-retries", "1"]
    source, back = endpoint.folder / "tree", endpoint.folder / "back"
    make_tree(source)
    endpoint.run(*tool, "mkdir", remote + "bucket")
    endpoint.run(*tool, "copy", source, remote + "bucket/data")
    endpoint.run(*tool, "check", source, remote + "bucket/data")
    endpoint.run(*tool, "sync", remote + "bucket/data", back)
    assert digest_tree(back) == digest_tree(source)
    (source / "plain.txt").write_text("changed")
    (source / "empty").unlink()
    endpoint.run(*tool, "sync", source, remote + "bucket/data")
    endpoint.run(*tool, "check", source, remote + "bucket/data")
    endpoint.run(*tool, "copy", remote + "bucket/data", remote + "bucket/copy")
    assert "big.bin" in endpoint.run(*tool, "lsf", "-R", remote + "bucket/copy")
    endpoint.run(*tool, "purge", remote + "bucket")


def awscli(endpoint, program):
    aws = [program, "--endpoint-url", endpoint.url, "s3"]
    source, back = endpoint.folder / "tree", endpoint.folder / "back"
    make_tree(source)
    if endpoint.run(*aws, "mb", "s3://bucket", check=False).returncode == 127:
        skip(f"{program} does not run here")
    endpoint.run(*aws, "sync", "--no-progress", source, "s3://bucket/data")
    endpoint.run(*aws, "sync", "--no-progress", "s3://bucket/data", back)
    assert digest_tree(back) == digest_tree(source)
    endpoint.run(*aws, "cp", "--no-progress", "s3://bucket/data/big.bin", "s3://bucket/copy.bin")
    endpoint.run(*aws, "rb", "--force", "s3://bucket")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=["boto3", "s5cmd", "rclone", "awscli"])
    parser.add_argument("--millrace", required=True, help="the program under test")
    options = parser.parse_args()
    if options.client == "boto3":
        with_boto3()
    program = None if options.client == "boto3" else find_program({"awscli": "aws"}.get(options.client, options.client))
    with tempfile.TemporaryDirectory(prefix="millrace-interop-") as folder, Endpoint(options.millrace, folder) as endpoint:
        if options.client == "boto3":
            boto3(endpoint)
        else:
            globals()[options.client](endpoint, program)
    print(f"{options.client}: all right")


if __name__ == "__main__":
    main()
