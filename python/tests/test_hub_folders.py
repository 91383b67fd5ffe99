"""Compares the splits of folders with Hugging Face's datasets. MILLRACE_GENERATE=100 tests 100 times as many."""

import os
import random

import pytest

datasets = pytest.importorskip("datasets")
from datasets.data_files import DataFilesDict, get_data_patterns  # noqa: E402

import millrace  # noqa: E402

TIMES = int(os.environ.get("MILLRACE_GENERATE", "1"))
WORDS = ["train", "training", "validation", "valid", "dev", "val", "test", "testing", "eval", "evaluation"]
OTHERS = ["Train", "TEST", "retrain", "contest", "my", "x", "part", "data", "sft", "en", "1", "00", "wiki"]


def word(draw):
    return draw.choice(WORDS if draw.random() < 0.4 else OTHERS)


def name(draw):
    parts = [word(draw)]
    while draw.random() < 0.4:
        parts += [draw.choice(["-", ".", "_", " ", "0", "7", "", "+", "="]), word(draw)]
    return "".join(parts)


def folder(draw):
    rare = draw.random()
    if rare < 0.04:
        return draw.choice(["__pycache__", "__MACOSX", "__x__", ".hidden", "__train", "_train_", "..x"])
    return "data" if rare < 0.2 else name(draw)


def file(draw):
    rare = draw.random()
    if rare < 0.04:
        return draw.choice([".hidden.jsonl", "__init__.jsonl", "_x.jsonl", "README.md", "dataset_info.json", "config.json"])
    shard = f"-{draw.randint(0, 9):05}-of-{draw.randint(1, 9):05}" if draw.random() < draw.choice([0, 0, 0.9]) else ""
    if shard and draw.random() < 0.1:
        shard = draw.choice(["-0000-of-00001", "-00000-of-0001", "-00000-of-00001-x", "-00000-of-000010", "-00000-of-00001-00000-of-00002"])
    return name(draw).replace(" ", "_" if shard else " ") + shard + ".jsonl"


def tree(draw):
    paths = set()
    folders = [folder(draw) for _ in range(draw.randint(0, 3))]
    for _ in range(draw.randint(1, 7)):
        inside = [draw.choice(folders) for _ in range(draw.choice([0, 0, 1, 1, 2])) if folders]
        paths.add("/".join([*inside, file(draw)]))
    return sorted(path for path in paths if not any(other.startswith(path + "/") for other in paths))


def theirs(root):
    """Returns the paths of each split. None if datasets finds no data or rejects the name of a split."""
    try:
        found = DataFilesDict.from_patterns(get_data_patterns(root), base_path=root, allowed_extensions=[".jsonl"])
    except (FileNotFoundError, ValueError, AssertionError):
        return None
    return {str(split): {os.path.relpath(path, root) for path in paths} for split, paths in found.items() if paths}


def ours(root, split):
    try:
        return set(millrace.documents(f"{root}/#{split}", template="{path}"))
    except FileNotFoundError:
        return set()


def test_splits_are_those_of_datasets(tmp_path):
    compared = 0
    for seed in range(60 * TIMES):
        draw = random.Random(seed)
        root = tmp_path / f"{seed}"
        paths = tree(draw)
        for path in paths:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(f'{{"path": "{path}"}}\n')
        expected = theirs(str(root))
        if expected is None:
            continue
        compared += 1
        for split in expected:
            assert ours(root, split) == expected[split], f"{paths}: the split {split} of {expected}"
        for split in {"train", "validation", "test"} - set(expected):
            if not any(f"/{split}/" in f"/{path}" for path in paths):  # a folder of this name would be chosen
                assert ours(root, split) == set(), f"{paths}: {split}, while datasets has {expected}"
    assert compared > 40 * TIMES
