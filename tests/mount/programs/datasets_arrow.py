"""HF datasets: saved, loaded mapped, transformed with cache files; generated into a cache on the mount; Parquet."""
# needs: python:datasets, python:pyarrow, python:pandas
import os
import sys

os.environ |= {"HF_HOME": os.path.abspath("home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
import datasets  # noqa: E402
import pandas  # noqa: E402
import pyarrow.parquet  # noqa: E402

COUNT = 3000


def rows():
    for i in range(COUNT):
        yield {"id": i, "text": f"sample {i} " * 20}


def longer(row):
    return {"length": len(row["text"])}


if sys.argv[1] == "work":
    data = datasets.Dataset.from_generator(rows)
    data.save_to_disk("saved", num_shards=3)
    loaded = datasets.load_from_disk("saved")
    mapped = loaded.map(longer, num_proc=2)
    assert mapped[COUNT - 1]["length"] == len(f"sample {COUNT - 1} " * 20)
    mapped.train_test_split(0.1, seed=1).save_to_disk("split")
    data.to_parquet("data.parquet")
    data.to_json("data.jsonl")
    frame = pandas.read_parquet("data.parquet")
    frame[frame.id % 2 == 0].to_parquet("parts", partition_cols=None)
    pyarrow.parquet.write_to_dataset(data.data.table, "set", partition_cols=None)
assert datasets.load_from_disk("saved")[123]["text"] == "sample 123 " * 20
split = datasets.load_from_disk("split")
assert len(split["train"]) == COUNT * 9 // 10 and set(split["train"]["id"]) | set(split["test"]["id"]) == set(range(COUNT))
assert pandas.read_parquet("parts").id.sum() == sum(range(0, COUNT, 2))
assert pyarrow.parquet.read_table("set").num_rows == COUNT
os.environ["HF_DATASETS_CACHE"] = os.environ["SCRATCH"]
assert datasets.load_dataset("json", data_files="data.jsonl", split="train", cache_dir=os.environ["SCRATCH"])[7]["id"] == 7
