"""The classes with s3torchconnector's names, beside those of s3torchconnector itself where that is installed
(`tests/install-peers FOLDER s3torchconnector`)."""

import inspect
import io
import os
import pickle
import sys

import pytest

from conftest import millrace as run

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dist_checkpoint  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import millrace.s3torchconnector as ours  # noqa: E402
import millrace.s3torchconnector.dcp as our_dcp  # noqa: E402

PEER = os.path.join(os.environ.get("MILLRACE_PEERS", ""), "s3torchconnector")
if os.path.isdir(PEER):
    sys.path.append(PEER)
try:
    import s3torchconnector as theirs
    import s3torchconnector.dcp as their_dcp
except ImportError:
    theirs = their_dcp = None

REGION = "us-east-1"
BESIDE = pytest.mark.skipif(theirs is None, reason="s3torchconnector is not installed")
PACKAGES = [
    pytest.param((ours, our_dcp), id="millrace"),
    pytest.param((theirs, their_dcp), id="s3torchconnector", marks=BESIDE),
]


@pytest.fixture(scope="module")
def prefix(endpoint, tmp_path_factory):
    """Ten objects below s3://objects/images/, and one elsewhere."""
    folder = tmp_path_factory.mktemp("objects")
    run("mb", "s3://objects")
    for number in range(10):
        (folder / "file").write_bytes(bytes([number]) * (number * 1000 + 1))
        run("cp", str(folder / "file"), f"s3://objects/images/{number}.bin")
    run("cp", str(folder / "file"), "s3://objects/other.bin")
    return "s3://objects/images/"


def content(reader):
    return reader.key, reader.read()


def arguments(endpoint):
    return {"region": REGION, "endpoint": endpoint}


def config(package):
    """s3torchconnector must be told to put the bucket into the path, for an endpoint whose name is a number."""
    return package.S3ClientConfig(force_path_style=True)


@pytest.mark.parametrize("packages", PACKAGES)
def test_a_map_reads_objects_by_index(packages, prefix, endpoint):
    package, _ = packages
    data = package.S3MapDataset.from_prefix(
        prefix, transform=content, s3client_config=config(package), **arguments(endpoint)
    )
    assert len(data) == 10
    assert [data[i] for i in range(10)] == [(f"images/{i}.bin", bytes([i]) * (i * 1000 + 1)) for i in range(10)]
    by_name = package.S3MapDataset.from_objects(
        [prefix + "3.bin", prefix + "1.bin"], transform=content, s3client_config=config(package), **arguments(endpoint)
    )
    assert [by_name[i] for i in range(len(by_name))] == [data[3], data[1]]


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("workers", [0, 3])
def test_workers_read_what_one_process_reads(workers, context, prefix, endpoint):
    data = ours.S3MapDataset.from_prefix(prefix, transform=content, **arguments(endpoint))
    whole = [data[i] for i in range(len(data))]  # before the fork, so that there are threads to lose
    options = {"num_workers": workers, "multiprocessing_context": context} if workers else {}
    assert list(DataLoader(data, batch_size=None, collate_fn=ours.datasets.identity, **options)) == whole
    for sharded in (True, False):
        each = ours.S3IterableDataset.from_prefix(
            prefix, transform=content, enable_sharding=sharded, **arguments(endpoint)
        )
        times = 1 if sharded or not workers else workers
        assert sorted(DataLoader(each, batch_size=None, collate_fn=ours.datasets.identity, **options)) == sorted(
            whole * times
        )


@BESIDE
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_shards_are_those_of_s3torchconnector(workers, prefix, endpoint):
    read = []
    for package in (ours, theirs):
        data = package.S3IterableDataset.from_prefix(
            prefix, transform=content, enable_sharding=True, s3client_config=config(package), **arguments(endpoint)
        )
        options = {"num_workers": workers, "multiprocessing_context": "spawn"} if workers else {}
        read.append(list(DataLoader(data, batch_size=None, collate_fn=ours.datasets.identity, **options)))
    assert read[0] == read[1]


def test_ranks_take_turns(prefix, endpoint):
    data = ours.S3IterableDataset.from_prefix(prefix, transform=content, enable_sharding=True, **arguments(endpoint))
    keys = []
    for data._rank, data._world_size in ((0, 3), (1, 3), (2, 3)):
        keys.append([key for key, _ in data])
    assert keys == [[f"images/{i}.bin" for i in range(rank, 10, 3)] for rank in range(3)]


