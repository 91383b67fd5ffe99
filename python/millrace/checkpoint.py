"""Checkpoints: nested dicts of tensors and plain values, saved to a bucket while training goes on, loaded on any layout.

    saver = millrace.checkpoint.Saver("s3://runs/llama", keep_last=3)
    saver.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)    # returns when copied
    ...
    state = millrace.checkpoint.load("s3://runs/llama", into=state)

A checkpoint is there whole or not at all: its files are standard safetensors, and a manifest that names every byte of them
is written last (docs/formats/checkpoint.md). Nothing is pickled, so loading runs no code of whoever wrote it.

Under torch.distributed every rank calls with its part: DTensors and ShardedTensors are saved shard by shard, what several
ranks hold alike is saved once, and any number of ranks, sharded in any way, can load it.
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
from ._state import Leaf, Piece, Structure, TensorLeaf, decode_value, flatten, leaves_of, nest, place

__all__ = ["Checkpoint", "Saver", "Saving", "async_save", "load", "ls", "metadata", "save"]

PARALLEL_READS = 16
# Members of a checkpoint's meta that are not the caller's.
_OWN_META = ("values", "dicts", "arrays")


@dataclass(frozen=True)
class Checkpoint:
    """One that is complete. ``modified``: when it was committed, in seconds since 1970."""

    step: int
    modified: float
    pinned: bool


class _Ranks:
    """The processes of torch.distributed, over groups of our own: a save may run beside the training's collectives."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist, self.world = dist, dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._of_writer, self._of_plan = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")

    def gather(self, mine: bytes) -> List[bytes]:
        everyones: Optional[List[Any]] = [None] * self.size if self.rank == 0 else None
        self._dist.gather_object(mine, everyones, dst=0, group=self._of_writer)
        return everyones or []

    def broadcast(self, from_rank_0: bytes) -> bytes:
        box = [from_rank_0]
        self._dist.broadcast_object_list(box, src=0, group=self._of_writer)
        return box[0]

    def exchange(self, mine: Any) -> List[Any]:
        everyones: List[Any] = [None] * self.size
        self._dist.all_gather_object(everyones, mine, group=self._of_plan)
        return everyones

    def close(self) -> None:
        """Ends the groups and their threads, which must not be at work when the interpreter ends."""
        if _world() is self.world:
            self._dist.destroy_process_group(self._of_writer)
            self._dist.destroy_process_group(self._of_plan)


def _world() -> Any:
    """The group of all processes where there are several."""
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
        if not saver.ours:
            continue
        try:
            saver.wait()
        except Exception as error:  # nobody is left to catch it
            print(f"millrace: the last checkpoint was not saved: {error}", file=sys.stderr)
        saver.close()


