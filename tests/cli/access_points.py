#!/usr/bin/env python3
"""Presigned URLs of access points: `millrace presign` makes those that botocore makes.

Exit status: 0 all right, 77 botocore is not installed, anything else a failure.
"""
import argparse
import datetime
import os
import subprocess
import sys
import unittest.mock
import urllib.parse

PEERS = os.environ.get("MILLRACE_PEERS", "")
KEY, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a/token+="

# Region of the client, bucket, endpoint (None: Amazon's).
CASES = [
    ("us-west-2", "arn:aws:s3:us-west-2:123456789012:accesspoint/team-a", None),
    ("us-east-1", "arn:aws:s3:eu-central-1:123456789012:accesspoint/team-a", None),
    ("us-west-2", "arn:aws:s3:us-west-2:123456789012:accesspoint:team-a", None),
    ("cn-north-1", "arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/team-a", None),
    ("us-gov-west-1", "arn:aws-us-gov:s3:us-gov-west-1:123456789012:accesspoint/team-a", None),
    ("us-west-2", "team-a-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias", None),
    ("us-west-2", "arn:aws:s3:us-west-2:123456789012:accesspoint/team-a",
     "https://accesspoint.vpce-1a2b3c4d-5e6f.s3.us-west-2.vpce.amazonaws.com"),
    ("us-west-2", "arn:aws:s3:us-west-2:123456789012:accesspoint/team-a", "http://localhost:9000"),
]
OBJECT = "folder/a b+é.bin"


def parts(url):
    split = urllib.parse.urlsplit(url)
    return split.scheme, split.netloc, split.path, dict(urllib.parse.parse_qsl(split.query))


def ours(millrace, region, bucket, endpoint):
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                   "AWS_SESSION_TOKEN": TOKEN, "AWS_REGION": region}
    command = [millrace, "presign", f"s3://{bucket}/{OBJECT}", "--expires-in", "5m"]
    command += ["--endpoint-url", endpoint] if endpoint else []
    return subprocess.run(command, env=environment, text=True, check=True, stdout=subprocess.PIPE).stdout.strip()


def theirs(region, bucket, endpoint, when):
    import botocore.session
    from botocore.config import Config
    client = botocore.session.get_session().create_client(
        "s3", region_name=region, endpoint_url=endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
        aws_session_token=TOKEN, config=Config(signature_version="s3v4", s3={"addressing_style": "virtual"}))
    with unittest.mock.patch("botocore.auth.get_current_datetime", return_value=when):
        return client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": OBJECT}, 300)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--millrace", required=True)
    millrace = parser.parse_args().millrace
    try:
        import botocore.auth
    except ImportError:
        python = os.path.join(PEERS, "venv", "bin", "python")
        if not PEERS or not os.path.exists(python) or sys.prefix == os.path.dirname(os.path.dirname(python)):
            print("skipped: botocore is neither installed nor in MILLRACE_PEERS/venv")
            sys.exit(77)
        os.execv(python, [python, *sys.argv])
    if not hasattr(botocore.auth, "get_current_datetime"):
        print("skipped: this botocore has no clock that a test can set; 1.40 has one")
        sys.exit(77)
    for case in CASES:
        mine = parts(ours(millrace, *case))
        when = datetime.datetime.strptime(mine[3]["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
        reference = parts(theirs(*case, when))
        assert mine == reference, f"{case}\n  ours   {mine}\n  theirs {reference}"
        print("equal:", mine[1])


main()
