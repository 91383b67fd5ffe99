"""Training data straight from the bucket, for torch's data loaders and transformers' Trainer."""

from __future__ import annotations

import multiprocessing.context
import operator
import os
import sys
from typing import Any, Dict, Iterator, List, Literal, Mapping, NamedTuple, Optional, Tuple, Union

import numpy as np

from . import _native
from .documents import Sources, sources_of
from .errors import InvalidArgumentError, PreconditionFailedError
from .job import (
    DEFAULTS,
    TYPES,
    DataClassification,
    DataLayout,
    DataMlm,
    DataMode,
    DataPreference,
    DataSplitPart,
    TrainObjective,
)
from .session import Options, parse_bytes, session_of
from .tokenizer import Tokenizer

try:
    import torch
    from torch.utils.data import IterableDataset as _Base
    from torch.utils.data import get_worker_info as _worker_info
except ImportError:  # a Dataset then returns numpy arrays
    torch = None  # type: ignore[assignment]
    _Base = object  # type: ignore[assignment,misc]

    def _worker_info() -> None:  # type: ignore[misc]
        return None


def _section(name: str, given: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """The keys of a section of the job file, with its defaults; None for keys that have none."""
    prefix = f"data.{name}."
    defaults = {path[len(prefix) :]: DEFAULTS.get(path) for path in TYPES if path.startswith(prefix)}
    unknown = sorted(set(given or {}) - set(defaults))
    if unknown:
        raise InvalidArgumentError(f"{name} has no {', '.join(unknown)}; it has {', '.join(defaults)}")
    return {**defaults, **(given or {})}


def _whole(name: str, value: Any) -> int:
    """The argument as an int. Errors name it."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {value!r} ({type(value).__name__})") from None


def _number(name: str, value: Any) -> float:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {value!r} ({type(value).__name__})")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {value!r} ({type(value).__name__})")
    return value


class SourceShare(NamedTuple):
    samples_per_pass: int
    samples_per_epoch: int


class _Progress:
    """Where iterations begin. The processes of a DataLoader share it: a worker iterates, and the main process does not
    hear of it otherwise. Samples count over all ranks."""

    _NAMES = ("epoch", "samples", "skipped", "began_epoch", "began_samples", "in_worker")

    epoch: int  #: of the next iteration
    samples: int  #: before its first one
    skipped: int  #: after that, samples that the caller drops (skip_to)
    began_epoch: int  #: of the current or last iteration
    began_samples: int
    in_worker: int  #: 1: a worker has begun an iteration, and has not read its epoch to the end

    def __init__(self, numbers: Optional[List[int]] = None) -> None:
        numbers = numbers or [0] * len(self._NAMES)
        self._share(numbers if torch is None else torch.tensor(numbers, dtype=torch.int64).share_memory_())

    def _share(self, numbers: Any) -> None:
        self._shared = numbers
        # Numbers of a tensor are read by numpy: torch lets other threads run meanwhile, and a daemon thread that returns
        # from it when the interpreter has ended ends the process.
        self._numbers: Any = numbers if torch is None else numbers.numpy()

    def __getattr__(self, name: str) -> int:
        if name not in self._NAMES:
            raise AttributeError(name)
        return int(self._numbers[self._NAMES.index(name)])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._NAMES:
            self._numbers[self._NAMES.index(name)] = value
        else:
            super().__setattr__(name, value)

    def start_at(self, epoch: int, samples: int = 0, skipped: int = 0) -> None:
        self.epoch, self.samples, self.skipped, self.in_worker = epoch, samples, skipped, 0

    def __reduce__(self) -> Any:
        # A process that a DataLoader spawns shares the numbers, as one that it forks does. Any other copy has its own.
        if torch is not None and multiprocessing.context.get_spawning_popen() is not None:
            return _shared_progress, (self._shared,)
        return _Progress, ([int(number) for number in self._numbers],)


def _shared_progress(numbers: Any) -> _Progress:
    progress = _Progress.__new__(_Progress)
    progress._share(numbers)
    return progress


class Dataset(_Base):  # type: ignore[misc,valid-type]
    """Records of a bucket as token sequences, in an order that does not depend on ranks or threads.

    Iterating yields this rank's share of an epoch. The next iteration is the next epoch; after an unfinished one, it is
    the same epoch again, from its start. Each sample is a dict of
    ``input_ids``, ``labels`` and, except with ``mode="pack"``, ``attention_mask``. ``data[5]`` is ``data.sample(5)``.
    With an ``objective`` other than ``"causal_lm"``, it has other keys; see there.

    Reading, parsing and tokenizing run on C++ threads, so a DataLoader needs no workers. With workers, the first one
    has the threads of all workers and yields all samples. So batches and ``len(DataLoader)`` do not depend on the
    number of workers.

    Args:
        sources: A URL (object, prefix ending in ``/``, or glob), several URLs, or a mapping from URL to weight (passes
            over the source in an epoch). Or ``millrace.Source`` objects, each with its own format.
        format: The format of objects whose names do not tell it; see ``millrace.Source``.
        split: The split of Hugging Face data sets whose URLs do not name one, such as ``"train"``.
        tokenizer: A ``millrace.Tokenizer``, or the URL of its model.
        template: The text of a record: fields of its JSON in braces.
        sequence_length: Tokens of a sample.
        objective: ``"causal_lm"``, ``"dpo"``, or one of BERT's. All but the first ignore ``mode``, ``response``,
            ``best_fit``, ``split_long`` and ``boundaries``. Samples of ``"dpo"`` are pairs of answers, each behind its
            prompt: ``chosen_input_ids``, ``chosen_labels``, ``chosen_attention_mask``, and the same for ``rejected_``.
            Each has half of ``sequence_length``, and labels only for the answer. If the prompt alone fills that, the
            pair has no labels.
            Those of BERT have the arguments of transformers' BERT models, and ignore ``layout``, too. They add
            ``token_type_ids`` and ``attention_mask``.
            ``"mlm"`` hides tokens of texts: ``labels`` has the hidden tokens at their own places, -100 elsewhere.
            ``next_sentence_label`` is 1 if the second text of the row is a random one (``BertForPreTraining``).
            ``"classification"``: ``labels`` is one class a row (``BertForSequenceClassification``).
        mlm: How ``"mlm"`` hides tokens, with the keys of the job file: ``probability``, ``max_predictions``,
            ``whole_word``, ``next_sentence``, ``short_sequences``.
        classification: The fields of a record: ``text``, ``pair``, ``label``, and the names of the ``classes``.
        preference: For ``"dpo"``: the templates of ``prompt``, ``chosen`` and ``rejected``. With a ``layout`` of chats,
            a record has these three as lists of messages.
        mode: ``"pack"`` joins documents and cuts them into full sequences. ``"pad"`` makes one sample of each document.
            ``"sft"`` makes one sample of each prompt and answer, with labels only for the answer.
        layout, response: How sft, and dpo with ``"auto"`` or one of the last five, reads a record: ``"auto"``
            (by the chat template beside the tokenizer), ``"alpaca"``, ``"guanaco"``, ``"turns"``, ``"llama2"``,
            ``"llama3"``, ``"chatml"``, ``"zephyr"`` or ``"gemma"``. Without a layout, ``template`` is the prompt and
            ``response`` the answer.
        instruction_template, response_template: With ``layout="turns"``: the texts that begin a prompt and an answer
            in the text of ``template``, as in trl's ``DataCollatorForCompletionOnlyLM``. Without the first, only the
            text behind the last ``response_template`` is learnt.
        best_fit: Modes pad and sft put several whole documents into a sample.
        split_long: Mode pad makes several samples of a document that is longer than a sample, instead of cutting it.
        boundaries: Samples have ``position_ids`` that start at 0 for each document, and batches have ``cu_seqlens``, so
            that attention can stay within documents. No label crosses into the next document.
        held_out, part, split_seed: The share of the records to hold out, chosen by a hash of their content. ``part``
            is the part that this data set reads: ``"train"`` or ``"held_out"``.
        batch_size: None: iterating yields samples, and a DataLoader collates them. Else iterating yields batches of
            this size, made in C++. Then pass ``batch_size=None`` to the DataLoader, which else would make batches of
            batches: iterating over such a DataLoader raises ``InvalidArgumentError``.
        drop_last: Leaves out the last samples of an epoch, which fill no whole batch of all ranks. False: they are
            divided among the ranks, whose last batches are smaller, or are missing where there are too few. For
            evaluations.
        rank, world_size: The rank whose share this data set reads. The default is the whole data set, which accelerate
            and the Trainer need.
        labels: ``"aligned"``: ``labels[t]`` is ``input_ids[t]`` (transformers' models shift them). ``"shifted"``:
            ``labels[t]`` is the token after ``input_ids[t]``.
        dtype: ``"int64"``, or ``"int32"``, which needs no copy.
        framework: ``"torch"`` or ``"numpy"``. None: torch if it is installed.
        max_broken: The most unusable records that are not an error. None: 100, or a thousandth of all records if that
            is more. ``broken_records`` is their number.
        index_cache: URL for record indexes if the data's own bucket is read-only.
        disk_cache, disk_cache_bytes: A local folder that keeps fetched and decoded content for later epochs. All your
            processes on this machine that name the folder with the same size (``"20GiB"``) share it. The folder must be
            new, empty or made by Millrace, and no other user may write to it.
        patience: Seconds for which reading retries a store that does not answer, before it fails.
        threads: Threads that read and tokenize.
        prefetch: Batches, or without ``batch_size`` samples, that are made ahead.
        connection: How to reach the store. None: as the environment says.
    """

    def __init__(
        self,
        sources: Sources,
        tokenizer: Union[Tokenizer, str, os.PathLike],
        *,
        template: str = "{text}",
        format: str = "",
        split: str = "",
        sequence_length: int = 2048,
        objective: TrainObjective = "causal_lm",
        mlm: Optional[DataMlm] = None,
        classification: Optional[DataClassification] = None,
        preference: Optional[DataPreference] = None,
        mode: DataMode = "pack",
        layout: Union[DataLayout, Literal[""]] = "",
        response: str = "{response}",
        instruction_template: str = "",
        response_template: str = "",
        best_fit: bool = False,
        split_long: bool = False,
        boundaries: bool = False,
        held_out: float = 0.0,
        part: DataSplitPart = "train",
        split_seed: int = 1,
        batch_size: Optional[int] = None,
        drop_last: bool = True,
        shuffle_seed: int = 1,
        shuffle_window: int = 262_144,
        rank: int = 0,
        world_size: int = 1,
        labels: Literal["aligned", "shifted"] = "aligned",
        dtype: Literal["int64", "int32"] = "int64",
        framework: Optional[Literal["torch", "numpy"]] = None,
        max_broken: Optional[int] = None,
        index_cache: str = "",
        disk_cache: Union[str, os.PathLike] = "",
        disk_cache_bytes: Union[int, str] = "20GiB",
        patience: float = 600.0,
        threads: int = 2,
        prefetch: Optional[int] = None,
        connection: Optional[Options] = None,
    ) -> None:
        super().__init__()
        if labels not in ("aligned", "shifted"):
            raise InvalidArgumentError(f'labels must be "aligned" or "shifted", not "{labels}"')
        if labels == "shifted" and objective not in ("causal_lm", "dpo"):
            raise InvalidArgumentError(f"labels of the objective {objective} are never shifted")
        if dtype not in ("int64", "int32"):
            raise InvalidArgumentError(f'dtype must be "int64" or "int32", not "{dtype}"')
        if framework not in (None, "torch", "numpy"):
            raise InvalidArgumentError(f'framework must be "torch" or "numpy", not "{framework}"')
        if framework == "torch" and torch is None:
            raise InvalidArgumentError("framework is torch, and torch is not installed")
        if part not in ("train", "held_out"):
            raise InvalidArgumentError(f'part must be "train" or "held_out", not "{part}"')
        max_broken = None if max_broken is None else _whole("max_broken", max_broken)
        batch_size = None if batch_size is None else _whole("batch_size", batch_size)
        rank, world_size = _whole("rank", rank), _whole("world_size", world_size)
        patience = _number("patience", patience)
        if max_broken is not None and max_broken < 0:
            raise InvalidArgumentError(f"max_broken must not be negative, and is {max_broken}")
        if not 0 <= patience < 1e9:
            raise InvalidArgumentError(f"a patience of {patience} seconds makes no sense")
        if batch_size is not None and batch_size < 1:
            raise InvalidArgumentError(f"batch_size must be at least 1, and is {batch_size}")
        if not 0 <= rank < world_size:
            raise InvalidArgumentError(f"rank {rank} of {world_size} does not exist")
        self._connection = connection
        self._tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer, connection=connection)
        self._sources = sources_of(sources, format, split)
        self._options: Dict[str, Any] = {
            "template": _text("template", template),
            "sequence_length": _whole("sequence_length", sequence_length),
            "objective": _text("objective", objective),
            "mlm": _section("mlm", mlm),
            "classification": _section("classification", classification),
            "preference": _section("preference", preference),
            "mode": _text("mode", mode),
            "layout": _text("layout", layout),
            "response": _text("response", response),
            "instruction_template": _text("instruction_template", instruction_template),
            "response_template": _text("response_template", response_template),
            "best_fit": best_fit,
            "split_long": split_long,
            "boundaries": boundaries,
            "held_out": _number("held_out", held_out),
            "part": part,
            "split_seed": _whole("split_seed", split_seed),
            "shuffle_seed": _whole("shuffle_seed", shuffle_seed),
            "shuffle_window": _whole("shuffle_window", shuffle_window),
            "max_broken": max_broken,
            "index_cache": _text("index_cache", index_cache),
            "disk_cache": os.fspath(disk_cache),
            "disk_cache_bytes": parse_bytes(disk_cache_bytes),
            "patience": patience,
            "threads": _whole("threads", threads),
            "aligned": labels == "aligned",
            "wide": dtype == "int64",
        }
        self._torch = framework == "torch" or (framework is None and torch is not None)
        self._rows = batch_size or 1
        self._batched = batch_size is not None
        self._drop_last = drop_last
        self._rank, self._world_size = rank, world_size
        self._prefetch = (None if prefetch is None else _whole("prefetch", prefetch)) or (8 if self._batched else 64)
        self._opened: Optional[Tuple[int, _native.Dataset]] = None
        self._progress = _Progress()
        self._at: Optional[Tuple[int, int]] = None  # epoch and samples behind the last yielded one; None: the start
        self._loader: Optional[_native.Loader] = None
        self._dataset  # opens the data now, so that errors are raised here and not at the first batch

    # --- properties of the data

    @property
    def samples_per_epoch(self) -> int:
        """Samples of an epoch, of all ranks together."""
        return self._dataset.samples_per_epoch

    @property
    def tokens_per_epoch(self) -> int:
        return self._dataset.tokens_per_epoch

    @property
    def records(self) -> int:
        return self._dataset.records

    @property
    def broken_records(self) -> int:
        """The number of unusable records, which are left out. ``millrace data inspect`` names them."""
        return self._dataset.broken_records

    @property
    def broken_by_reason(self) -> Dict[str, int]:
        """The same number by reason, such as ``{"not_json": 2}``. ``no_label`` counts the records of mode ``sft`` of
        which no answer begins within a sample."""
        return self._dataset.broken_by_reason

    @property
    def source_shares(self) -> List[SourceShare]:
        """For each source, in their order: its samples in one pass, and its samples in an epoch."""
        return [SourceShare(*share) for share in self._dataset.source_shares]

    @property
    def truncated_documents(self) -> int:
        """The number of documents that are cut because they are longer than a sample. Always 0 in mode ``pad`` without
        ``best_fit``, which does not count them."""
        return self._dataset.truncated_documents

    @property
    def fingerprint(self) -> str:
        """Everything that the order depends on, as words "name=value"."""
        return self._dataset.fingerprint

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def __len__(self) -> int:
        """Samples of this rank in an epoch, or with ``batch_size`` batches. The same for every rank, unless
        ``drop_last`` is false."""
        return self._whole // (self._rows * self._world_size) + (self._rest[1] > 0)

    def sample(self, index: int, epoch: int = 0) -> Dict[str, Any]:
        """Returns sample ``index`` of an epoch, counted over all ranks."""
        index, epoch = _whole("index", index), _whole("epoch", epoch)
        if not 0 <= index < self.samples_per_epoch:
            raise IndexError(f"there is no sample {index} in epochs of {self.samples_per_epoch}")
        if epoch < 0:
            raise InvalidArgumentError(f"epoch must not be negative, and is {epoch}")
        return self._one(self._dataset.sample(epoch, index))

    def __getitem__(self, index: Any) -> Any:
        """Returns ``sample(index)`` of the first epoch. Negative indices count from its end. A slice returns a list."""
        if isinstance(index, slice):
            return [self.sample(i) for i in range(*index.indices(self.samples_per_epoch))]
        at = operator.index(index)
        if not -self.samples_per_epoch <= at < self.samples_per_epoch:
            raise IndexError(f"there is no sample {at} in epochs of {self.samples_per_epoch}")
        return self.sample(at % self.samples_per_epoch)

    # --- iteration

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        # torch's fetcher calls iter() with this variable among its arguments; no other way shows that it collates.
        if self._batched and sys._getframe(1).f_locals.get("auto_collation"):
            raise InvalidArgumentError(
                f"the data set makes batches of {self._rows} (batch_size), and the DataLoader would make batches of these;"
                " pass batch_size=None to the DataLoader, or no batch_size to the Dataset"
            )
        self._at = None  # where an unfinished iteration stopped
        return self._iterate()

    def _iterate(self) -> Iterator[Dict[str, Any]]:
        worker = _worker_info()
        # A DataLoader collates batches from the samples of each worker separately. If one worker yields all samples,
        # the batches and their number are the same as without workers.
        if worker is not None and worker.id != 0:
            return
        step = self._rows * self._world_size  # samples of all ranks in one step
        progress = self._progress
        epoch, begin = progress.epoch, progress.samples
        first, whole, skipped = begin // step, self._whole // step, progress.skipped // step
        # Another iteration begins at the start, unless a state is loaded before.
        progress.start_at(epoch)
        progress.began_epoch, progress.began_samples, progress.in_worker = epoch, begin, int(worker is not None)
        self._at = (epoch, begin)
        threads = self._options["threads"] * (worker.num_workers if worker is not None else 1)
        if first < whole:
            self._loader = loader = self._open_loader(
                threads, self._state(epoch, begin + skipped * step), self._rank, self._world_size, self._rows
            )
        for at in range(first, whole):
            batch = loader.next() if at >= skipped else self._empty
            # Advances before the yield, so that the caller's state_dict() is the position after this batch.
            self._at = (epoch, (at + 1) * step)
            yield self._yielded(batch)
        at, rows = self._rest
        if rows > 0:
            self._loader = loader = self._open_loader(threads, self._state(epoch, at), 0, 1, rows)
            batch = loader.next()
            self._at = (epoch + 1, 0)
            yield self._yielded(batch)
        if progress.epoch == epoch:
            progress.start_at(epoch + 1)
        self._at = self._loader = None

    def _open_loader(
        self, threads: int, state: Dict[str, Any], rank: int, ranks: int, rows: int
    ) -> "_native.Loader":
        """Starts a loader of batches with ``rows`` rows for each of ``ranks`` ranks."""
        options = {
            "rank": rank,
            "ranks": ranks,
            "global_batch": rows * ranks,
            "micro_batch": rows,
            "prefetch": self._prefetch,
            "threads": threads,
            "stride": 1,
            "phase": 0,
        }
        return _native.Loader(self._dataset, options, state)

    def _yielded(self, batch: Dict[str, Any]) -> Dict[str, Any]:
        return {name: self._tensor(rows) for name, rows in batch.items()} if self._batched else self._one(batch)

    def set_epoch(self, epoch: int) -> None:
        """Starts the next iteration at this epoch. Keeps a restored position if it is in this epoch."""
        epoch = _whole("epoch", epoch)
        if epoch < 0:
            raise InvalidArgumentError(f"epoch must not be negative, and is {epoch}")
        if epoch != self._progress.epoch:
            self._start_at(epoch)

    # --- state

    def state_dict(self) -> Dict[str, Any]:
        """Returns the position after the last sample that was yielded. The same on every rank that has yielded as many.
        torchdata's StatefulDataLoader saves the state of the worker that yields the samples. With the workers of another
        DataLoader, raises ``PreconditionFailedError`` within an epoch: this process does not know which samples it got.
        When the workers have read the epoch to its end, this is the start of the next one."""
        if self._at is not None:
            return self._state(self._at[0], min(self._at[1], self._whole))
        if self._progress.in_worker and _worker_info() is None:
            raise PreconditionFailedError(
                "a DataLoader's worker reads these data, and runs ahead of the program; count the samples and call "
                "state_at(), use torchdata's StatefulDataLoader, or leave the workers out: the data set has threads"
            )
        return self._state(self._progress.epoch, self._progress.samples)

    def state_at(self, samples: int) -> Dict[str, Any]:
        """Returns the position ``samples`` samples, of all ranks, after the start of the current iteration. For callers
        that count trained samples, which can be fewer than the yielded ones."""
        progress = self._progress
        return self._state(progress.began_epoch, min(progress.began_samples + samples, self._whole))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at this position in the next iteration. The number of ranks and threads and the batch size may
        differ, but a step must divide the position. Raises ``PreconditionFailedError``, naming the differences, if the
        position belongs to other data or settings."""
        self._start_at(*self._position(state))

    def skip_to(self, state: Mapping[str, Any]) -> None:
        """As ``load_state_dict``, for callers that drop the samples before the position themselves, as transformers'
        Trainer and ``accelerate.skip_first_batches`` do. The next iteration is the whole epoch. Its samples before the
        position are all zeros and are not read."""
        epoch, skipped = self._position(state)
        self._start_at(epoch, skipped=skipped)

    def _start_at(self, epoch: int, samples: int = 0, skipped: int = 0) -> None:
        self._at = None
        worker = _worker_info()
        if worker is None or worker.id == 0:  # the others yield nothing, and what they know is old
            self._progress.start_at(epoch, samples, skipped)

    def _position(self, state: Mapping[str, Any]) -> Tuple[int, int]:
        missing = [name for name in ("fingerprint", "epoch", "samples") if name not in state]
        if missing:
            raise InvalidArgumentError(f"the state has no {', '.join(missing)}: give what state_dict() returned")
        theirs, ours = state["fingerprint"].split(" "), self.fingerprint.split(" ")
        if theirs != ours:
            then = dict(word.partition("=")[::2] for word in theirs)
            now = [word.partition("=") for word in ours if word not in theirs]
            parts = [f"{name} differs ({then.get(name, 'none')} then, {value} now)" for name, _, value in now]
            raise PreconditionFailedError(
                f"the position to resume from belongs to other data: {', '.join(parts)}"
            )
        epoch, samples, step = int(state["epoch"]), int(state["samples"]), self._rows * self._world_size
        if not 0 <= samples <= self.samples_per_epoch or epoch < 0:
            raise PreconditionFailedError(f"there is no sample {samples} in epochs of {self.samples_per_epoch}")
        if samples % step:
            raise InvalidArgumentError(f"the position, sample {samples}, is inside a step of {step} samples")
        return epoch, samples

    def stats(self) -> Dict[str, float]:
        """Returns statistics of the current iteration: ``batches``, ``tokens``, the seconds that it waited for data
        (``waited_s``), and their causes (``waited_on_network_s``, ``_parse_s``, ``_tokenize_s``, ``_pack_s``). Empty if
        a DataLoader's worker iterates."""
        return self._loader.stats() if self._loader is not None else {}

    # --- inside

    @property
    def _whole(self) -> int:
        """Samples of the whole steps of an epoch."""
        step = self._rows * self._world_size
        return self.samples_per_epoch // step * step

    @property
    def _rest(self) -> Tuple[int, int]:
        """This rank's samples behind the whole steps of an epoch: the first one, and their number."""
        if self._drop_last:
            return self._whole, 0
        each, more = divmod(self.samples_per_epoch - self._whole, self._world_size)
        return self._whole + self._rank * each + min(self._rank, more), each + (self._rank < more)

    @property
    def _dataset(self) -> "_native.Dataset":
        # Threads do not survive a fork, so a DataLoader's worker opens the data again, with the index that exists.
        if self._opened is None or self._opened[0] != os.getpid():
            opened = _native.Dataset(
                session_of(self._connection), self._sources, self._tokenizer._native, self._options
            )
            self._opened = (os.getpid(), opened)
        return self._opened[1]

    @property
    def _empty(self) -> Dict[str, Any]:
        shape, dtype = (self._rows, self._options["sequence_length"]), "int64" if self._options["wide"] else "int32"
        objective = self._options["objective"]
        if objective == "dpo":
            shape = (shape[0], shape[1] // 2)
            return {
                f"{answer}_{name}": np.zeros(shape, dtype)
                for answer in ("chosen", "rejected")
                for name in ("attention_mask", "input_ids", "labels")
            }
        if objective != "causal_lm":
            batch = {name: np.zeros(shape, dtype) for name in ("input_ids", "labels", "attention_mask", "token_type_ids")}
            if objective == "classification":
                batch["labels"] = np.zeros(shape[:1], dtype)
            elif self._options["mlm"]["next_sentence"]:
                batch["next_sentence_label"] = np.zeros(shape[:1], dtype)
            return batch
        names = ["input_ids", "labels"] + (["attention_mask"] if self._options["mode"] != "pack" else [])
        names += ["position_ids"] if self._options["boundaries"] else []
        batch = {name: np.zeros(shape, dtype) for name in names}
        if self._options["boundaries"]:
            batch["cu_seqlens"] = np.arange(0, shape[0] * shape[1] + 1, shape[1], dtype=np.int32)
        return batch

    def _state(self, epoch: int, samples: int) -> Dict[str, Any]:
        return {"epoch": epoch, "samples": samples, "fingerprint": self.fingerprint}

    def _tensor(self, rows: Any) -> Any:
        return torch.from_numpy(rows) if self._torch else rows

    def _one(self, batch: Dict[str, Any]) -> Dict[str, Any]:
        # [0, ...] keeps the label of a row an array, of no dimensions.
        return {name: self._tensor(rows[0, ...]) for name, rows in batch.items() if name != "cu_seqlens"}

    def __getstate__(self) -> Dict[str, Any]:
        kept = dict(self.__dict__)
        kept["_opened"] = kept["_loader"] = kept["_at"] = None
        return kept

    def __repr__(self) -> str:
        urls = [source.url for source in self._sources]
        return f"millrace.Dataset({urls!r}, samples_per_epoch={self.samples_per_epoch:,})"
