#!/usr/bin/env python3
"""What S3 does, in the cases that Ceph's s3-tests cover, through boto3 against a fresh `millrace s3d`.

The cases are written anew after that suite's; each is a function whose name follows it (test_bucket_list_delimiter_basic is
bucket_list_delimiter_basic here). Left out is what s3d does not do: ACLs, tags, versions, locks, POST forms, customer keys,
lifecycle, policies, logging, several users. Exit status: 0 all right, 77 boto3 is not installed.

    s3_cases.py --millrace PROGRAM [PATTERN]
"""
import argparse
import base64
import concurrent.futures
import datetime
import fnmatch
import hashlib
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
import zlib

from s3d_interop import ACCESS, SECRET, Endpoint, with_boto3

MIB = 1 << 20
CASES = []


def case(function):
    CASES.append(function)
    return function


class Bucket:
    """A client and a bucket of the case's own."""

    def __init__(self, url, name):
        self.url, self.name, self.s3 = url, name, self.client(url)
        self.s3.create_bucket(Bucket=name)

    @staticmethod
    def client(url, access=ACCESS, secret=SECRET):
        import boto3
        from botocore.config import Config
        return boto3.client("s3", endpoint_url=url, aws_access_key_id=access, aws_secret_access_key=secret,
                            region_name="us-east-1",
                            config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}, signature_version="s3v4"))

    def __getattr__(self, operation):
        """Operations of the client on this bucket."""
        call = getattr(self.s3, operation)
        return lambda **arguments: call(**{"Bucket": self.name, **arguments})

    def put(self, *keys, body=b"content"):
        for key in keys:
            self.put_object(Key=key, Body=body)

    def read(self, key, **arguments):
        return self.get_object(Key=key, **arguments)["Body"].read()

    def keys(self, v2=True, **arguments):
        answer = (self.list_objects_v2 if v2 else self.list_objects)(**arguments)
        return ([entry["Key"] for entry in answer.get("Contents", [])],
                [entry["Prefix"] for entry in answer.get("CommonPrefixes", [])])

    def upload(self, key, parts, **arguments):
        """Uploads the parts and completes; gives the answer of the completion."""
        upload = self.create_multipart_upload(Key=key, **arguments)["UploadId"]
        return self.complete(key, upload, [self.part(key, upload, i + 1, part) for i, part in enumerate(parts)])

    def part(self, key, upload, number, body, **arguments):
        done = self.upload_part(Key=key, UploadId=upload, PartNumber=number, Body=body, **arguments)
        return {"PartNumber": number, "ETag": done["ETag"],
                **{name: done[name] for name in done if name.startswith("Checksum") and name != "ChecksumType"}}

    def complete(self, key, upload, parts, **arguments):
        return self.complete_multipart_upload(Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **arguments)


def refused(code, call, status=None, **arguments):
    from botocore.exceptions import ClientError
    try:
        call(**arguments)
    except ClientError as error:
        got = error.response["Error"]["Code"]
        assert got == code, f"{got} instead of {code}: {error}"
        assert status in (None, error.response["ResponseMetadata"]["HTTPStatusCode"]), error.response
        return
    raise AssertionError(f"{code} was expected; the request succeeded")