def test_an_index_of_ours_is_no_object_of_the_data(prefix, endpoint, tmp_path):
    (tmp_path / "index").write_bytes(b"x")
    run("cp", str(tmp_path / "index"), "s3://objects/images/.millrace/1.bin.index")
    assert len(ours.S3MapDataset.from_prefix(prefix, **arguments(endpoint))) == 10
    run("rm", "s3://objects/images/.millrace/1.bin.index")


@pytest.mark.parametrize("packages", PACKAGES)
@pytest.mark.parametrize("kind", ["sequential", "range_based"])
def test_readers_are_files(packages, kind, prefix, endpoint):
    package, _ = packages
    constructor = getattr(package.S3ReaderConstructor, kind)()
    data = package.S3MapDataset.from_objects(
        prefix + "9.bin", s3client_config=config(package), reader_constructor=constructor, **arguments(endpoint)
    )
    with data[0] as reader:
        assert (reader.bucket, reader.key) == ("objects", "images/9.bin")
        assert reader.readable() and reader.seekable() and not reader.writable()
        assert reader.read(3) == b"\x09" * 3 and reader.tell() == 3
        assert reader.seek(-2, io.SEEK_END) == 8999 and reader.read() == b"\x09" * 2 and reader.read(5) == b""
        assert reader.seek(20_000) == 9001 and reader.read() == b""
        into = bytearray(10)
        assert reader.seek(0) == 0 and reader.readinto(into) == 10 and into == b"\x09" * 10
        with pytest.raises(ValueError):
            reader.seek(-1)


def test_range_readers_without_a_buffer_read(prefix, endpoint):
    unbuffered = ours.S3ReaderConstructor.range_based(0)
    data = ours.S3MapDataset.from_objects(prefix + "9.bin", reader_constructor=unbuffered, **arguments(endpoint))
    assert data[0].read() == b"\x09" * 9001 and data[0].read(7) == b"\x09" * 7
    with pytest.raises(ValueError, match="S3ReaderConstructor"):
        ours.S3MapDataset.from_objects(prefix + "9.bin", reader_constructor=lambda *_: None, **arguments(endpoint))


def test_either_package_loads_what_the_other_saved(prefix, endpoint):
    state = {"weight": torch.arange(300_000.0), "step": 5}
    packages = [package for package in (ours, theirs) if package]
    checkpoints = [package.S3Checkpoint(s3client_config=config(package), **arguments(endpoint)) for package in packages]
    for number, saver in enumerate(checkpoints):
        url = f"s3://objects/saved/{number}.pt"
        with saver.writer(url) as writer:
            torch.save(state, writer)
        for loader in checkpoints:
            loaded = torch.load(loader.reader(url), weights_only=True)
            assert loaded["step"] == 5 and torch.equal(loaded["weight"], state["weight"])


@pytest.mark.parametrize("packages", PACKAGES)
def test_an_exception_publishes_nothing(packages, prefix, endpoint):
    package, _ = packages
    checkpoint = package.S3Checkpoint(s3client_config=config(package), **arguments(endpoint))
    with pytest.raises(KeyError):
        with checkpoint.writer("s3://objects/half") as writer:
            writer.write(b"half")
            raise KeyError
    with pytest.raises(package.S3Exception):
        checkpoint.reader("s3://objects/half").read()


def test_a_writer_that_is_forgotten_publishes_nothing(prefix, endpoint):
    checkpoint = ours.S3Checkpoint(**arguments(endpoint))
    writer = checkpoint.writer("s3://objects/forgotten")
    assert writer.write(b"half") == 4 and writer.tell() == 4 and writer.writable() and not writer.readable()
    del writer
    with pytest.raises(FileNotFoundError):
        checkpoint.reader("s3://objects/forgotten").read()


