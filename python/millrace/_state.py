"""Divides a state into tensors and plain values with a path each, as checkpoints store them, and joins it again.

The parts of a path are joined by "/". A part is the str key of a dict, or with a mark in front an int key ("#3"), the
index of a list ("@3") or of a tuple ("(3"). A list or tuple without a tensor is one value. ``Structure`` keeps what
paths and values do not tell: the order of a dict's keys, which dicts are OrderedDicts, and which tensors are numpy
arrays (docs/formats/checkpoint.md).
"""

from __future__ import annotations

import base64
import io
import math
import re
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Sequence, Set, Tuple

import numpy as np

from .errors import CorruptError, InvalidArgumentError, UnsupportedError

_MARKS = "#@("
# 2048: Python reads ints of up to 4,300 decimal digits, which are 14,000 bits. A guess that is far below.
_MOST_INT_BITS = 2048
# The kinds of numpy scalars that their bytes define. Objects and records are not among them.
_PLAIN_SCALARS = "biufcSUmM"
_SCALAR_TYPE = re.compile(r"[<>|=][biufcSUmM][0-9]{1,9}(\[[0-9]*[a-zA-Z]{1,2}\])?")
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
    """Returns torch if the program has imported it, else None. Importing torch takes seconds."""
    return sys.modules.get("torch")


def _is_tensor(value: Any) -> bool:
    torch = _torch()
    if isinstance(value, np.ndarray) or _is_sharded(value):
        return True
    return torch is not None and isinstance(value, torch.Tensor)


def _is_sharded(value: Any) -> bool:
    """Returns whether ``value`` is a ShardedTensor of torch.distributed, which is not a torch.Tensor."""
    return hasattr(value, "local_shards") and hasattr(value, "metadata")


# Paths


def _path_part(container: Any, key: Any) -> str:
    if isinstance(container, (list, tuple)):
        return ("@" if isinstance(container, list) else "(") + str(key)
    if _is_path_key(key) and isinstance(key, int):
        return f"#{key}"
    if not isinstance(key, str):
        raise UnsupportedError(f"a dict that holds tensors has the key {key!r}; keys are str or int")
    _check_text(key, "a key")
    escaped = key.replace("%", "%25").replace("/", "%2F")
    if escaped and escaped[0] in _MARKS:
        return "%" + format(ord(escaped[0]), "02X") + escaped[1:]
    return escaped or "%00"


def _is_path_key(key: Any) -> bool:
    return isinstance(key, str) or (type(key) is int and -(2**63) <= key < 2**63)


