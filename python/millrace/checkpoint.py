"""Saves nested dicts of tensors and plain values to a bucket while training goes on, and loads them in any sharding.

    saver = millrace.checkpoint.Saver("s3://runs/llama", keep_last=3)
    saver.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)    # returns when copied
    ...
    state = millrace.checkpoint.load("s3://runs/llama", into=state)

A checkpoint is complete or does not exist. Its files are standard safetensors. A manifest that names every byte of
them is written last (docs/formats/checkpoint.md). Nothing is pickled, so loading runs no code of the checkpoint.

Under torch.distributed every rank calls with its part of the state. DTensors and ShardedTensors are saved shard by
shard, and replicas once. Any number of ranks can load the checkpoint, in any sharding.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import weakref
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from . import _native
from .errors import InvalidArgumentError, NotFoundError
from .session import Options, parse_bytes, session_of
from ._state import Leaf, Structure, TensorLeaf, TensorShard, decode_value, flatten, leaves_of, nest, replace_leaf

__all__ = ["Checkpoint", "Saver", "Saving", "async_save", "load", "ls", "metadata", "save"]

#: Requests at a time when a checkpoint is loaded. A guess.
PARALLEL_READS = 16
# Members of a checkpoint's meta that save adds to the caller's.
_OWN_META = ("values", "dicts", "arrays")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. ``modified``: when it was committed, in seconds since 1970."""

    step: int
    modified: float
    pinned: bool


class _Ranks:
    """The ranks of torch.distributed. Has its own process groups, since saves run beside the training's collectives."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist, self.world = dist, dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._writer_group, self._plan_group = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")

    def gather(self, mine: bytes) -> List[bytes]:
        of_ranks: Optional[List[Any]] = [None] * self.size if self.rank == 0 else None
        self._dist.gather_object(mine, of_ranks, dst=0, group=self._writer_group)
        return of_ranks or []

    def broadcast(self, from_rank_0: bytes) -> bytes:
        box = [from_rank_0]
        self._dist.broadcast_object_list(box, src=0, group=self._writer_group)
        return box[0]

    def exchange(self, mine: Any) -> List[Any]:
        of_ranks: List[Any] = [None] * self.size
        self._dist.all_gather_object(of_ranks, mine, group=self._plan_group)
        return of_ranks

    def close(self) -> None:
        """Destroys the process groups. Their threads must not run when the interpreter ends."""
        if _world() is self.world:
            self._dist.destroy_process_group(self._writer_group)
            self._dist.destroy_process_group(self._plan_group)


def _world() -> Any:
    """Returns the group of all ranks. None if there is only one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.group.WORLD if torch.distributed.get_world_size() > 1 else None


def _libraries() -> Dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "numpy", "transformers"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            found[name] = str(version)
    return found


_open_savers: "weakref.WeakSet[Saver]" = weakref.WeakSet()


@atexit.register
def _finish_savers() -> None:
    for saver in list(_open_savers):
        if not saver.is_of_this_process:
            continue
        try:
            saver.wait()
        except Exception as error:  # at exit no caller can catch it
            print(f"millrace: the last checkpoint was not saved: {error}", file=sys.stderr)
        saver.close()


