"""States as checkpoints hold them: every tensor and every plain value by a path, and what a rank has of a tensor.

A path's parts are joined by "/". A part is a dict's key, and with a mark in front an int key ("#3"), an index of a list ("@3")
or of a tuple ("(3"). A list or tuple that holds no tensor is one value. What paths and values do not tell, the order of a
dict's keys, OrderedDict, and which tensors were numpy arrays, is kept beside them (docs/formats/checkpoint.md).
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
_MOST_INT_BITS = 2048
# Types of numpy's scalars whose bytes are all of them: no objects, no records.
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
    if _is_path_key(key) and isinstance(key, int):
        return f"#{key}"
    if not isinstance(key, str):
        raise UnsupportedError(f"a dict that holds tensors has the key {key!r}; keys are str or int")
    _check_text(key, "a key")
    escaped = key.replace("%", "%25").replace("/", "%2F")
    return "%" + format(ord(escaped[0]), "02X") + escaped[1:] if escaped[:1] and escaped[0] in _MARKS else escaped or "%00"


def _is_path_key(key: Any) -> bool:
    return isinstance(key, str) or (type(key) is int and -(2**63) <= key < 2**63)


def _check_text(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnsupportedError(f"{path}: {text!r} is no valid Unicode (it has half of a surrogate pair)") from None
    return text


def _key(part: str) -> Any:
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


def _is_gone_through(value: Any) -> bool:
    """Whether its parts have paths of their own."""
    if isinstance(value, dict) and value and all(_is_path_key(key) for key in value):
        return True
    return _holds_tensors(value)


def _check_tuple(value: Any, path: str) -> None:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        raise UnsupportedError(
            f'"{path}" is a {type(value).__qualname__}, a named tuple, which would come back as a tuple; save its _asdict()'
        )


def _is_size(value: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(value, torch.Size)


def name_of(path: Sequence[Any]) -> str:
    """The path of keys of dicts (str) and indices of lists (int)."""
    return "/".join(_part([] if isinstance(key, int) else {}, key) for key in path)


def path_of(name: str) -> Tuple[Any, ...]:
    return tuple(_key(part) for part in name.split("/"))


# Plain values


def encode_value(value: Any, path: str) -> Any:
    """JSON that decode_value turns back into the same."""
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
            raise UnsupportedError(f'"{path}" is an int of {value.bit_length()} bits; a checkpoint holds less than {_MOST_INT_BITS}')
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
        f'"{path}" is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, None, bool, int, float, '
        "str, bytes, and lists, tuples and dicts of these: save its state_dict() or its fields instead"
    )


def decode_value(value: Any) -> Any:
    """What encode_value was given. Runs nothing, whoever wrote the value: kCorrupt where it is none."""
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
    """A file of torch.save from a checkpoint. Only what torch takes for data is made: tensors, plain values, and classes
    that this program itself has named to torch.serialization.add_safe_globals."""
    torch = _torch()
    if torch is None:
        raise UnsupportedError("a value of the checkpoint was saved by torch; import torch first")
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle's, zipfile's or torch's: the content decides which
        lines = str(error).splitlines() or [type(error).__name__]
        reason = next((line.strip() for line in lines if "Unsupported" in line or "GLOBAL" in line), lines[0])
        raise UnsupportedError(
            "a value of the checkpoint is a pickle that is not loaded, because it could run code or is damaged: if you trust who "
            f"wrote it and have its class, tell torch by torch.serialization.add_safe_globals([Class]). Torch says: {reason}"
        ) from None


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
    def empty(name: str, dtype: str, shape: Sequence[int], array: bool = False) -> "TensorLeaf":
        """``array``: one of numpy's, if numpy has such elements."""
        like = np.empty(0) if array and dtype in _NUMPY_NAMES else None
        return TensorLeaf(name, (), _empty(dtype, list(shape), like))


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
    elif _is_gone_through(state):
        _check_tuple(state, name)
        for key, inner in _items(state):
            part = _part(state, key)
            yield from leaves_of(inner, f"{name}/{part}" if name else part, (*path, key))
    elif name:
        yield Leaf(name, path, state)


@dataclass
class Structure:
    """What the paths of a state do not tell."""

    parts: Dict[str, List[str]] = field(default_factory=dict)  # of the dict with this path, in its order
    ordered: Set[str] = field(default_factory=set)  # paths of those that are OrderedDicts
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
        if not _is_gone_through(state):
            return
        parts = [_part(state, key) for key, _ in _items(state)]
        if isinstance(state, dict):
            self.parts[path] = parts
            if isinstance(state, OrderedDict):
                self.ordered.add(path)
        for part, (_, inner) in zip(parts, _items(state)):
            self._add(inner, f"{path}/{part}" if path else part)

    def merge(self, other: "Structure") -> None:
        """Adds what another rank has: its keys come behind those that are known."""
        for path, parts in other.parts.items():
            known = self.parts.setdefault(path, [])
            there = set(known)
            known.extend(part for part in parts if part not in there)
        self.ordered |= other.ordered
        self.arrays |= other.arrays

    def meta(self) -> Dict[str, Any]:
        """As members of a checkpoint's meta. A dict whose keys are sorted, as most readers make it, needs no word."""
        dicts: Dict[str, Any] = {}
        for path, parts in self.parts.items():
            in_order = sorted(parts)
            told: Dict[str, Any] = {}
            if in_order != parts:
                place = {part: index for index, part in enumerate(in_order)}
                told["order"] = [place[part] for part in parts]
            if path in self.ordered:
                told["type"] = "OrderedDict"
            if told:
                dicts[path] = told
        return {**({"dicts": dicts} if dicts else {}), **({"arrays": sorted(self.arrays)} if self.arrays else {})}


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


def nest(flat: Dict[str, Any], prefix: str = "", dicts: Any = None) -> Any:
    """The state whose parts have these paths; of a path, what lies below ``prefix``. ``dicts``: that member of meta."""
    top: Dict[str, Any] = {}
    for name, value in flat.items():
        parts = (name[len(prefix) + 1 :] if prefix else name).split("/")
        node = top
        for part in parts[:-1]:
            node = node.setdefault(part, {})
        node[parts[-1]] = _Done(value)
    return _build(top, prefix, dicts if isinstance(dicts, dict) else {})


@dataclass
class _Done:
    value: Any


def _build(node: Any, path: str, dicts: Dict[str, Any]) -> Any:
    if isinstance(node, _Done):
        return node.value
    told = dicts.get(path)
    told = told if isinstance(told, dict) else {}
    parts, order = sorted(node), told.get("order")
    # Another number of keys: the state was changed since, such as by leaving out a group.
    if isinstance(order, list) and set(map(repr, order)) == set(map(repr, range(len(parts)))) and len(order) == len(parts):
        parts = [parts[index] for index in order]
    built = {_key(part): _build(node[part], f"{path}/{part}" if path else part, dicts) for part in parts}
    marks = {part[:1] for part in node}
    if marks and marks <= set("@("):
        items = [built[index] for index in sorted(built)]
        return items if marks == {"@"} else tuple(items)
    return OrderedDict(built) if told.get("type") == "OrderedDict" else built


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