def _check_text(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnsupportedError(f"{path}: {text!r} is no valid Unicode (it has half of a surrogate pair)") from None
    return text


def _key_of(part: str) -> Any:
    if part in ("", "%00"):
        return ""
    if part[0] in _MARKS:
        return int(part[1:])
    for mark in "/" + _MARKS:
        part = part.replace("%" + format(ord(mark), "02X"), mark)
    return part.replace("%25", "%")


def _items(container: Any) -> Iterator[Tuple[Any, Any]]:
    return iter(container.items()) if isinstance(container, dict) else iter(enumerate(container))


def _holds_tensors(value: Any) -> bool:
    if _is_tensor(value):
        return True
    return isinstance(value, (dict, list, tuple)) and any(_holds_tensors(inner) for _, inner in _items(value))


def _has_inner_paths(value: Any) -> bool:
    """Returns whether the elements of ``value`` have paths of their own."""
    if isinstance(value, dict) and value and all(_is_path_key(key) for key in value):
        return True
    return _holds_tensors(value)


def _check_tuple(value: Any, path: str) -> None:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        raise UnsupportedError(
            f'"{path}" is a {type(value).__qualname__}, a named tuple, which would come back as a tuple; '
            "save its _asdict()"
        )


def _is_size(value: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(value, torch.Size)


def name_of(path: Sequence[Any]) -> str:
    """Returns the name of a path of dict keys (str) and list indices (int)."""
    return "/".join(_path_part([] if isinstance(key, int) else {}, key) for key in path)


def path_of(name: str) -> Tuple[Any, ...]:
    return tuple(_key_of(part) for part in name.split("/"))


# Plain values


def encode_value(value: Any, path: str) -> Any:
    """Returns JSON that decode_value turns back into ``value``. ``path`` is for messages."""
    if isinstance(value, np.generic):
        if value.dtype.kind not in _PLAIN_SCALARS:
            raise UnsupportedError(f'"{path}" is a numpy scalar of type {value.dtype}, which a checkpoint cannot hold')
        return {"numpy": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _check_text(value, path)
    if isinstance(value, int):
        if value.bit_length() >= _MOST_INT_BITS:
            raise UnsupportedError(
                f'"{path}" is an int of {value.bit_length()} bits; a checkpoint holds less than {_MOST_INT_BITS}'
            )
        return value if -(2**63) <= value < 2**63 else {"int": str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        _check_tuple(value, path)
        kind = "list" if isinstance(value, list) else "size" if _is_size(value) else "tuple"
        return {kind: [encode_value(inner, f"{path}/{i}") for i, inner in enumerate(value)]}
    if isinstance(value, dict):
        kind = "odict" if isinstance(value, OrderedDict) else "dict"
        return {kind: [[encode_value(key, path), encode_value(inner, f"{path}/{key}")] for key, inner in value.items()]}
    torch = _torch()
    if torch is not None and isinstance(value, torch.dtype):
        return {"dtype": str(value).rsplit(".", 1)[-1]}
    raise UnsupportedError(
        f'"{path}" is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, None, bool, '
        "int, float, str, bytes, and lists, tuples and dicts of these: save its state_dict() or its fields instead"
    )


def decode_value(value: Any) -> Any:
    """Returns the value that encode_value got. Never runs code of the value. Raises CorruptError if it is invalid."""
    try:
        return _decode(value)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise CorruptError(f"a plain value of the checkpoint is none: {error}") from error


def _decode(value: Any) -> Any:
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
        return [_decode(one) for one in inner]
    if kind in ("tuple", "size"):
        made = tuple(_decode(one) for one in inner)
        return _torch().Size(made) if kind == "size" and _torch() is not None else made
    if kind in ("dict", "odict"):
        pairs = [(_decode(key), _decode(one)) for key, one in inner]
        return OrderedDict(pairs) if kind == "odict" else dict(pairs)
    if kind == "dtype":
        return _dtype(inner)
    if kind == "numpy":
        return _scalar(*inner)
    if kind == "ndarray":
        name, shape, data = inner
        return np.frombuffer(base64.b64decode(data), _scalar_type(name)).reshape(shape).copy()
    if kind == "torch":
        return unpickle(base64.b64decode(inner))
    raise UnsupportedError(f'a value of the kind "{kind}", which this version does not know')


def _dtype(name: str) -> Any:
    torch = _torch()
    if torch is None:
        return name
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise CorruptError(f'the checkpoint names the element type "{name}", which torch does not have')
    return found


def _scalar_type(name: str) -> Any:
    if not _SCALAR_TYPE.fullmatch(name):
        raise CorruptError(f'the checkpoint has a numpy value of the type "{name}"')
    return np.dtype(name)


def _scalar(name: str, data: str) -> Any:
    dtype, content = _scalar_type(name), base64.b64decode(data)
    if dtype.itemsize == 0:
        return dtype.type()
    return np.frombuffer(content, dtype, 1)[0]


def unpickle(content: bytes) -> Any:
    """Loads a file of torch.save. Makes only tensors, plain values, and objects of the classes that this program passed
    to torch.serialization.add_safe_globals."""
    torch = _torch()
    if torch is None:
        raise UnsupportedError("a value of the checkpoint was saved by torch; import torch first")
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # the class depends on the content: of pickle, zipfile or torch
        lines = str(error).splitlines() or [type(error).__name__]
        reason = next((line.strip() for line in lines if "Unsupported" in line or "GLOBAL" in line), lines[0])
        raise UnsupportedError(
            "a value of the checkpoint is a pickle that is not loaded, because it could run code or is damaged: if you "
            "trust who wrote it and have its class, tell torch by torch.serialization.add_safe_globals([Class]). "
            f"Torch says: {reason}"
        ) from None


# Tensors


def dtype_name(dtype: Any, of: str) -> str:
    """Returns safetensors' name of an element type of torch or numpy. ``of`` is for messages."""
    name = dtype.name if isinstance(dtype, np.dtype) else str(dtype).rsplit(".", 1)[-1]
    for ours, theirs in _TORCH_NAMES.items():
        if theirs == name:
            return ours
    raise UnsupportedError(f'"{of}" has elements of type {dtype}, which safetensors does not know')


def torch_dtype(name: str) -> Any:
    return getattr(_torch(), _TORCH_NAMES[name])


@dataclass
class TensorShard:
    """The box of a tensor that this process holds. Empty offsets and lengths: the whole tensor."""

    name: str
    dtype: str
    shape: List[int]  # of the whole tensor
    offsets: List[int]
    lengths: List[int]
    local: Any

    @property
    def held(self) -> Tuple[Any, ...]:
        """The shard as _native.balance_replicas takes it."""
        elements = self.local.size if isinstance(self.local, np.ndarray) else self.local.numel()
        return self.name, self.dtype, self.shape, (self.offsets, self.lengths), elements

    def run(self, begin: int, elements: int) -> Tuple[Tuple[Any, ...], Any]:
        """Returns consecutive elements as CheckpointWriter.start takes them, and the owner of their memory."""
        _, _, _, box, all_elements = self.held
        check_plain(self.local, self.name)
        local = self.local if elements == all_elements else self.local.reshape(-1)[begin : begin + elements]
        address, size, owner = memory_of(on_host(local, self.name))
        return (self.name, self.dtype, self.shape, begin, box, address, size), owner


@dataclass
class Leaf:
    """A plain value, or a list or tuple without tensors."""

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
        """Returns the boxes that this process holds: offsets, lengths and the local tensor."""
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

    def shards(self) -> List[TensorShard]:
        return [TensorShard(self.name, self.dtype, self.shape, *box) for box in self._local()]

    def targets(self, dtype: str) -> Iterator[Tuple[Any, Callable[[], None]]]:
        """Yields for each box what CheckpointReader.read takes, and a function to call after the read."""
        for offsets, lengths, local in self._local():
            into, copy = target_of(dtype, local)
            address, size, _ = memory_of(into)
            yield (self.name, 0, (offsets, lengths), address, size), copy

    def wanted(self) -> List[Any]:
        address, size, _ = memory_of(self.value)
        return [(self.name, 0, ([], []), address, size)]

    @staticmethod
    def empty(name: str, dtype: str, shape: Sequence[int], array: bool = False) -> "TensorLeaf":
        """``array``: make a numpy array if numpy has this element type."""
        like = np.empty(0) if array and dtype in _NUMPY_NAMES else None
        return TensorLeaf(name, (), _empty(dtype, list(shape), like))


def target_of(dtype: str, local: Any) -> Tuple[Any, Callable[[], None]]:
    """Returns memory to read elements of type ``dtype`` into, and a function that then copies them to ``local``."""
    if getattr(local, "is_meta", False):
        raise InvalidArgumentError(
            "a tensor to be filled is on the meta device; give it memory first: to_empty(device=…)"
        )
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
    """Raises if the elements of ``local`` cannot be saved."""
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
    """Returns address, bytes and owner of a contiguous tensor's memory."""
    if isinstance(value, np.ndarray):
        return value.ctypes.data, value.nbytes, value
    return value.data_ptr(), value.numel() * value.element_size(), value


# Whole states


def leaves_of(state: Any, name: str = "", path: Tuple[Any, ...] = ()) -> Iterator[Leaf]:
    """Yields the leaves of a state. Enters every dict, and lists and tuples that hold tensors."""
    if _is_tensor(state):
        yield TensorLeaf(name, path, state)
    elif _has_inner_paths(state):
        _check_tuple(state, name)
        for key, inner in _items(state):
            part = _path_part(state, key)
            yield from leaves_of(inner, f"{name}/{part}" if name else part, (*path, key))
    elif name:
        yield Leaf(name, path, state)


@dataclass
class Structure:
    """The properties of a state that its paths do not tell."""

    parts: Dict[str, List[str]] = field(default_factory=dict)  # by path of a dict: its path parts in their order
    ordered: Set[str] = field(default_factory=set)  # paths of OrderedDicts
    arrays: Set[str] = field(default_factory=set)  # names of tensors that are numpy arrays

    @staticmethod
    def of(state: Any, path: str = "") -> "Structure":
        found = Structure()
        found._add(state, path)
        return found

    def _add(self, state: Any, path: str) -> None:
        if _is_tensor(state):
            if isinstance(state, np.ndarray):
                self.arrays.add(path)
            return
        if not _has_inner_paths(state):
            return
        parts = [_path_part(state, key) for key, _ in _items(state)]
        if isinstance(state, dict):
            self.parts[path] = parts
            if isinstance(state, OrderedDict):
                self.ordered.add(path)
        for part, (_, inner) in zip(parts, _items(state)):
            self._add(inner, f"{path}/{part}" if path else part)

    def merge(self, other: "Structure") -> None:
        """Adds the structure of another rank's state. New keys come behind the known ones."""
        for path, parts in other.parts.items():
            known = self.parts.setdefault(path, [])
            present = set(known)
            known.extend(part for part in parts if part not in present)
        self.ordered |= other.ordered
        self.arrays |= other.arrays

    def meta(self) -> Dict[str, Any]:
        """Returns members of a checkpoint's meta. A dict with sorted keys needs none, because readers sort keys."""
        dicts: Dict[str, Any] = {}
        for path, parts in self.parts.items():
            in_order = sorted(parts)
            properties: Dict[str, Any] = {}
            if in_order != parts:
                position = {part: index for index, part in enumerate(in_order)}
                properties["order"] = [position[part] for part in parts]
            if path in self.ordered:
                properties["type"] = "OrderedDict"
            if properties:
                dicts[path] = properties
        return {**({"dicts": dicts} if dicts else {}), **({"arrays": sorted(self.arrays)} if self.arrays else {})}


def flatten(state: Any) -> Tuple[List[TensorLeaf], Dict[str, Any]]:
    """Returns the tensors of a state, and its plain values as JSON by path."""
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


def nest(flat: Dict[str, Any], prefix: str = "", dicts: Any = None) -> Any:
    """Returns the state that has these tensors and values by path, or the part of it below ``prefix``. ``dicts`` is the
    member of meta with that name."""
    top: Dict[str, Any] = {}
    for name, value in flat.items():
        parts = (name[len(prefix) + 1 :] if prefix else name).split("/")
        node = top
        for part in parts[:-1]:
            node = node.setdefault(part, {})
        node[parts[-1]] = _NestedLeaf(value)
    return _build(top, prefix, dicts if isinstance(dicts, dict) else {})


@dataclass
class _NestedLeaf:
    value: Any


def _build(node: Any, path: str, dicts: Dict[str, Any]) -> Any:
    if isinstance(node, _NestedLeaf):
        return node.value
    properties = dicts.get(path)
    properties = properties if isinstance(properties, dict) else {}
    parts, order = sorted(node), properties.get("order")
    # The order does not fit if keys were left out since, such as a group of tensors.
    is_permutation = isinstance(order, list) and sorted(map(repr, order)) == sorted(map(repr, range(len(parts))))
    if is_permutation:
        parts = [parts[index] for index in order]
    built = {_key_of(part): _build(node[part], f"{path}/{part}" if path else part, dicts) for part in parts}
    marks = {part[:1] for part in node}
    if marks and marks <= set("@("):
        items = [built[index] for index in sorted(built)]
        return items if marks == {"@"} else tuple(items)
    return OrderedDict(built) if properties.get("type") == "OrderedDict" else built


def replace_leaf(state: Any, leaf: Leaf, value: Any) -> Any:
    """Returns the state with another value for a leaf. Changes dicts and lists in place, and makes new tuples."""

    def put(node: Any, path: Tuple[Any, ...]) -> Any:
        if not path:
            return value
        inner = put(node[path[0]], path[1:])
        if isinstance(node, tuple):
            return (*node[: path[0]], inner, *node[path[0] + 1 :])
        node[path[0]] = inner
        return node

    return put(state, leaf.path)
