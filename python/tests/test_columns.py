"""Reads Arrow and Parquet that pyarrow has written, if pyarrow is installed."""

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


def test_encrypted_columns_are_called_so(endpoint):
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def __init__(self, config):
            super().__init__()

        def wrap_key(self, key, name):
            return key

        def unwrap_key(self, key, name):
            return key

    rows = [{"title": "a", "text": "secret"}]
    table = pyarrow.Table.from_pylist(rows)
    for plaintext_footer in (True, False):
        settings = encryption.EncryptionConfiguration(
            footer_key="footer", column_keys={"column": ["text"]}, plaintext_footer=plaintext_footer, double_wrapping=False
        )
        properties = encryption.CryptoFactory(Keys).file_encryption_properties(encryption.KmsConnectionConfig(), settings)
        buffer = io.BytesIO()
        with pyarrow.parquet.ParquetWriter(buffer, table.schema, encryption_properties=properties) as writer:
            writer.write_table(table)
        url = f"s3://corpus/encrypted/{plaintext_footer}.parquet"
        with millrace.open(url, "wb") as file:
            file.write(buffer.getvalue())
        what = "the column text is encrypted" if plaintext_footer else "the Parquet file is encrypted"
        with pytest.raises(NotImplementedError) as refused:
            list(millrace.documents(url, template="{text}"))
        if "reads no Arrow" in str(refused.value):
            pytest.skip(str(refused.value))
        assert what in str(refused.value)
        if plaintext_footer:
            assert list(millrace.documents(url, template="{title}")) == ["a"]
