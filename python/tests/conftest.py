"""Fixtures: an S3 endpoint (millrace s3d), a corpus in it, and a tokenizer trained on the corpus."""

import json
import os
import random
import subprocess

import pytest

BIN = os.environ["MILLRACE_BIN"]
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1"}
WORDS = "the river mill turns slowly while water falls over old wooden wheels and grain becomes flour 水车 转动".split()


def millrace(*arguments):
    subprocess.run([os.path.join(BIN, "millrace"), *arguments], check=True, stdout=subprocess.PIPE)


def records(count, seed=0):
    random_ = random.Random(seed)
    for i in range(count):
        text = " ".join(random_.choice(WORDS) for _ in range(random_.randint(5, 80)))
        yield {"title": f"record {i}", "text": text}


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("s3d")
    os.environ.update(ENVIRONMENT)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        os.environ.pop(name, None)
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    keys = {"MILLRACE_S3D_ACCESS_KEY": "test-key", "MILLRACE_S3D_SECRET_KEY": "test-secret"}
    server = subprocess.Popen(
        [os.path.join(BIN, "millrace"), "--json", "s3d", "--root", str(folder), "--no-sync"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **keys},
    )
    try:
        url = json.loads(server.stdout.readline())["endpoint"]
        os.environ["AWS_ENDPOINT_URL"] = url
        millrace("mb", "s3://corpus")
        yield url
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="session")
def corpus(endpoint, tmp_path_factory):
    """Returns the URL of two objects of records."""
    folder = tmp_path_factory.mktemp("corpus")
    for part in range(2):
        with open(folder / f"{part}.jsonl", "w", encoding="utf-8") as file:
            for record in records(300, part):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        millrace("cp", str(folder / f"{part}.jsonl"), f"s3://corpus/text/{part}.jsonl")
    return "s3://corpus/text/*.jsonl"


@pytest.fixture(scope="session")
def model(corpus, tmp_path_factory):
    """Returns the URL of a tokenizer."""
    millrace("tokenizer", "train", "--input", corpus, "--vocab-size", "400", "--output", "s3://corpus/tokenizer.model")
    return "s3://corpus/tokenizer.model"


@pytest.fixture
def dataset(corpus, model):
    import millrace

    def make(**options):
        wanted = {"template": "{title}\n{text}", "sequence_length": 32, **options}
        return millrace.Dataset(corpus, tokenizer=model, **wanted)

    return make
