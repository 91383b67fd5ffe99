import pytest

fsspec = pytest.importorskip("fsspec")

import millrace  # noqa: E402


@pytest.fixture
def files(endpoint):
    return millrace.MillraceFileSystem(skip_instance_cache=True)


def test_behaves_as_a_file_system(files):
    for name in ("a.txt", "b/c.txt", "b/d/e.txt"):
        files.pipe_file(f"corpus/fs/{name}", name.encode())
    assert files.ls("corpus/fs", detail=False) == ["corpus/fs/a.txt", "corpus/fs/b"]
    assert files.find("corpus/fs") == ["corpus/fs/a.txt", "corpus/fs/b/c.txt", "corpus/fs/b/d/e.txt"]
    assert files.glob("corpus/fs/**/*.txt") == ["corpus/fs/a.txt", "corpus/fs/b/c.txt", "corpus/fs/b/d/e.txt"]
    assert files.isdir("s3://corpus/fs/b") and files.isfile("corpus/fs/a.txt") and files.exists("corpus")
    assert not files.exists("corpus/fs/none") and not files.exists("other-bucket")
    assert "corpus" in files.ls("", detail=False)
    info = files.info("corpus/fs/b/c.txt")
    assert info["size"] == 7 and info["type"] == "file" and info["LastModified"].year > 2000
    assert files.cat_file("corpus/fs/a.txt", 2) == b"txt" and files.cat_file("corpus/fs/a.txt", -3, -1) == b"tx"
    files.cp_file("corpus/fs/a.txt", "corpus/fs/copy")
    files.mv("corpus/fs/copy", "corpus/fs/moved")
    assert files.cat("corpus/fs/moved") == b"a.txt" and not files.exists("corpus/fs/copy")
    files.rm("corpus/fs/b", recursive=True)
    assert files.find("corpus/fs") == ["corpus/fs/a.txt", "corpus/fs/moved"]
    with pytest.raises(FileNotFoundError):
        files.rm("corpus/fs/none")
    with pytest.raises(FileNotFoundError):
        files.ls("corpus/fs/none")


def test_files_and_folders_move_in_and_out(files, tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "x").write_bytes(b"x" * 3_000_000)
    files.put(str(tmp_path / "in"), "corpus/tree", recursive=True)
    files.get("corpus/tree", str(tmp_path / "out"), recursive=True)
    found = [path for path in (tmp_path / "out").rglob("x")]
    assert len(found) == 1 and found[0].read_bytes() == b"x" * 3_000_000


def test_fsspec_opens_both_protocols(endpoint):
    assert fsspec.get_filesystem_class("millrace") is millrace.MillraceFileSystem
    with fsspec.open("millrace://corpus/fs/opened", "wb") as file:
        file.write(b"by name")
    millrace.register_s3()
    with fsspec.open("s3://corpus/fs/opened", "rb") as file:
        assert file.read() == b"by name"
    with fsspec.open("s3://corpus/fs/text", "w") as file:
        file.write("text\n")
    with fsspec.open("s3://corpus/fs/text", "r") as file:
        assert file.read() == "text\n"


def test_pandas_reads_and_writes(endpoint):
    pandas = pytest.importorskip("pandas")
    millrace.register_s3()
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    frame.to_csv("s3://corpus/fs/frame.csv", index=False)
    assert pandas.read_csv("s3://corpus/fs/frame.csv").equals(frame)