class Saver:
    """Saves the states of one run below ``url``. Makes one save at a time: the next save waits for the one before.

    Keeps the newest ``keep_last`` checkpoints, the steps that are multiples of ``keep_every``, the ``keep_best``
    checkpoints with the least value of ``metric`` (with ``greatest``: the greatest), and pinned ones. Removes others.
    ``local``: a folder on this machine's disk for saves with ``to="local"``. ``bandwidth``: the most bytes a second
    that this process sends. Opening and saving are collective under torch.distributed.
    """

    def __init__(
        self,
        url: str,
        *,
        keep_last: int = 3,
        keep_every: int = 0,
        keep_best: int = 0,
        metric: str = "loss",
        greatest: bool = False,
        local: str = "",
        bandwidth: Union[int, str] = 0,
        connection: Optional[Options] = None,
    ) -> None:
        self.url = url
        self._ranks = _Ranks() if _world() is not None else None
        self._process = os.getpid()
        self._writer = _native.CheckpointWriter(
            session_of(connection),
            url,
            self._ranks,
            {
                "keep_last": keep_last,
                "keep_every": keep_every,
                "keep_best": keep_best,
                "metric": metric,
                "greatest": greatest,
                "local": local,
                "bandwidth": parse_bytes(bandwidth),
                "program": sys.argv[0].rsplit("/", 1)[-1] or "python",
                "libraries": _libraries(),
            },
        )
        self._borrowed: List[Any] = []  # owners of the memory that the writer copies from
        self._last_held: Any = None  # the shards and structure that this rank had at its last save
        self._structure = Structure()  # of all ranks' states together
        self._held: Dict[int, List[Any]] = {}  # by rank: its shards and structure
        self._assigned: List[Tuple[int, int, int]] = []  # the ranges of its shards that this rank saves
        _open_savers.add(self)

    def save(
        self,
        state: Any,
        step: int,
        *,
        metadata: Optional[Mapping[str, Any]] = None,
        metrics: Optional[Mapping[str, float]] = None,
        overlap: bool = False,
        to: str = "store",
    ) -> float:
        """Starts saving. Returns once the tensors are copied and may change. Returns the seconds that this took.

        With ``overlap`` returns at once. The tensors must then not change until ``wait_copied``, so call that before
        the optimizer's step. ``to``: "store", "local" or "both". If a save fails, the next save or wait raises.
        """
        if to not in ("store", "local", "both"):
            raise InvalidArgumentError(f'to="{to}": one of "store", "local", "both"')
        for key in _OWN_META:
            if key in (metadata or {}):
                raise InvalidArgumentError(
                    f'metadata has a key "{key}", where a checkpoint keeps its own; name it otherwise'
                )
        leaves, values = flatten(state)
        runs = self._assign_runs([shard for leaf in leaves for shard in leaf.shards()], values, Structure.of(state))
        held = self.start(
            step,
            [run for run, _ in runs],
            [owner for _, owner in runs],
            {**(metadata or {}), "values": values, **self._structure.meta()},
            metrics=metrics,
            to=to,
        )
        return held if overlap else held + self.wait_copied()

    def start(
        self,
        step: int,
        pieces: List[Any],
        owners: List[Any],
        meta: Mapping[str, Any],
        *,
        metrics: Optional[Mapping[str, float]] = None,
        to: str = "store",
    ) -> float:
        """For adapters: saves ``pieces`` as _native takes them. ``owners`` own their memory until it is copied."""
        text = json.dumps(meta, allow_nan=False)
        before = self._borrowed  # the writer may copy from these until the next save begins
        self._borrowed = before + owners
        try:
            return self._writer.start(step, pieces, text, dict(metrics or {}), to != "local", to != "store")
        except Exception:
            self._writer.wait_copied()  # the error may be the previous save's
            raise
        finally:
            self._borrowed = owners

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child of the process that made the saver."""
        return self._process == os.getpid()

    @property
    def usable(self) -> bool:
        """False once torch.distributed was started or ended, since the saver has the ranks of its beginning."""
        world = self._ranks.world if self._ranks else None
        return self._writer is not None and self.is_of_this_process and world is _world()

    def exchange(self, mine: Any) -> List[Any]:
        """For adapters: returns the argument of each rank. Collective."""
        return self._ranks.exchange(mine) if self._ranks else [mine]

    def _assign_runs(
        self, shards: List[TensorShard], values: Dict[str, Any], structure: Structure
    ) -> List[Tuple[Tuple[Any, ...], Any]]:
        """Returns the runs of elements that this rank saves, as ``start`` takes them, with the owners of their memory.

        Adds the values of other ranks to ``values``. A rank sends its shards only if they differ from the last save's.
        """
        if self._ranks is None:
            self._structure = structure
            return [shard.run(0, shard.held[-1]) for shard in shards]
        held = ([shard.held for shard in shards], structure)
        of_ranks = self.exchange((held if held != self._last_held else None, values))
        for rank, (theirs, other_values) in enumerate(of_ranks):
            if theirs is not None:
                self._held[rank] = theirs
            for path, value in other_values.items():
                values.setdefault(path, value)
        if any(theirs is not None for theirs, _ in of_ranks):
            in_order = [self._held[rank] for rank in range(self._ranks.size)]
            self._assigned = _native.balance_replicas([shards_of for shards_of, _ in in_order])[self._ranks.rank]
            self._structure = Structure()
            for _, of_rank in in_order:
                self._structure.merge(of_rank)
        self._last_held = held
        return [shards[index].run(begin, elements) for index, begin, elements in self._assigned]

    def wait_copied(self) -> float:
        """Waits until the tensors of the last save may change. Returns the seconds that this took."""
        seconds = self._writer.wait_copied()
        self._borrowed = []
        return seconds

    def wait(self) -> Optional[Dict[str, Any]]:
        """Waits until the last save is committed and old checkpoints are removed. Raises if the save failed.

        Returns step, bytes (of this rank), blocked_s and total_s. None if there is no save to wait for.
        """
        return self._writer.wait()

    def close(self) -> None:
        """Waits for the last save, then ends the threads and frees the memory. The saver cannot be used afterwards."""
        self._writer = None
        if self._ranks:
            self._ranks.close()
            self._ranks = None

    @property
    def busy(self) -> bool:
        """Whether a save is under way. Another save would wait for it."""
        return self._writer.busy

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *_: Any) -> None:
        self.wait()


class Saving:
    """A save that was started by async_save."""

    def __init__(self, saver: Saver, step: int) -> None:
        self._saver, self.step = saver, step

    def wait_copied(self) -> float:
        return self._saver.wait_copied()

    def result(self) -> Optional[Dict[str, Any]]:
        """Waits until the save is committed. Raises if it failed. None if another save or result has reported it."""
        return self._saver.wait()


_savers: Dict[Any, Saver] = {}


def saver_of(url: str, connection: Optional[Options] = None, **options: Any) -> Saver:
    """Returns the saver of a URL and options. Keeps savers, because under torch.distributed each has process groups.
    Removes no checkpoints unless the options say so. Making a saver is collective."""
    key = (url, connection, tuple(sorted(options.items())))
    if key not in _savers or not _savers[key].usable:
        _savers[key] = Saver(url, connection=connection, **{"keep_last": 1 << 20, **options})  # keeps all
    return _savers[key]


def save(state: Any, url: str, step: int, *, connection: Optional[Options] = None, **options: Any) -> None:
    """Saves, and returns once the checkpoint is committed. Options: those of Saver.save. Keeps old checkpoints."""
    async_save(state, url, step, connection=connection, **options).result()


def async_save(state: Any, url: str, step: int, *, connection: Optional[Options] = None, **options: Any) -> Saving:
    """Starts saving, and returns once the tensors are copied. The next save below the same URL waits for this one."""
    saver = saver_of(url, connection)
    saver.save(state, step, **options)
    return Saving(saver, step)


def ls(url: str, *, connection: Optional[Options] = None) -> List[Checkpoint]:
    """Returns the checkpoints below a URL, lowest step first."""
    return [Checkpoint(*entry) for entry in _native.list_checkpoints(session_of(connection), url)]


def load(
    url: str,
    into: Any = None,
    *,
    step: Optional[int] = None,
    strict: bool = True,
    connection: Optional[Options] = None,
) -> Any:
    """Loads a checkpoint: the newest, or that of ``step``. Verifies every byte that it reads.

    ``into`` is a state, such as a model's state_dict, in any sharding. Its tensors are filled in place and its plain
    values replaced. Nothing else is read. If the checkpoint lacks one of them, raises NotFoundError. With
    ``strict=False`` leaves it unchanged instead.

    Without ``into`` returns the whole state as it was saved: types, keys and their order, values. Tensors are torch's,
    or numpy arrays if torch is not imported. A Parameter becomes a tensor. A subclass of dict becomes a dict, except
    OrderedDict. Never runs code of the checkpoint.
    """
    stored = StoredState(_native.CheckpointReader(session_of(connection), url, step))
    return stored.whole() if into is None else _fill(stored, into, strict)


def metadata(url: str, *, step: Optional[int] = None, connection: Optional[Options] = None) -> Dict[str, Any]:
    """Returns the ``metadata`` that was given to save, with ``step`` and ``metrics``."""
    reader = _native.CheckpointReader(session_of(connection), url, step)
    found = json.loads(reader.meta)
    for key in _OWN_META:
        found.pop(key, None)
    return {**found, "step": reader.step, "metrics": reader.metrics}


class StoredState:
    """A checkpoint that is open for reading."""

    def __init__(self, reader: Any) -> None:
        meta = json.loads(reader.meta)
        self.reader = reader
        self.tensors: Dict[str, Tuple[str, Tuple[int, ...]]] = reader.tensors()
        self.values: Dict[str, Any] = meta.get("values", {})
        self.dicts: Dict[str, Any] = meta.get("dicts", {})
        self.arrays = frozenset(name for name in meta.get("arrays", ()) if isinstance(name, str))

    def whole(self, prefix: str = "") -> Any:
        """Returns a new state of everything below the path ``prefix``."""
        wanted, made = [], {}
        for name, (dtype, shape) in self.tensors.items():
            if prefix and not name.startswith(prefix + "/"):
                continue
            leaf = TensorLeaf.empty(name, dtype, shape, name in self.arrays)
            made[name] = leaf.value
            wanted += leaf.wanted()
        self.reader.read(wanted, PARALLEL_READS)
        for path, value in self.values.items():
            if not prefix or path.startswith(prefix + "/"):
                made[path] = decode_value(value)
        return nest(made, prefix, self.dicts)


def _fill(state: StoredState, into: Any, strict: bool) -> Any:
    reader, stored, values = state.reader, state.tensors, state.values
    wanted: List[Any] = []
    finish: List[Any] = []
    missing: List[str] = []
    replaced: List[Tuple[Leaf, Any]] = []
    for leaf in leaves_of(into):
        if isinstance(leaf, TensorLeaf):
            if leaf.name not in stored:
                missing.append(leaf.name)
                continue
            dtype, shape = stored[leaf.name]
            if tuple(shape) != tuple(leaf.shape):
                raise InvalidArgumentError(
                    f'{reader.name}: "{leaf.name}" has the shape {tuple(shape)}, '
                    f"and {tuple(leaf.shape)} is to be filled"
                )
            for read, copy in leaf.targets(dtype):
                wanted.append(read)
                finish.append(copy)
        elif leaf.name in values:
            replaced.append((leaf, decode_value(values[leaf.name])))
        elif any(name.startswith(leaf.name + "/") for name in (*stored, *values)):
            # `into` has an empty container here, such as the state of an optimizer before its first step.
            replaced.append((leaf, state.whole(leaf.name)))
        else:
            missing.append(leaf.name)
    if missing and strict:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise NotFoundError(
            f"{reader.name} has no {', '.join(missing[:5])}{more}; strict=False leaves them as they are"
        )
    reader.read(wanted, PARALLEL_READS)
    for copy in finish:
        copy()
    for leaf, value in replaced:
        into = replace_leaf(into, leaf, value)
    return into
