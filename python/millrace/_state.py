"""States as checkpoints hold them: every tensor and every plain value by a path, and what a rank has of a tensor.

A path's parts are joined by "/". A part is a dict's key, and with a mark in front an int key ("#3"), an index of a list ("@3")
or of a tuple ("(3"). A list or tuple that holds no tensor is one value.
"""

from __future__ import annotations

import base64
import math
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from .errors import InvalidArgumentError, UnsupportedError

_MARKS = "#@("
_TORCH_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
_NUMPY_NAMES = {name: numpy for name, numpy in _TORCH_NAMES.items() if name not in ("BF16", "F8_E4M3", "F8_E5M2")}


def _torch() -> Any:
    """torch where the program uses it: it is not imported for its own sake."""
    return sys.modules.get("torch")


def _is_tensor(value: Any) -> bool:
    torch = _torch()
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)) or _is_sharded(value)


def _is_sharded(value: Any) -> bool:
    """A ShardedTensor of torch.distributed, which is no torch.Tensor."""
    return hasattr(value, "local_shards") and hasattr(value, "metadata")


# Paths


def _part(container: Any, key: Any) -> str:
    if isinstance(container, (list, tuple)):
        return ("@" if isinstance(container, list) else "(") + str(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return f"#{key}"
    if not isinstance(key, str):
        raise UnsupportedError(f"a dict has the key {key!r}; keys are str or int")
    escaped = key.replace("%", "%25").replace("/", "%2F")
    return "%" + format(ord(escaped[0]), "02X") + escaped[1:] if escaped[:1] and escaped[0] in _MARKS else escaped or "%00"


def _key(part: str) -> Any:
    if part[0] in _MARKS:
        return int(part[1:])
    if part == "%00":
        return ""
    for mark in "/" + _MARKS:
        part = part.replace("%" + format(ord(mark), "02X"), mark)
    return part.replace("%25", "%")


def _items(container: Any) -> Iterator[Tuple[Any, Any]]:
    return iter(container.items()) if isinstance(container, dict) else iter(enumerate(container))


def _holds_tensors(value: Any) -> bool:
    if _is_tensor(value):
        return True
    return isinstance(value, (dict, list, tuple)) and any(_holds_tensors(inner) for _, inner in _items(value))


def name_of(path: Sequence[Any]) -> str:
    """The path of keys of dicts (str) and indices of lists (int)."""
    return "/".join(_part([] if isinstance(key, int) else {}, key) for key in path)


def path_of(name: str) -> Tuple[Any, ...]:
    return tuple(_key(part) for part in name.split("/"))


# Plain values


def encode_value(value: Any, path: str) -> Any:
    """JSON that decode_value turns back into the same."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return encode_value(value.item(), path)
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else {"int": str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [encode_value(inner, f"{path}/{i}") for i, inner in enumerate(value)]}
    if isinstance(value, dict):
        return {
            "dict": [[encode_value(key, path), encode_value(inner, f"{path}/{key}")] for key, inner in value.items()]
        }
    torch = _torch()
    if torch is not None and isinstance(value, torch.dtype):
        return {"dtype": str(value).rsplit(".", 1)[-1]}
    raise UnsupportedError(
        f'"{path}" is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, None, bool, int, float, '
        "str, bytes, and lists, tuples and dicts of these: save its state_dict() or its fields instead"
    )


def decode_value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "int":
        return int(inner)
    if kind == "float":
        return float(inner)
    if kind == "bytes":
        return base64.b64decode(inner)
    if kind == "list":
        return [decode_value(one) for one in inner]
    if kind == "tuple":
        return tuple(decode_value(one) for one in inner)
    if kind == "dict":
        return {decode_value(key): decode_value(one) for key, one in inner}
    if kind == "dtype":
        return getattr(_torch(), inner) if _torch() is not None else inner
    raise UnsupportedError(f'a value of the kind "{kind}", which this version does not know')


# Tensors


def dtype_name(dtype: Any, of: str) -> str:
    """The name that safetensors has for an element type of torch or numpy."""
    name = dtype.name if isinstance(dtype, np.dtype) else str(dtype).rsplit(".", 1)[-1]
    for ours, theirs in _TORCH_NAMES.items():
        if theirs == name:
            return ours
    raise UnsupportedError(f'"{of}" has elements of type {dtype}, which safetensors does not know')


def torch_dtype(name: str) -> Any:
    return getattr(_torch(), _TORCH_NAMES[name])


@dataclass
class Piece:
    """What this process has of a tensor: a box of it. Offsets and lengths empty: all of it."""

    name: str
    dtype: str
    shape: List[int]  # of the whole tensor
    offsets: List[int]
    lengths: List[int]
    local: Any

    @property
    def held(self) -> Tuple[Any, ...]:
        """As _native.balance_replicas wants it."""
        elements = self.local.size if isinstance(self.local, np.ndarray) else self.local.numel()
        return self.name, self.dtype, self.shape, (self.offsets, self.lengths), elements

    def run(self, begin: int, elements: int) -> Tuple[Tuple[Any, ...], Any]:
        """Consecutive elements of it as CheckpointWriter.start wants them, and what keeps their memory."""
        _, _, _, box, all_of_it = self.held
        check_plain(self.local, self.name)
        local = self.local if elements == all_of_it else self.local.reshape(-1)[begin : begin + elements]
        address, size, owner = memory_of(on_host(local, self.name))
        return (self.name, self.dtype, self.shape, begin, box, address, size), owner


@dataclass
class Leaf:
    """A plain value, or what has no tensor inside."""

    name: str
    path: Tuple[Any, ...]  # keys from the top
    value: Any


@dataclass
class TensorLeaf(Leaf):
    @property
    def shape(self) -> List[int]:
        return list(self.value.metadata().size if _is_sharded(self.value) else self.value.shape)

    @property
    def dtype(self) -> str:
        sharded = _is_sharded(self.value)
        return dtype_name(self.value.metadata().tensor_properties.dtype if sharded else self.value.dtype, self.name)

    def _local(self) -> List[Tuple[List[int], List[int], Any]]:
        """The boxes of this process and their tensors."""
        if _is_sharded(self.value):
            return [
                (list(shard.metadata.shard_offsets), list(shard.metadata.shard_sizes), shard.tensor)
                for shard in self.value.local_shards()
            ]
        if not hasattr(self.value, "device_mesh"):
            return [([], [], self.value)]
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        mesh, placements = self.value.device_mesh, self.value.placements
        if mesh.get_coordinate() is None:
            return []
        if any(placement.is_partial() for placement in placements):
            raise UnsupportedError(f'"{self.name}" is a DTensor with a Partial placement: redistribute it first')
        lengths, offsets = compute_local_shape_and_global_offset(self.value.shape, mesh, placements)
        return [(list(offsets), list(lengths), self.value.to_local())] if math.prod(lengths) > 0 else []

    def pieces(self) -> List[Piece]:
        return [Piece(self.name, self.dtype, self.shape, *box) for box in self._local()]

    def targets(self, dtype: str) -> Iterator[Tuple[Any, Callable[[], None]]]:
        """What to read for each box, and what to do afterwards."""
        for offsets, lengths, local in self._local():
            into, copy = target_of(dtype, local)
            address, size, _ = memory_of(into)
            yield (self.name, 0, (offsets, lengths), address, size), copy

    def wanted(self) -> List[Any]:
        address, size, _ = memory_of(self.value)
        return [(self.name, 0, ([], []), address, size)]

    @staticmethod
    def empty(name: str, dtype: str, shape: Sequence[int]) -> "TensorLeaf":
        return TensorLeaf(name, (), _empty(dtype, list(shape), None))


def target_of(dtype: str, local: Any) -> Tuple[Any, Callable[[], None]]:
    """Memory to read elements of that type into, and what brings them to ``local`` afterwards."""
    if getattr(local, "is_meta", False):
        raise InvalidArgumentError("a tensor to be filled is on the meta device; give it memory first: to_empty(device=…)")
    if dtype_name(local.dtype, "a tensor to be filled") == dtype and _is_plain_memory(local):
        return local, lambda: None
    into = _empty(dtype, list(local.shape), local)
    return into, _copier(local, into)


def _empty(dtype: str, shape: List[int], like: Any) -> Any:
    torch = _torch()
    if torch is not None and not isinstance(like, np.ndarray):
        return torch.empty(shape, dtype=torch_dtype(dtype))
    if dtype not in _NUMPY_NAMES:
        raise UnsupportedError(f"numpy has no elements of type {dtype}; import torch first")
    return np.empty(shape, dtype=_NUMPY_NAMES[dtype])


def _copier(local: Any, loaded: Any) -> Callable[[], None]:
    def copy() -> None:
        if isinstance(local, np.ndarray):
            local[...] = loaded
        else:
            with _torch().no_grad():
                local.copy_(loaded)

    return copy


def _is_plain_memory(local: Any) -> bool:
    if isinstance(local, np.ndarray):
        return local.flags.c_contiguous and local.flags.writeable and local.dtype.isnative
    return local.device.type == "cpu" and local.is_contiguous() and not local.is_conj() and not local.is_neg()


def check_plain(local: Any, name: str) -> None:
    """Whether its elements can be saved."""
    if isinstance(local, np.ndarray):
        return
    if local.layout != _torch().strided or local.is_quantized:
        raise UnsupportedError(f'"{name}" is sparse or quantized; save its parts as tensors of their own')
    if local.is_meta:
        raise InvalidArgumentError(f'"{name}" is on the meta device and has no values')


def on_host(local: Any, name: str) -> Any:
    check_plain(local, name)
    if isinstance(local, np.ndarray):
        return np.ascontiguousarray(local, dtype=local.dtype.newbyteorder("="))
    return local.detach().cpu().contiguous().resolve_conj().resolve_neg()


def memory_of(value: Any) -> Tuple[int, int, Any]:
    if isinstance(value, np.ndarray):
        return value.ctypes.data, value.nbytes, value
    return value.data_ptr(), value.numel() * value.element_size(), value


# Whole states


def leaves_of(state: Any, name: str = "", path: Tuple[Any, ...] = ()) -> Iterator[Leaf]:
    """Dicts are gone through, lists and tuples only as far as they hold tensors."""
    if _is_tensor(state):
        yield TensorLeaf(name, path, state)
    elif (isinstance(state, dict) and state) or _holds_tensors(state):
        for key, inner in _items(state):
            part = _part(state, key)
            yield from leaves_of(inner, f"{name}/{part}" if name else part, (*path, key))
    elif name:
        yield Leaf(name, path, state)


def flatten(state: Any) -> Tuple[List[TensorLeaf], Dict[str, Any]]:
    """Tensors, and plain values as JSON."""
    if not isinstance(state, dict):
        raise InvalidArgumentError(f"a state is a dict of tensors and values, not a {type(state).__name__}")
    tensors: List[TensorLeaf] = []
    values: Dict[str, Any] = {}
    for leaf in leaves_of(state):
        if isinstance(leaf, TensorLeaf):
            tensors.append(leaf)
        else:
            values[leaf.name] = encode_value(leaf.value, leaf.name)
    return tensors, values


def nest(flat: Dict[str, Any], prefix: str = "") -> Any:
    """The state whose parts have these paths; of a path, what lies below ``prefix``."""
    top: Dict[str, Any] = {}
    for name, value in flat.items():
        parts = (name[len(prefix) + 1 :] if prefix else name).split("/")
        node = top
        for part in parts[:-1]:
            node = node.setdefault(part, {})
        node[parts[-1]] = _Done(value)
    return _build(top)


@dataclass
class _Done:
    value: Any


def _build(node: Any) -> Any:
    if isinstance(node, _Done):
        return node.value
    built = {_key(part): _build(inner) for part, inner in node.items()}
    marks = {part[0] for part in node}
    if marks and marks <= set("@("):
        in_order = [built[index] for index in sorted(built)]
        return in_order if marks == {"@"} else tuple(in_order)
    return built


def place(state: Any, leaf: Leaf, value: Any) -> Any:
    """The state with another value for a leaf; containers are changed where they can be, tuples made anew."""

    def put(node: Any, path: Tuple[Any, ...]) -> Any:
        if not path:
            return value
        inner = put(node[path[0]], path[1:])
        if isinstance(node, tuple):
            return (*node[: path[0]], inner, *node[path[0] + 1 :])
        node[path[0]] = inner
        return node

    return put(state, leaf.path)