def fetch(url, method="GET", body=None, headers=None):
    """Status and body of a plain request."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers or {}, method=method)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


# --- listings -------------------------------------------------------------------------------------------------------


def on_both_versions(b, expected, **arguments):
    for v2 in (True, False):
        assert b.keys(v2, **arguments) == expected, (v2, arguments, b.keys(v2, **arguments))


@case
def bucket_list_empty(b):
    on_both_versions(b, ([], []))


@case
def bucket_list_delimiter_basic(b):
    b.put("asdf", "boo/bar", "boo/baz/xyzzy", "cquux/thud", "cquux/bla")
    on_both_versions(b, (["asdf"], ["boo/", "cquux/"]), Delimiter="/")
    on_both_versions(b, (["boo/bar"], ["boo/baz/"]), Delimiter="/", Prefix="boo/")
    on_both_versions(b, ([], ["boo/"]), Delimiter="/", Prefix="bo")


@case
def bucket_list_delimiter_other_than_slash(b):
    b.put("bar", "baz", "cab", "foo", "b%ar", "c ab", "d\nb")
    on_both_versions(b, (["d\nb", "foo"], ["b%a", "ba", "c a", "ca"]), Delimiter="a")
    on_both_versions(b, (["bar", "baz", "c ab", "cab", "d\nb", "foo"], ["b%"]), Delimiter="%")
    on_both_versions(b, (["b%ar", "bar", "baz", "cab", "d\nb", "foo"], ["c "]), Delimiter=" ")
    on_both_versions(b, (["b%ar", "bar", "baz", "c ab", "cab", "d\nb", "foo"], []), Delimiter="\x0a\x0a")


@case
def bucket_list_delimiter_and_prefix_page_by_page(b):
    b.put("asdf", "boo/bar", "boo/baz/xyzzy", "cquux/thud", "cquux/bla")
    seen, token = [], None
    for _ in range(10):
        answer = b.list_objects_v2(Delimiter="/", MaxKeys=1, **({"ContinuationToken": token} if token else {}))
        assert answer["KeyCount"] == 1
        seen += [o["Key"] for o in answer.get("Contents", [])] + [p["Prefix"] for p in answer.get("CommonPrefixes", [])]
        token = answer.get("NextContinuationToken")
        if not token:
            break
    assert seen == ["asdf", "boo/", "cquux/"], seen
    first = b.list_objects(Delimiter="/", MaxKeys=2)
    assert first["IsTruncated"] and first["NextMarker"] == "boo/", first
    assert b.keys(False, Delimiter="/", Marker="boo/") == ([], ["cquux/"])


@case
def bucket_list_prefix_basic(b):
    b.put("foo/bar", "foo/baz", "quux", "a\x0ab")
    on_both_versions(b, (["foo/bar", "foo/baz"], []), Prefix="foo/")
    on_both_versions(b, ([], []), Prefix="d")
    on_both_versions(b, (["a\x0ab"], []), Prefix="a\x0a")


@case
def bucket_list_maxkeys(b):
    b.put("bar", "baz", "foo", "quxx")
    answer = b.list_objects(MaxKeys=1)
    assert answer["IsTruncated"] and [o["Key"] for o in answer["Contents"]] == ["bar"]
    assert b.keys(False, Marker="bar") == (["baz", "foo", "quxx"], [])
    for v2 in (True, False):
        answer = (b.list_objects_v2 if v2 else b.list_objects)(MaxKeys=0)
        assert not answer["IsTruncated"] and not answer.get("Contents")
    assert b.list_objects_v2()["MaxKeys"] == 1000
    status, body = fetch(b.s3.generate_presigned_url("list_objects_v2", {"Bucket": b.name}))
    assert status == 200, body


@case
def bucket_list_maxkeys_invalid(b):
    from botocore.auth import S3SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    request = AWSRequest("GET", f"{b.url}/{b.name}?max-keys=blah")
    S3SigV4QueryAuth(Credentials(ACCESS, SECRET), "s3", "us-east-1").add_auth(request)
    status, body = fetch(request.url)
    assert status == 400 and b"<Code>InvalidArgument</Code>" in body, body


@case
def bucket_list_marker(b):
    b.put("bar", "baz", "foo", "quxx")
    assert b.keys(False, Marker="") == (["bar", "baz", "foo", "quxx"], [])
    assert b.keys(False, Marker="blah") == (["foo", "quxx"], [])
    assert b.keys(False, Marker="zzz") == ([], [])
    assert b.keys(False, Marker="\x0a") == (["bar", "baz", "foo", "quxx"], [])
    assert b.keys(True, StartAfter="blah") == (["foo", "quxx"], [])
    assert b.keys(True, StartAfter="zzz") == ([], [])
    refused("InvalidArgument", b.list_objects_v2, 400, ContinuationToken="no token of ours")


@case
def bucket_listv2_fetchowner(b):
    b.put("a")
    assert "Owner" not in b.list_objects_v2()["Contents"][0]
    assert b.list_objects_v2(FetchOwner=True)["Contents"][0]["Owner"]["ID"]
    assert b.list_objects()["Contents"][0]["Owner"]["ID"]


@case
def bucket_list_return_data(b):
    b.put("a", "b", body=b"x" * 17)
    for entry in b.list_objects()["Contents"]:
        head = b.head_object(Key=entry["Key"])
        assert (entry["ETag"], entry["Size"]) == (head["ETag"], head["ContentLength"])
        assert entry["LastModified"].replace(microsecond=0) == head["LastModified"]


@case
def bucket_list_objects_anonymous_fails(b):
    assert fetch(f"{b.url}/{b.name}")[0] == 403
    assert b"<Code>AccessDenied</Code>" in fetch(f"{b.url}/{b.name}")[1]


@case
def bucket_list_many(b):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: b.put(f"{i:04}"), range(1100)))
    first = b.list_objects_v2()
    assert first["KeyCount"] == 1000 and first["IsTruncated"]
    assert b.list_objects_v2(ContinuationToken=first["NextContinuationToken"])["KeyCount"] == 100


# --- buckets --------------------------------------------------------------------------------------------------------


@case
def bucket_not_existing(b):
    for call in (b.s3.list_objects, b.s3.list_objects_v2, b.s3.delete_bucket):
        refused("NoSuchBucket", call, 404, Bucket=b.name + "-absent")
    refused("404", b.s3.head_bucket, 404, Bucket=b.name + "-absent")
    refused("NoSuchBucket", b.s3.put_object, 404, Bucket=b.name + "-absent", Key="k", Body=b"x")


@case
def bucket_create_naming_bad(b):
    for name in ("a", "aa", "Alpha", "a_b", "a..b", "a-.b", "192.168.5.123", "x" * 64):
        status, body = fetch(f"{b.url}/{name}", "PUT", b"")
        assert status == 403, "not signed"
    from botocore.exceptions import ParamValidationError
    for name in ("192.168.5.123", "a..b", "Alpha"):
        try:
            refused("InvalidBucketName", b.s3.create_bucket, 400, Bucket=name)
        except ParamValidationError:
            pass


@case
def bucket_delete_nonempty(b):
    b.put("foo")
    refused("BucketNotEmpty", b.delete_bucket, 409)
    b.delete_object(Key="foo")
    b.delete_bucket()
    refused("NoSuchBucket", b.list_objects, 404)
    b.create_bucket()


@case
def bucket_create_exists(b):
    try:
        b.create_bucket()
    except b.s3.exceptions.BucketAlreadyOwnedByYou:
        pass
    assert b.name in [bucket["Name"] for bucket in b.s3.list_buckets()["Buckets"]]


@case
def list_buckets_bad_auth(b):
    refused("InvalidAccessKeyId", Bucket.client(b.url, access="nobody").list_buckets, 403)
    refused("SignatureDoesNotMatch", Bucket.client(b.url, secret="wrong").list_buckets, 403)
    assert fetch(b.url + "/")[0] == 403


# --- objects --------------------------------------------------------------------------------------------------------


@case
def object_write_read_update_read_delete(b):
    b.put("foo", body=b"bar")
    assert b.read("foo") == b"bar"
    b.put("foo", body=b"soup")
    assert b.read("foo") == b"soup"
    b.delete_object(Key="foo")
    refused("NoSuchKey", b.get_object, 404, Key="foo")
    refused("404", b.head_object, 404, Key="foo")
    b.delete_object(Key="foo")


@case
def object_write_check_etag(b):
    assert b.put_object(Key="foo", Body=b"bar")["ETag"] == '"37b51d194a7513e45b56f6524f2d51f2"'


@case
def object_write_headers(b):
    expires = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)
    b.put_object(Key="foo", Body=b"bar", CacheControl="public, max-age=14400", Expires=expires, ContentType="text/plain",
                 ContentDisposition="bla", ContentEncoding="gzip", ContentLanguage="esperanto")
    head = b.head_object(Key="foo")
    assert head["CacheControl"] == "public, max-age=14400" and head["ContentEncoding"] == "gzip"
    assert head["ContentType"] == "text/plain" and head["ContentDisposition"] == "bla"
    assert head["ContentLanguage"] == "esperanto" and head["ExpiresString"] == "Tue, 01 Jan 2030 00:00:00 GMT"
    told = b.get_object(Key="foo", ResponseContentType="foo/bar", ResponseCacheControl="no-cache",
                        ResponseContentDisposition="bar", ResponseContentEncoding="aaa",
                        ResponseContentLanguage="klingon")
    assert (told["ContentType"], told["CacheControl"], told["ContentDisposition"]) == ("foo/bar", "no-cache", "bar")


@case
def object_set_get_metadata(b):
    for metadata in ({"meta1": "mymeta"}, {"meta1": "mymeta2", "another": ""}, {}):
        b.put_object(Key="foo", Body=b"bar", Metadata=metadata)
        assert b.get_object(Key="foo")["Metadata"] == metadata


@case
def object_metadata_limit(b):
    b.put_object(Key="foo", Metadata={"m": "x" * 2000})
    refused("MetadataTooLarge", b.put_object, 400, Key="foo", Metadata={"m": "x" * 2048})
    refused("MetadataTooLarge", b.create_multipart_upload, 400, Key="foo", Metadata={"m": "x" * 2048})
    assert b.head_object(Key="foo")["Metadata"] == {"m": "x" * 2000}


@case
def object_head_zero_bytes(b):
    b.put("foo", body=b"")
    assert b.head_object(Key="foo")["ContentLength"] == 0 and b.read("foo") == b""


@case
def object_names(b):
    names = ["  ", "'", '"', "$", "%", "&", "*", "+", ",", "_", "a b", "a?b", "a#b", "ü中文", "a//b", "a/", "x" * 1024]
    for name in names:
        b.put(name, body=name.encode())
    assert all(b.read(name) == name.encode() for name in names)
    assert b.keys()[0] == sorted(names, key=str.encode)
    refused("KeyTooLongError", b.put_object, 400, Key="x" * 1025)


@case
def object_write_bad_digest(b):
    bad = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    refused("BadDigest", b.put_object, 400, Key="foo", Body=b"bar", ContentMD5=bad)
    refused("InvalidDigest", b.put_object, 400, Key="foo", Body=b"bar", ContentMD5="AWS HAHAHA")
    refused("NoSuchKey", b.get_object, 404, Key="foo")


@case
def object_conditional_get(b):
    etag = b.put_object(Key="foo", Body=b"bar")["ETag"]
    past, future = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=d) for d in (-1, 1))
    assert b.read("foo", IfMatch=etag) == b"bar"
    refused("PreconditionFailed", b.get_object, 412, Key="foo", IfMatch='"ABCORZ"')
    refused("304", b.get_object, 304, Key="foo", IfNoneMatch=etag)
    assert b.read("foo", IfNoneMatch='"ABCORZ"') == b"bar"
    assert b.read("foo", IfModifiedSince=past) == b"bar"
    refused("PreconditionFailed", b.get_object, 412, Key="foo", IfUnmodifiedSince=past)
    assert b.read("foo", IfUnmodifiedSince=future) == b"bar"
    time.sleep(1)  # the header counts in seconds
    refused("304", b.get_object, 304, Key="foo", IfModifiedSince=datetime.datetime.now(datetime.timezone.utc))


@case
def object_conditional_put(b):
    b.put_object(Key="foo", Body=b"bar", IfNoneMatch="*")
    refused("PreconditionFailed", b.put_object, 412, Key="foo", Body=b"zar", IfNoneMatch="*")
    etag = b.head_object(Key="foo")["ETag"]
    refused("PreconditionFailed", b.put_object, 412, Key="foo", Body=b"zar", IfMatch='"ABCORZ"')
    b.put_object(Key="foo", Body=b"zar", IfMatch=etag)
    assert b.read("foo") == b"zar"
    refused("NoSuchKey", b.put_object, 404, Key="absent", Body=b"zar", IfMatch=etag)


@case
def ranged_request(b):
    content = bytes(range(256)) * 100
    b.put("foo", body=content)
    answer = b.get_object(Key="foo", Range="bytes=4-7")
    assert answer["Body"].read() == content[4:8] and answer["ContentRange"] == f"bytes 4-7/{len(content)}"
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert b.read("foo", Range="bytes=4-") == content[4:]
    assert b.read("foo", Range="bytes=-7") == content[-7:]
    assert b.read("foo", Range=f"bytes=-{len(content) + 5}") == content
    refused("InvalidRange", b.get_object, 416, Key="foo", Range=f"bytes={len(content)}-")
    b.put("empty", body=b"")
    refused("InvalidRange", b.get_object, 416, Key="empty", Range="bytes=40-50")


@case
def object_raw_get_and_presigned(b):
    b.put("foo", body=b"bar")
    assert fetch(f"{b.url}/{b.name}/foo")[0] == 403
    get = {"Bucket": b.name, "Key": "foo"}
    assert fetch(b.s3.generate_presigned_url("get_object", get, 1000)) == (200, b"bar")
    put = b.s3.generate_presigned_url("put_object", get, 1000)
    assert fetch(put, "PUT", b"soup")[0] == 200 and b.read("foo") == b"soup"
    for seconds in (0, -1, 609901):
        url = b.s3.generate_presigned_url("get_object", get, 1000).replace("X-Amz-Expires=1000", f"X-Amz-Expires={seconds}")
        status, body = fetch(url)
        assert status in (400, 403), (seconds, body)
    wrong = Bucket.client(b.url, secret="wrong").generate_presigned_url("get_object", get, 1000)
    status, body = fetch(wrong)
    assert status == 403 and b"SignatureDoesNotMatch" in body, body


@case
def multi_object_delete(b):
    b.put("key0", "key1", "key2")
    objects = {"Objects": [{"Key": f"key{i}"} for i in range(3)] + [{"Key": "absent"}]}
    assert len(b.delete_objects(Delete=objects)["Deleted"]) == 4
    assert b.keys() == ([], [])
    assert "Deleted" not in b.delete_objects(Delete={**objects, "Quiet": True})
    refused("MalformedXML", b.delete_objects, 400, Delete={"Objects": [{"Key": str(i)} for i in range(1001)]})


@case
def object_copy(b):
    source = {"Bucket": b.name, "Key": "foo"}
    b.put_object(Key="foo", Body=b"bar", Metadata={"a": "1"}, ContentType="text/x", CacheControl="no-store")
    for _ in range(2):  # the second replaces
        b.copy_object(Key="bar", CopySource=source)
    head = b.head_object(Key="bar")
    assert (head["Metadata"], head["ContentType"], head["CacheControl"]) == ({"a": "1"}, "text/x", "no-store")
    b.copy_object(Key="bar", CopySource=source, Metadata={"b": "2"}, MetadataDirective="REPLACE", ContentType="audio/ogg")
    head = b.head_object(Key="bar")
    assert (head["Metadata"], head["ContentType"]) == ({"b": "2"}, "audio/ogg") and "CacheControl" not in head
    refused("InvalidRequest", b.copy_object, 400, Key="foo", CopySource=source)
    b.copy_object(Key="foo", CopySource=source, Metadata={"foo": "bar"}, MetadataDirective="REPLACE")
    assert b.head_object(Key="foo")["Metadata"] == {"foo": "bar"} and b.read("foo") == b"bar"
    refused("NoSuchKey", b.copy_object, 404, Key="x", CopySource={"Bucket": b.name, "Key": "absent"})
    refused("NoSuchBucket", b.copy_object, 404, Key="x", CopySource={"Bucket": b.name + "-absent", "Key": "foo"})
    etag = b.head_object(Key="foo")["ETag"]
    b.copy_object(Key="x", CopySource=source, CopySourceIfMatch=etag)
    refused("PreconditionFailed", b.copy_object, 412, Key="x", CopySource=source, CopySourceIfMatch='"ABCORZ"')
    refused("PreconditionFailed", b.copy_object, 412, Key="x", CopySource=source, CopySourceIfNoneMatch=etag)


@case
def object_checksums(b):
    b.put_object(Key="foo", Body=b"bar", ChecksumAlgorithm="SHA256")
    told = b.head_object(Key="foo", ChecksumMode="ENABLED")
    assert told["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(b"bar").digest()).decode()
    crc = base64.b64encode(zlib.crc32(b"bar").to_bytes(4, "big")).decode()
    b.put_object(Key="foo", Body=b"bar", ChecksumCRC32=crc)
    assert b.head_object(Key="foo", ChecksumMode="ENABLED")["ChecksumCRC32"] == crc
    refused("BadDigest", b.put_object, 400, Key="foo", Body=b"zar", ChecksumCRC32=crc)
    refused("InvalidRequest", b.put_object, 400, Key="foo", Body=b"zar", ChecksumSHA256="bad")


# --- multipart ------------------------------------------------------------------------------------------------------


@case
def multipart_upload_sizes(b):
    for sizes in ([5 * MIB, 5 * MIB, 100], [5 * MIB], [1]):
        parts = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
        etag = b.upload("k", parts, Metadata={"foo": "bar"}, ContentType="text/bla")["ETag"]
        digest = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
        assert etag == f'"{digest}-{len(parts)}"', etag
        assert b.read("k") == b"".join(parts)
        head = b.head_object(Key="k")
        assert (head["Metadata"], head["ContentType"]) == ({"foo": "bar"}, "text/bla")
    assert "Uploads" not in b.list_multipart_uploads()


@case
def multipart_upload_empty(b):
    upload = b.create_multipart_upload(Key="k")["UploadId"]
    refused("MalformedXML", b.complete, 400, key="k", upload=upload, parts=[])


@case
def multipart_upload_size_too_small(b):
    upload = b.create_multipart_upload(Key="k")["UploadId"]
    parts = [b.part("k", upload, i, b"x" * 100) for i in (1, 2)]
    refused("EntityTooSmall", b.complete, 400, key="k", upload=upload, parts=parts)


@case
def multipart_upload_wrong_parts(b):
    upload = b.create_multipart_upload(Key="k")["UploadId"]
    part = b.part("k", upload, 1, b"x")
    refused("InvalidPart", b.complete, 400, key="k", upload=upload, parts=[{**part, "PartNumber": 9999}])
    refused("InvalidPart", b.complete, 400, key="k", upload=upload, parts=[{**part, "ETag": '"ffffffffffffffffffffffffffffffff"'}])
    second = b.part("k", upload, 2, b"y")
    refused("InvalidPartOrder", b.complete, 400, key="k", upload=upload, parts=[second, part])
    refused("InvalidArgument", b.upload_part, 400, Key="k", UploadId=upload, PartNumber=10001, Body=b"x")
    assert [p["PartNumber"] for p in b.list_parts(Key="k", UploadId=upload)["Parts"]] == [1, 2]
    page = b.list_parts(Key="k", UploadId=upload, MaxParts=1)
    assert page["IsTruncated"] and page["NextPartNumberMarker"] == 1


@case
def multipart_upload_resend_part(b):
    upload = b.create_multipart_upload(Key="k")["UploadId"]
    b.part("k", upload, 1, b"a" * 5 * MIB)
    parts = [b.part("k", upload, 1, b"b" * 5 * MIB), b.part("k", upload, 2, b"c")]
    b.complete("k", upload, parts)
    assert b.read("k") == b"b" * 5 * MIB + b"c"


@case
def multipart_upload_overwrite_existing_object(b):
    b.put("k", body=b"before")
    upload = b.create_multipart_upload(Key="k")["UploadId"]
    part = b.part("k", upload, 1, b"after")
    assert b.read("k") == b"before"
    b.complete("k", upload, [part])
    assert b.read("k") == b"after"


@case
def abort_multipart_upload(b):
    upload = b.create_multipart_upload(Key="k")["UploadId"]
    b.part("k", upload, 1, b"x")
    assert [u["UploadId"] for u in b.list_multipart_uploads()["Uploads"]] == [upload]
    b.abort_multipart_upload(Key="k", UploadId=upload)
    assert "Uploads" not in b.list_multipart_uploads()
    refused("NoSuchUpload", b.abort_multipart_upload, 404, Key="k", UploadId="absent")
    refused("NoSuchUpload", b.upload_part, 404, Key="k", UploadId=upload, PartNumber=1, Body=b"x")
    refused("NoSuchUpload", b.list_parts, 404, Key="k", UploadId=upload)
    refused("NoSuchKey", b.get_object, 404, Key="k")


@case
def multipart_copy(b):
    b.put("foo?bar", body=b"0123456789")
    source = {"Bucket": b.name, "Key": "foo?bar"}
    for wanted, expected in (({"CopySourceRange": "bytes=2-5"}, b"2345"), ({}, b"0123456789")):
        upload = b.create_multipart_upload(Key="k")["UploadId"]
        done = b.upload_part_copy(Key="k", UploadId=upload, PartNumber=1, CopySource=source, **wanted)
        b.complete("k", upload, [{"PartNumber": 1, "ETag": done["CopyPartResult"]["ETag"]}])
        assert b.read("k") == expected
    upload = b.create_multipart_upload(Key="k")["UploadId"]
    for bad in ("0-2", "bytes=0", "bytes=hello-world", "bytes=0-bar", "bytes=hello-", "bytes=0-2,3-5"):
        refused("InvalidArgument", b.upload_part_copy, 400, Key="k", UploadId=upload, PartNumber=1, CopySource=source,
                CopySourceRange=bad)


@case
def multipart_get_part(b):
    sizes = [5 * MIB, 6 * MIB, 17]
    b.upload("k", [bytes([i + 1]) * size for i, size in enumerate(sizes)])
    for i, size in enumerate(sizes):
        for call in (b.head_object, b.get_object):
            told = call(Key="k", PartNumber=i + 1)
            assert (told["PartsCount"], told["ContentLength"]) == (3, size), told
    refused("InvalidPartNumber", b.get_object, 416, Key="k", PartNumber=5)
    b.put("single", body=b"body")
    assert b.read("single", PartNumber=1) == b"body"


@case
def multipart_checksum_composite(b):
    parts = [b"a" * 5 * MIB, b"b"]
    upload = b.create_multipart_upload(Key="k", ChecksumAlgorithm="SHA256")["UploadId"]
    sent = [b.part("k", upload, i + 1, part, ChecksumAlgorithm="SHA256") for i, part in enumerate(parts)]
    bare = [{"PartNumber": part["PartNumber"], "ETag": part["ETag"]} for part in sent]
    refused("InvalidRequest", b.complete, 400, key="k", upload=upload, parts=bare)
    wrong = [sent[0], {**sent[1], "ChecksumSHA256": sent[0]["ChecksumSHA256"]}]
    refused("InvalidPart", b.complete, 400, key="k", upload=upload, parts=wrong)
    told = b.complete("k", upload, sent)
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()
    assert told["ChecksumSHA256"] == base64.b64encode(digest).decode() + "-2", told
    assert b.head_object(Key="k", ChecksumMode="ENABLED")["ChecksumSHA256"] == told["ChecksumSHA256"]


@case
def multipart_checksum_of_another_kind(b):
    upload = b.create_multipart_upload(Key="k", ChecksumAlgorithm="SHA256")["UploadId"]
    refused("InvalidRequest", b.upload_part, 400, Key="k", UploadId=upload, PartNumber=1, Body=b"x", ChecksumAlgorithm="CRC32")
    refused("InvalidRequest", b.create_multipart_upload, 400, Key="k", ChecksumAlgorithm="SHA256", ChecksumType="FULL_OBJECT")


@case
def unsupported_is_refused_not_ignored(b):
    refused("NotImplemented", b.put_object, 501, Key="foo", Body=b"bar", SSECustomerAlgorithm="AES256", SSECustomerKey="k" * 32)
    refused("NotImplemented", b.put_object, 501, Key="foo", Body=b"bar", Tagging="a=b")
    refused("NotImplemented", b.put_bucket_versioning, 501, VersioningConfiguration={"Status": "Enabled"})
    assert "Versions" not in b.list_object_versions()
    b.put("foo")
    assert [v["VersionId"] for v in b.list_object_versions()["Versions"]] == ["null"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--millrace", required=True)
    options = parser.parse_args()
    with_boto3()
    chosen = [c for c in CASES if fnmatch.fnmatch(c.__name__, options.pattern)]
    failed = []
    with tempfile.TemporaryDirectory() as folder, Endpoint(options.millrace, folder) as endpoint:
        for number, function in enumerate(chosen):
            try:
                function(Bucket(endpoint.url, f"case-{number}"))
            except Exception:  # the next case is none the worse for it
                failed.append(function.__name__)
                print(f"--- {function.__name__}\n{traceback.format_exc()}", flush=True)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} cases passed", *failed, sep="\n  ")
    sys.exit(1 if failed or not chosen else 0)


if __name__ == "__main__":
    main()
