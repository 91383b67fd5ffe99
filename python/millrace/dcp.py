"""Storage for torch.distributed.checkpoint. Existing code changes one line:

    dcp.save(state_dict, storage_writer=millrace.dcp.Writer("s3://runs/llama", step))
    dcp.load(state_dict, storage_reader=millrace.dcp.Reader("s3://runs/llama"))

The checkpoints are those of millrace.checkpoint. So millrace.checkpoint.load reads those of a Writer, and a Reader
reads those of a Saver.

torch's planners load pickles without ``weights_only``. So a Reader gives them only pickles that it has made itself. It
first loads a pickle of a checkpoint with ``weights_only``.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Union

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import _native
from ._state import (
    Structure,
    TensorLeaf,
    decode_value,
    dtype_name,
    encode_value,
    leaves_of,
    memory_of,
    name_of,
    nest,
    on_host,
    target_of,
    torch_dtype,
)
from .checkpoint import PARALLEL_READS, StoredState, saver_of
from .errors import InvalidArgumentError, UnsupportedError
from .session import Options, session_of

__all__ = ["Reader", "Writer"]

_Path = Union[str, os.PathLike, None]


def _done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _pickled_by_torch(value: Any) -> Any:
    """Returns a value that no checkpoint format can hold as a pickle. Loads only if torch accepts it with
    ``weights_only``."""
    pickled = io.BytesIO()
    torch.save(value, pickled)
    return {"torch": encode_value(pickled.getvalue(), "")["bytes"]}


class Writer(StorageWriter):
    """Saves one state below ``url`` as ``step``. It is committed when dcp.save returns. Options: those of Saver.
    Removes no old checkpoints unless the options say so.

    Every rank must make its Writer at the same place, on the main thread: the first for a URL makes process groups.
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
        pieces: List[Any] = []
        owners: List[Any] = []
        values: Dict[str, Any] = {}
        results: List[WriteResult] = []
        structure = Structure()
        for item in plan.items:
            name = name_of(paths.get(item.index.fqn, (item.index.fqn,)))
            if item.type == WriteItemType.BYTE_IO:
                self._add_value(name, planner.lookup_object(item.index), pieces, owners, values, structure)
                results.append(WriteResult(index=item.index, size_in_bytes=0, storage_data=None))
                continue
            assert item.tensor_data is not None
            chunk, size = item.tensor_data.chunk, list(item.tensor_data.size)
            address, length, owner = memory_of(on_host(planner.resolve_data(item), name))
            box = (list(chunk.offsets), list(chunk.sizes))
            pieces.append((name, dtype_name(owner.dtype, name), size, 0, box, address, length))
            owners.append(owner)
            results.append(WriteResult(index=item.index, size_in_bytes=length, storage_data=None))
        for others, of_rank in self._saver.exchange((values, structure)):
            values.update(others)
            structure.merge(of_rank)
        self._saver.start(self._step, pieces, owners, {"values": values, **structure.meta()})
        self._saver.wait_copied()
        self._saver.wait()
        return _done(results)

    @staticmethod
    def _add_value(
        name: str, value: Any, pieces: List[Any], owners: List[Any], values: Dict[str, Any], structure: Structure
    ) -> None:
        """Adds an object of torch's plan: a plain value, or a tuple with tensors in it."""
        plain: Dict[str, Any] = {}
        runs: List[Any] = []
        try:
            for leaf in leaves_of(value, name):
                if isinstance(leaf, TensorLeaf):
                    runs += [shard.run(0, shard.held[-1]) for shard in leaf.shards()]
                else:
                    plain[leaf.name] = encode_value(leaf.value, leaf.name)
        except UnsupportedError:
            values[name] = _pickled_by_torch(value)
            return
        values.update(plain)
        pieces += [run for run, _ in runs]
        owners += [owner for _, owner in runs]
        structure.merge(Structure.of(value, name))

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        pass  # write_data has committed the checkpoint

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool:
        return str(checkpoint_id).startswith("s3://")


@dataclass
class _Opaque:
    """A value that is decoded only when a planner asks for it, because decoding may fail."""

    encoded: Any


