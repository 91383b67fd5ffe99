"""torch.distributed.checkpoint over Millrace's checkpoints: existing code changes one line.

    dcp.save(state_dict, storage_writer=millrace.dcp.Writer("s3://runs/llama", step))
    dcp.load(state_dict, storage_reader=millrace.dcp.Reader("s3://runs/llama"))

What is saved so is what millrace.checkpoint saves: millrace.checkpoint.load reads it, and Reader reads what that saved.
"""

from __future__ import annotations

import io
import json
import os
from typing import Any, Dict, List, Optional, Union

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import _native
from ._state import decode_value, dtype_name, encode_value, memory_of, name_of, on_host, path_of, target_of, torch_dtype
from .checkpoint import PARALLEL_READS, saver_of
from .errors import UnsupportedError
from .session import Options, session_of

__all__ = ["Reader", "Writer"]

_Path = Union[str, os.PathLike, None]


def _done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _encode(value: Any, name: str) -> Any:
    """As a checkpoint has plain values; what none can hold as torch pickles it."""
    try:
        return encode_value(value, name)
    except UnsupportedError:
        pickled = io.BytesIO()
        torch.save(value, pickled)
        return {"torch": encode_value(pickled.getvalue(), name)["bytes"]}


class Writer(StorageWriter):
    """Saves one state below ``url``, under ``step``; committed when dcp.save returns. Options as those of Saver, but nothing
    is removed unless they say so.

    Make it where every rank does, on the main thread: the first for a URL opens process groups of its own.
    """

    def __init__(self, url: str, step: int, *, connection: Optional[Options] = None, **options: Any) -> None:
        super().__init__()
        self._saver = saver_of(url, connection, **options)
        self._step = step

    def reset(self, checkpoint_id: _Path = None) -> None:
        if checkpoint_id is not None and str(checkpoint_id) != self._saver.url:
            raise UnsupportedError(f"this writer is for {self._saver.url}; leave checkpoint_id={checkpoint_id} out")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self._saver.url)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        paths: Dict[str, Any] = getattr(planner, "mappings", {})
        pieces, owners, values, results = [], [], {}, []
        for item in plan.items:
            name = name_of(paths.get(item.index.fqn, (item.index.fqn,)))
            if item.type == WriteItemType.BYTE_IO:
                values[name] = _encode(planner.lookup_object(item.index), name)
                results.append(WriteResult(index=item.index, size_in_bytes=0, storage_data=None))
                continue
            assert item.tensor_data is not None
            chunk, size = item.tensor_data.chunk, list(item.tensor_data.size)
            address, length, owner = memory_of(on_host(planner.resolve_data(item), name))
            box = (list(chunk.offsets), list(chunk.sizes))
            pieces.append((name, dtype_name(owner.dtype, name), size, 0, box, address, length))
            owners.append(owner)
            results.append(WriteResult(index=item.index, size_in_bytes=length, storage_data=None))
        for others in self._saver.everyones(values):
            values.update(others)
        self._saver.start(self._step, pieces, owners, {"values": values})
        self._saver.wait_copied()
        self._saver.wait()
        return _done(results)

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        pass  # it was committed when all ranks had written

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool:
        return str(checkpoint_id).startswith("s3://")


class Reader(StorageReader):
    """Loads the newest checkpoint below ``url``, or that of ``step``, into any sharding."""

    def __init__(self, url: str, step: Optional[int] = None, *, connection: Optional[Options] = None) -> None:
        super().__init__()
        self._url = url
        self._reader = _native.CheckpointReader(session_of(connection), url, step)
        self._stored = self._reader.tensors()
        self._values = json.loads(self._reader.meta).get("values", {})
        self._names = {".".join(map(str, path_of(name))): name for name in (*self._stored, *self._values)}

    def reset(self, checkpoint_id: _Path = None) -> None:
        if checkpoint_id is not None and str(checkpoint_id) != self._url:
            raise UnsupportedError(f"this reader is of {self._url}; leave checkpoint_id={checkpoint_id} out")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        described: Dict[str, Any] = {}
        for fqn, name in self._names.items():
            if name not in self._stored:
                described[fqn] = BytesStorageMetadata()
                continue
            dtype, shape = self._stored[name]
            size = torch.Size(shape)
            # However it was saved, any box of it can be read.
            whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
            described[fqn] = TensorStorageMetadata(TensorProperties(dtype=torch_dtype(dtype)), size, [whole])
        return Metadata(
            state_dict_metadata=described,
            planner_data={fqn: path_of(name) for fqn, name in self._names.items()},
            storage_meta=StorageMeta(checkpoint_id=self._url),
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        wanted, finish = [], []
        for item in plan.items:
            name = self._names[item.storage_index.fqn]
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._pickled(name))
                continue
            target = planner.resolve_tensor(item).detach()
            into, copy = target_of(self._stored[name][0], target)
            address, length, _ = memory_of(into)
            wanted.append((name, 0, (list(item.storage_offsets), list(item.lengths)), address, length))
            finish.append((copy, item, target))
        self._reader.read(wanted, PARALLEL_READS)
        for copy, item, target in finish:
            copy()
            planner.commit_tensor(item, target)
        return _done(None)

    def _pickled(self, name: str) -> io.BytesIO:
        """As planners want plain values."""
        value = self._values[name]
        if isinstance(value, dict) and "torch" in value:
            return io.BytesIO(decode_value({"bytes": value["torch"]}))
        pickled = io.BytesIO()
        torch.save(decode_value(value), pickled)
        pickled.seek(0)
        return pickled

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool:
        return str(checkpoint_id).startswith("s3://")
