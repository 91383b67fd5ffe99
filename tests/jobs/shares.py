#!/usr/bin/env python3
"""Work by shares: `data tokenize`, `sync`, `duplicate` and `ckpt import` over several processes, one of which is killed
in the middle. The result has the bytes that one process makes.

    shares.py --millrace PROGRAM
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time

WAIT_S, OBJECTS = 240, 24
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1",
        "MILLRACE_S3D_ACCESS_KEY": "test", "MILLRACE_S3D_SECRET_KEY": "test-secret"}
# Writes to the bucket `slow` take long enough for a process to be killed between them.
SLOW = "latency=1s,op=PutObject,bucket=slow;latency=1s,op=CopyObject,bucket=slow"


class Store:
    def __init__(self, millrace, folder, endpoint):
        self.millrace, self.folder = millrace, folder
        self.environment = os.environ | KEYS | {"MILLRACE_STATE_DIR": str(folder / "state"), "AWS_ENDPOINT_URL": endpoint}
        words = random.Random(1)
        (folder / "texts").mkdir()
        for number in range(OBJECTS):
            texts = (" ".join(words.choice(("mill", "race", "wheel", "water", "stone")) for _ in range(30)) for _ in range(40))
            (folder / "texts" / f"{number:02}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.run("tokenizer", "train", "--input", folder / "texts" / "00.jsonl", "--vocab-size", "300", "--output", folder / "t.model")
        self.run("mb", "s3://data", "s3://slow")
        self.run("sync", folder / "texts", "s3://data/texts/")

    def start(self, *words, quiet=False):
        return subprocess.Popen([self.millrace, *map(str, words)], env=self.environment, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL if quiet else None, text=True)

    def run(self, *words):
        return subprocess.run([self.millrace, *map(str, words)], env=self.environment, check=True, stdout=subprocess.PIPE,
                              text=True, timeout=WAIT_S).stdout

    def keys(self, url):
        """The names below a prefix, with those of Millrace's own objects."""
        ran = subprocess.run([self.millrace, "--json", "ls", "--recursive", "--all", url], env=self.environment, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return {line["key"]: line for line in map(json.loads, ran.stdout.splitlines()) if "key" in line}

    def bytes_of(self, url):
        return subprocess.run([self.millrace, "cat", url], env=self.environment, check=True, stdout=subprocess.PIPE).stdout

    def until(self, holds, what):
        end = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end, what
            time.sleep(0.02)


def tokenize(store, output, *share):
    return ["data", "tokenize", "s3://data/texts/", "--tokenizer", store.folder / "t.model", "--output", output, "--threads", "1", *share]


def parts(store, name):
    return [key for key in store.keys("s3://slow/") if f".millrace/{name}.parts-" in key]


def assert_same_tokens(store, one, other):
    for ending in (".bin", ".idx"):
        assert store.bytes_of(one + ending) == store.bytes_of(other + ending), ending


def test_tokenize_by_shares_makes_the_bytes_of_one(store):
    store.run(*tokenize(store, "s3://data/alone"))
    first = store.start(*tokenize(store, "s3://slow/shared", "--share", "0/3"))
    second = store.start(*tokenize(store, "s3://slow/shared", "--share", "1/3"))
    store.until(lambda: len(parts(store, "shared")) >= 3, "some parts")
    second.kill()
    second.communicate()
    said = json.loads(store.run("--json", *tokenize(store, "s3://slow/shared", "--share", "2/3")))
    assert (said["joined"], said["parts"], said["own_parts"]) == (False, OBJECTS, OBJECTS // 3), said
    assert first.poll() is None, "the first share waits for the second"
    again = json.loads(store.run("--json", *tokenize(store, "s3://slow/shared", "--share", "1/3")))
    assert again["resumed"] < OBJECTS // 3, again
    first.communicate(timeout=WAIT_S)
    assert first.returncode == 0 and parts(store, "shared") == []
    assert_same_tokens(store, "s3://data/alone", "s3://slow/shared")


def test_a_job_tokenizes_with_its_ranks(store):
    """A rank is killed: the ranks start again and make what is missing."""
    job = store.folder / "tokens.yaml"
    job.write_text(json.dumps({"name": "tokens", "run": {
        "processes_per_node": 3, "command": [str(word) for word in (store.millrace, *tokenize(store, "s3://slow/ranks", "--share", "auto"))]}}))
    process = store.start("job", "run", job, quiet=True)
    store.until(lambda: len(parts(store, "ranks")) >= 4, "some parts")
    ranks = json.loads(store.run("--json", "job", "status", "tokens"))["ranks"]
    os.kill(ranks[2]["pid"], signal.SIGKILL)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0 and json.loads(store.run("--json", "job", "status", "tokens"))["restarts"] == 1
    assert_same_tokens(store, "s3://data/alone", "s3://slow/ranks")


def test_sync_by_shares_copies_every_file_once(store):
    """The destination has one file too many, which one of the shares deletes."""
    store.run("cp", store.folder / "t.model", "s3://slow/copy/extra")
    command = ["sync", "--delete", store.folder / "texts", "s3://slow/copy/", "--concurrency", "1"]
    first = store.start(*command, "--share", "0/2")
    store.until(lambda: len(store.keys("s3://slow/copy/")) >= 3, "some files")
    first.kill()
    first.communicate()
    copied = len(store.keys("s3://slow/copy/"))
    assert copied < OBJECTS // 2, "it was killed in the middle"
    lines = [json.loads(line) for share in ("1/2", "0/2") for line in store.run("--json", *command, "--share", share).splitlines()]
    done = [line["destination"] for line in lines if line.get("source") and line.get("destination")]
    assert len(done) == len(set(done)), "no file is in two shares"
    # `copied` counts the extra file, too; a request of the killed process may yet have been carried out.
    assert OBJECTS - copied <= len(done) <= OBJECTS - copied + 1, (copied, done)
    assert sorted(pathlib.PurePath(key).name for key in store.keys("s3://slow/copy/")) == sorted(os.listdir(store.folder / "texts"))
    for name in os.listdir(store.folder / "texts"):
        assert store.bytes_of(f"s3://slow/copy/{name}") == (store.folder / "texts" / name).read_bytes()
    # Too many names to delete are counted over all shares.
    for number in range(3):
        store.run("cp", store.folder / "t.model", f"s3://slow/copy/extra-{number}")
    for share in ("0/2", "1/2"):
        ran = subprocess.run([store.millrace, *map(str, command), "--max-delete", "2", "--share", share], env=store.environment,
                             check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert ran.returncode != 0 and "lacks 3 names" in ran.stderr, ran.stderr


def test_duplicate_by_shares_makes_the_copies_of_one(store):
    store.run("duplicate", "s3://data/texts/", "s3://data/many/", "--count", "50")
    for share in ("1/3", "0/3", "2/3"):
        store.run("duplicate", "s3://data/texts/", "s3://data/shared-many/", "--count", "50", "--share", share)
    one, other = store.keys("s3://data/many/"), store.keys("s3://data/shared-many/")
    assert {key.removeprefix("many/"): line["etag"] for key, line in one.items()} == \
        {key.removeprefix("shared-many/"): line["etag"] for key, line in other.items()} and len(one) == 50


def write_model(folder):
    """A model of eight tensors in two files of safetensors, without a library for it."""
    folder.mkdir()
    values = random.Random(2)
    for shard in range(2):
        header, data = {}, b""
        for number in range(4):
            bytes_ = values.randbytes(4 * 64 * 1024)
            header[f"model.layers.{4 * shard + number}.weight"] = {
                "dtype": "F32", "shape": [256, 256], "data_offsets": [len(data), len(data) + len(bytes_)]}
            data += bytes_
        text = json.dumps(header).encode()
        (folder / f"model-{shard + 1:05}-of-00002.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text('{"model_type": "other"}')


def assert_same_checkpoint(store, one, other):
    """Compares the files of two checkpoints, and their manifests but for who wrote them and when."""
    manifests = [json.loads(store.bytes_of(f"{url}/step-00000000.json")) for url in (one, other)]
    attempts = [manifest["attempt"] for manifest in manifests]
    for manifest, attempt in zip(manifests, attempts):
        for name in ("attempt", "created", "writer", "crc32c"):
            del manifest[name]
        for file in manifest["files"]:
            file["name"] = file["name"].replace(attempt, "ATTEMPT")
    assert manifests[0] == manifests[1]
    for file in manifests[0]["files"]:
        contents = [store.bytes_of(f"{url}/step-00000000/{file['name'].replace('ATTEMPT', attempt)}")
                    for url, attempt in zip((one, other), attempts)]
        assert contents[0] == contents[1], file["name"]


def test_import_by_shares_makes_the_checkpoint_of_one(store):
    write_model(store.folder / "model")
    store.run("sync", store.folder / "model", "s3://data/model/")

    def words(url, *share):
        return ["ckpt", "import", "s3://data/model", url, "--file-size", "300KB", *share]

    def notes():
        return [key for key in store.keys("s3://slow/import/") if "/file-" in key]
    store.run(*words("s3://data/import"))
    first = store.start(*words("s3://slow/import", "--share", "0/2"))
    second = store.start(*words("s3://slow/import", "--share", "1/2"))
    store.until(lambda: len(notes()) >= 4, "some files")
    second.kill()
    second.communicate()
    assert "import/step-00000000.json" not in store.keys("s3://slow/import/"), "the first share waits for the second"
    done = json.loads(store.run("--json", *words("s3://slow/import", "--share", "1/2")))
    assert done["event"] == "share_imported" and done["own_files"] == 4 and 0 < done["resumed"] < 4, done
    first.communicate(timeout=WAIT_S)
    assert first.returncode == 0 and notes() == []
    assert_same_checkpoint(store, "s3://data/import", "s3://slow/import")
    store.run("ckpt", "verify", "s3://slow/import")
    again = json.loads(store.run("--json", *words("s3://slow/import", "--share", "1/2")))
    assert again["event"] == "imported", again


def test_a_job_imports_with_its_ranks(store):
    job = store.folder / "import.yaml"
    command = [store.millrace, "ckpt", "import", "s3://data/model", "s3://data/ranks", "--file-size", "300KB", "--share", "auto"]
    job.write_text(json.dumps({"name": "imports", "run": {"processes_per_node": 3, "command": list(map(str, command))}}))
    store.run("job", "run", job)
    assert_same_checkpoint(store, "s3://data/import", "s3://data/ranks")


def test_a_wrong_share_does_nothing(store):
    for share, message in (("3/3", "should be a share"), ("auto", "RANK and WORLD_SIZE are not set")):
        environment = {name: value for name, value in store.environment.items() if name not in ("RANK", "WORLD_SIZE")}
        ran = subprocess.run([store.millrace, *map(str, tokenize(store, "s3://data/none", "--share", share))], env=environment,
                             check=False, stderr=subprocess.PIPE, text=True)
        assert ran.returncode == 2 and message in ran.stderr, ran.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        server = subprocess.Popen([arguments.millrace, "--json", "s3d", "--root", folder / "store", "--no-sync", "--fault", SLOW],
                                  env=os.environ | KEYS, stdout=subprocess.PIPE, text=True)
        stack.callback(server.wait)
        stack.callback(server.terminate)
        store = Store(arguments.millrace, folder, json.loads(server.stdout.readline())["endpoint"])
        for test in (test_tokenize_by_shares_makes_the_bytes_of_one, test_a_job_tokenizes_with_its_ranks,
                     test_sync_by_shares_copies_every_file_once, test_duplicate_by_shares_makes_the_copies_of_one,
                     test_import_by_shares_makes_the_checkpoint_of_one, test_a_job_imports_with_its_ranks, test_a_wrong_share_does_nothing):
            test(store)
            print(f"ok {test.__name__}", flush=True)


main()