class Saver:
    """Saves the states of one run below ``url``. One save at a time: the next waits for the one before.

    ``keep_last`` checkpoints stay, every step that is a multiple of ``keep_every``, the ``keep_best`` with the least
    (``greatest``: greatest) of the ``metric`` that was given to save, and what is pinned. ``local``: a folder on this machine's
    disk for saves with ``to="local"``. ``bandwidth``: bytes a second at most that this process sends.
    Opening and saving are collective under torch.distributed.
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
        self._borrowed: List[Any] = []  # what the writer copies from
        self._told: Any = None  # what this rank held at its last save
        self._structure = Structure()  # of all ranks' states
        self._held: Dict[int, List[Any]] = {}  # and every one
        self._mine: List[Tuple[int, int, int]] = []  # of what this rank holds, what it saves
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
        """Starts saving; returns as soon as the tensors are copied and may change, with the seconds that took.

        With ``overlap`` it returns at once, and the tensors must stay as they are until ``wait_copied``: call that
        before the optimizer's step. ``to``: "store", "local" or "both". A save that failed raises at the next save or
        wait.
        """
        if to not in ("store", "local", "both"):
            raise InvalidArgumentError(f'to="{to}": one of "store", "local", "both"')
        for key in _OWN_META:
            if key in (metadata or {}):
                raise InvalidArgumentError(f'metadata has a key "{key}", where a checkpoint keeps its own; name it otherwise')
        leaves, values = flatten(state)
        runs = self._share([piece for leaf in leaves for piece in leaf.pieces()], values, Structure.of(state))
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
        """For adapters: saves pieces as _native has them, of memory that ``owners`` keep until it is copied."""
        text = json.dumps(meta, allow_nan=False)
        before = self._borrowed  # may still be copied from, until the next save begins
        self._borrowed = before + owners
        try:
            return self._writer.start(step, pieces, text, dict(metrics or {}), to != "local", to != "store")
        except Exception:
            self._writer.wait_copied()  # the error may be that of the save before
            raise
        finally:
            self._borrowed = owners

    @property
    def ours(self) -> bool:
        """Not of the process that this one was forked from."""
        return self._process == os.getpid()

    @property
    def usable(self) -> bool:
        """With the ranks there are now: torch.distributed may have been started or ended since."""
        return self._writer is not None and self.ours and (self._ranks.world if self._ranks else None) is _world()

    def everyones(self, mine: Any) -> List[Any]:
        """For adapters: what each rank has to say. Collective."""
        return self._ranks.exchange(mine) if self._ranks else [mine]

    def _share(
        self, pieces: List[Piece], values: Dict[str, Any], structure: Structure
    ) -> List[Tuple[Tuple[Any, ...], Any]]:
        """What this rank saves of its pieces: runs as ``start`` wants them, each with the owner of its memory.

        Adds to the values those of other ranks. What a rank has is told only when it is not what it was at the save before.
        """
        if self._ranks is None:
            self._structure = structure
            return [piece.run(0, piece.held[-1]) for piece in pieces]
        held = ([piece.held for piece in pieces], structure)
        everyones = self.everyones((held if held != self._told else None, values))
        for rank, (theirs, other_values) in enumerate(everyones):
            if theirs is not None:
                self._held[rank] = theirs
            for path, value in other_values.items():
                values.setdefault(path, value)
        if any(theirs is not None for theirs, _ in everyones):
            in_order = [self._held[rank] for rank in range(self._ranks.size)]
            self._mine = _native.balance_replicas([pieces_of for pieces_of, _ in in_order])[self._ranks.rank]
            self._structure = Structure()
            for _, of_rank in in_order:
                self._structure.merge(of_rank)
        self._told = held
        return [pieces[index].run(begin, elements) for index, begin, elements in self._mine]

    def wait_copied(self) -> float:
        """Returns once the tensors of the last save may change; the seconds that took."""
        seconds = self._writer.wait_copied()
        self._borrowed = []
        return seconds

    def wait(self) -> Optional[Dict[str, Any]]:
        """Waits until the last save is committed and old ones are removed. Raises what went wrong.

        Returns step, bytes (of this rank), blocked_s and total_s; None if there was nothing to wait for.
        """
        return self._writer.wait()

    def close(self) -> None:
        """Lets its threads and memory go, once the last save has ended. It cannot be used any more."""
        self._writer = None
        if self._ranks:
            self._ranks.close()
            self._ranks = None

    @property
    def busy(self) -> bool:
        """A save is under way: another one would wait for it."""
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
        """Waits until it is committed, and raises if it was not. None if a later save or result told already."""
        return self._saver.wait()


_savers: Dict[Any, Saver] = {}


def saver_of(url: str, connection: Optional[Options] = None, **options: Any) -> Saver:
    """One saver for a URL and options, kept: under torch.distributed each has process groups of its own. Removes nothing
    unless the options say so. Collective when it is made."""
    key = (url, connection, tuple(sorted(options.items())))
    if key not in _savers or not _savers[key].usable:
        _savers[key] = Saver(url, connection=connection, **{"keep_last": 1 << 20, **options})
    return _savers[key]


def save(state: Any, url: str, step: int, *, connection: Optional[Options] = None, **options: Any) -> None:
    """Saves and returns when the checkpoint is committed. Options as Saver.save's; old checkpoints stay."""
    async_save(state, url, step, connection=connection, **options).result()


def async_save(state: Any, url: str, step: int, *, connection: Optional[Options] = None, **options: Any) -> Saving:
    """Starts saving and returns as soon as the tensors are copied. The next one below the same URL waits for this one."""
    saver = saver_of(url, connection)
    saver.save(state, step, **options)
    return Saving(saver, step)


def ls(url: str, *, connection: Optional[Options] = None) -> List[Checkpoint]:
    """The checkpoints below a URL, oldest step first."""
    return [Checkpoint(*entry) for entry in _native.list_checkpoints(session_of(connection), url)]


def load(
    url: str,
    into: Any = None,
    *,
    step: Optional[int] = None,
    strict: bool = True,
    connection: Optional[Options] = None,
) -> Any:
    """Loads a checkpoint: the newest, or that of ``step``. Every byte is verified.

    With ``into``, a state of the shape wanted (a model's state_dict, of any sharding), its tensors are filled in place and its
    plain values replaced; only what it names is read. What the checkpoint lacks raises NotFoundError, or stays as it is with
    ``strict=False``. Without, the whole state is returned as it was saved: types, keys and their order, values. Tensors are
    torch's, or numpy arrays where torch is not imported. A Parameter comes back as a tensor, a subclass of dict other than
    OrderedDict as a dict. Nothing that the checkpoint holds is run.
    """
    stored = StoredState(_native.CheckpointReader(session_of(connection), url, step))
    return stored.whole() if into is None else _fill(stored, into, strict)


def metadata(url: str, *, step: Optional[int] = None, connection: Optional[Options] = None) -> Dict[str, Any]:
    """What was given to save as ``metadata``, with ``step`` and ``metrics``."""
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
        """What lies below a path, anew."""
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
                    f'{reader.name}: "{leaf.name}" has the shape {tuple(shape)}, and {tuple(leaf.shape)} is to be filled'
                )
            for read, copy in leaf.targets(dtype):
                wanted.append(read)
                finish.append(copy)
        elif leaf.name in values:
            replaced.append((leaf, decode_value(values[leaf.name])))
        elif any(name.startswith(leaf.name + "/") for name in (*stored, *values)):
            # Such as an optimizer that has made no step yet.
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
        into = place(into, leaf, value)
    return into
