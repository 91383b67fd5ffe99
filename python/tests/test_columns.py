"""Arrow and Parquet, where pyarrow is: written by it, read by Millrace."""

import io

import pytest

pyarrow = pytest.importorskip("pyarrow")
import pyarrow.parquet  # noqa: E402
from conftest import records  # noqa: E402

import millrace  # noqa: E402


def write(url, table):
    buffer = io.BytesIO()
    if url.endswith(".parquet"):
        pyarrow.parquet.write_table(table, buffer, row_group_size=50, compression="zstd")
    else:
        with pyarrow.ipc.new_stream(buffer, table.schema) as stream:
            stream.write_table(table, max_chunksize=50)
    with millrace.open(url, "wb") as file:
        file.write(buffer.getvalue())


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_are_records_like_any_other(endpoint, model, kind):
    rows = list(records(200, 3))
    table = pyarrow.Table.from_pylist([{**row, "unused": i} for i, row in enumerate(rows)])
    url = f"s3://corpus/columns/data.{kind}"
    write(url, table)
    try:
        texts = list(millrace.documents(url, template="{title}: {text}"))
    except NotImplementedError as error:
        pytest.skip(str(error))
    assert texts == [f"{row['title']}: {row['text']}" for row in rows]
    data = millrace.Dataset(url, tokenizer=model, template="{title}: {text}", sequence_length=256, mode="pad",
                            framework="numpy")  # fmt: skip
    assert len(data) == 200
    seen = {data.tokenizer.decode(sample["input_ids"][: sample["attention_mask"].sum()]) for sample in data}
    assert seen == set(texts)