@pytest.mark.parametrize("strategy", [None, "HexPrefixStrategy", "BinaryPrefixStrategy"])
def test_distributed_checkpoints_are_the_same_files(strategy, prefix, endpoint, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    state = {"model": {"weight": torch.arange(1000.0).reshape(10, 100), "bias": torch.ones(7)}, "step": 12}
    sides = [side for side in ((ours, our_dcp), (theirs, their_dcp)) if side[0]]
    for number, (package, dcp) in enumerate(sides):
        url = f"s3://objects/dcp-{strategy}-{number}"
        options = {"prefix_strategy": getattr(dcp, strategy)(epoch_num=3)} if strategy else {}
        writer = dcp.S3StorageWriter(REGION, url, s3client_config=config(package), **options)
        dist_checkpoint.save(state, storage_writer=writer, no_dist=True)
        for other, other_dcp in sides:
            into = {"model": {"weight": torch.zeros(10, 100), "bias": torch.zeros(7)}, "step": 0}
            reader = other_dcp.S3StorageReader(REGION, url, s3client_config=config(other))
            dist_checkpoint.load(into, storage_reader=reader, no_dist=True)
            assert into["step"] == 12 and torch.equal(into["model"]["weight"], state["model"]["weight"])
            assert torch.equal(into["model"]["bias"], state["model"]["bias"])
    listed = [
        [
            found.key.split("/", 1)[1]
            for found in ours._client.S3Client(REGION).list_objects("objects", f"dcp-{strategy}-{number}/")
        ]
        for number in range(len(sides))
    ]
    assert ".metadata" in listed[0] and not any(name.endswith(".tmp") for name in listed[0])
    assert all(names == listed[0] for names in listed)


def test_prefixes_spread_the_ranks():
    assert our_dcp.DefaultPrefixStrategy()(3) == "__3_"
    assert our_dcp.HexPrefixStrategy(epoch_num=1, min_prefix_length=2, prefix_count=300)(18) == "210/epoch_1/__18_"
    assert our_dcp.BinaryPrefixStrategy(min_prefix_length=3, prefix_count=2)(3) == "100/__3_"
    assert our_dcp.RoundRobinPrefixStrategy(["a", "b"], 2)(3) == "b/epoch_2/__3_"
    for wrong in ({"min_prefix_length": 0}, {"epoch_num": "1"}, {"prefix_count": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            our_dcp.HexPrefixStrategy(**wrong)


@BESIDE
@pytest.mark.parametrize("rank", [0, 5, 300])
def test_prefixes_are_those_of_s3torchconnector(rank):
    for name in ("HexPrefixStrategy", "BinaryPrefixStrategy"):
        for options in ({}, {"epoch_num": 4, "prefix_count": 20}, {"min_prefix_length": 1, "prefix_count": 257}):
            assert getattr(our_dcp, name)(**options)(rank) == getattr(their_dcp, name)(**options)(rank)


@BESIDE
def test_names_and_signatures_are_those_of_s3torchconnector():
    def parameters(function):
        return [(p.name, p.kind, p.default if isinstance(p.default, (int, str, type(None))) else "…")
                for p in inspect.signature(function).parameters.values() if p.name not in ("self", "s3client")]  # fmt: skip

    assert set(theirs.__all__) - {"__version__"} <= set(ours.__all__)
    assert set(their_dcp.__all__) <= set(our_dcp.__all__)
    assert parameters(ours.S3ClientConfig) == parameters(theirs.S3ClientConfig)
    assert parameters(ours.S3Checkpoint) == parameters(theirs.S3Checkpoint)
    for name in ("S3MapDataset", "S3IterableDataset"):
        assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name))
        for made in ("from_prefix", "from_objects"):
            # `options` stands for the rest of them.
            accepted = {
                **dict.fromkeys(inspect.signature(getattr(ours, name)).parameters),
                **dict.fromkeys(inspect.signature(getattr(getattr(ours, name), made)).parameters),
            }
            assert set(inspect.signature(getattr(getattr(theirs, name), made)).parameters) <= set(accepted)
    for name in ("S3StorageReader", "S3StorageWriter", "HexPrefixStrategy", "S3FileSystem"):
        assert parameters(getattr(our_dcp, name)) == parameters(getattr(their_dcp, name))


def test_data_sets_and_constructors_can_be_pickled(prefix, endpoint):
    data = ours.S3MapDataset.from_prefix(
        prefix, transform=content, reader_constructor=ours.S3ReaderConstructor.range_based(1024), **arguments(endpoint)
    )
    first = data[1]
    assert pickle.loads(pickle.dumps(data))[1] == first


def test_urls_that_name_no_object_are_refused(endpoint):
    for url in ("http://bucket/key", "s3://", "/path"):
        with pytest.raises(ValueError, match="s3://bucket/key"):
            ours.S3Checkpoint(REGION).reader(url)
        with pytest.raises(ValueError, match="s3://bucket/key"):
            ours.S3MapDataset.from_objects(url, region=REGION)