@dataclass
class _Array:
    """A placeholder for a numpy array, which torch's planners treat as one plain value."""

    name: str


class Reader(StorageReader):
    """Loads the newest checkpoint below ``url``, or that of ``step``, in any sharding."""

    def __init__(self, url: str, step: Optional[int] = None, *, connection: Optional[Options] = None) -> None:
        super().__init__()
        self._url = url
        self._state = StoredState(_native.CheckpointReader(session_of(connection), url, step))
        self._names: Dict[int, str] = {}  # by id of a placeholder: the tensor's name
        self._leaves, self._paths = self._flattened()

    def _flattened(self) -> Any:
        """Returns the state flattened as torch's planners do it. Tensors are placeholders without memory."""
        parts: Dict[str, Any] = {}
        for name, (dtype, shape) in self._state.tensors.items():
            if name in self._state.arrays:
                parts[name] = _Array(name)
                continue
            parts[name] = torch.empty(shape, dtype=torch_dtype(dtype), device="meta")
            self._names[id(parts[name])] = name
        for name, value in self._state.values.items():
            try:
                opaque = isinstance(value, dict) and "torch" in value
                parts[name] = _Opaque(value) if opaque else decode_value(value)
            except UnsupportedError:  # it holds a pickle; raises again when a planner asks for it
                parts[name] = _Opaque(value)
        self._placeholders = parts  # keeps the ids in _names valid
        try:
            return flatten_state_dict(nest(parts, "", self._state.dicts))
        except ValueError as error:
            raise InvalidArgumentError(
                f"{self._state.reader.name} has two entries that torch would name alike: {error}"
            ) from None

    def reset(self, checkpoint_id: _Path = None) -> None:
        if checkpoint_id is not None and str(checkpoint_id) != self._url:
            raise UnsupportedError(f"this reader is of {self._url}; leave checkpoint_id={checkpoint_id} out")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        described: Dict[str, Any] = {}
        for fqn, leaf in self._leaves.items():
            if not isinstance(leaf, torch.Tensor):
                described[fqn] = BytesStorageMetadata()
                continue
            # One chunk, because the reader can read any box of a tensor, whatever its shards were.
            whole = ChunkStorageMetadata(offsets=torch.Size([0] * leaf.dim()), sizes=leaf.shape)
            described[fqn] = TensorStorageMetadata(TensorProperties(dtype=leaf.dtype), leaf.shape, [whole])
        return Metadata(
            state_dict_metadata=described,
            planner_data=dict(self._paths),
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
            leaf = self._leaves[item.storage_index.fqn]
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._pickled(leaf))
                continue
            name, target = self._names[id(leaf)], planner.resolve_tensor(item).detach()
            into, copy = target_of(self._state.tensors[name][0], target)
            address, length, _ = memory_of(into)
            wanted.append((name, 0, (list(item.storage_offsets), list(item.lengths)), address, length))
            finish.append((copy, item, target))
        self._state.reader.read(wanted, PARALLEL_READS)
        for copy, item, target in finish:
            copy()
            planner.commit_tensor(item, target)
        return _done(None)

    def _pickled(self, leaf: Any) -> io.BytesIO:
        """Returns a plain value as a pickle made here, which planners load."""
        pickled = io.BytesIO()
        torch.save(self._materialized(leaf), pickled)
        pickled.seek(0)
        return pickled

    def _materialized(self, value: Any) -> Any:
        """Returns ``value`` with the tensors' content in place of the placeholders."""
        if isinstance(value, _Opaque):
            return decode_value(value.encoded)
        name = value.name if isinstance(value, _Array) else self._names.get(id(value))
        if name is not None:
            dtype, shape = self._state.tensors[name]
            leaf = TensorLeaf.empty(name, dtype, shape, name in self._state.arrays)
            self._state.reader.read(leaf.wanted(), PARALLEL_READS)
            return leaf.value
        if type(value) in (list, tuple):
            return type(value)(self._materialized(inner) for inner in value)
        if isinstance(value, dict):
            return type(value)((key, self._materialized(inner)) for key, inner in value.items())
        return value

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool:
        return str(checkpoint_id).startswith("s3://")
