"""Storage for torch.distributed.checkpoint, in the files that torch's own writer makes.

``millrace.dcp`` commits atomically, verifies checksums and pickles nothing; new code is better off with that.
"""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import Any, Generator, List, Optional, Union

import torch.distributed
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter, _StoragePrefix
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan

from ..errors import InvalidArgumentError
from ._client import S3Client, S3ClientConfig, parse_s3_uri
from ._streams import S3ReaderConstructor

__all__ = [
    "BinaryPrefixStrategy",
    "DefaultPrefixStrategy",
    "HexPrefixStrategy",
    "NumericPrefixStrategy",
    "RoundRobinPrefixStrategy",
    "S3FileSystem",
    "S3PrefixStrategyBase",
    "S3StorageReader",
    "S3StorageWriter",
]

_Path = Union[str, os.PathLike]


class S3PrefixStrategyBase(ABC):
    """Says how the names of a rank's files begin. Stores divide their load by the beginning of keys."""

    def __call__(self, rank: int) -> str:
        return self.generate_prefix(rank)

    @abstractmethod
    def generate_prefix(self, rank: int) -> str:
        """Returns the beginning for a rank."""


class DefaultPrefixStrategy(S3PrefixStrategyBase):
    """``__RANK_``, as torch's own writer has it."""

    def generate_prefix(self, rank: int) -> str:
        return f"__{rank}_"


def _folder(first: str, epoch_num: Optional[int], rank: int) -> str:
    epoch = "" if epoch_num is None else f"epoch_{epoch_num}/"
    return f"{first}/{epoch}__{rank}_"


class NumericPrefixStrategy(S3PrefixStrategyBase):
    """The digits of a number, the lowest first, then the epoch and the rank: ``0100000000/epoch_3/__2_``."""

    def __init__(
        self,
        base: int,
        epoch_num: Optional[int] = None,
        min_prefix_length: int = 10,
        prefix_count: Optional[int] = None,
    ) -> None:
        if min_prefix_length < 1:
            raise InvalidArgumentError(f"min_prefix_length={min_prefix_length}: must be 1 or more")
        if epoch_num is not None and not isinstance(epoch_num, int):
            raise InvalidArgumentError(f"epoch_num={epoch_num!r}: must be a number or None")
        if prefix_count is not None and (not isinstance(prefix_count, int) or prefix_count < 1):
            raise InvalidArgumentError(f"prefix_count={prefix_count!r}: must be 1 or more, or None")
        grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.base, self.epoch_num = base, epoch_num
        self.prefix_count = prefix_count or (torch.distributed.get_world_size() if grouped else 1)
        digits = 1
        while base**digits < self.prefix_count:
            digits += 1
        length = max(digits, min_prefix_length)
        self.prefix_map = [self._format_number(number, length)[::-1] for number in range(self.prefix_count)]

    def generate_prefix(self, rank: int) -> str:
        return _folder(self.prefix_map[rank % self.prefix_count], self.epoch_num, rank)

    @abstractmethod
    def _format_number(self, number: int, length: int) -> str:
        """Returns the digits of a number, with zeros before them."""


class BinaryPrefixStrategy(NumericPrefixStrategy):
    """Binary digits."""

    def __init__(
        self, epoch_num: Optional[int] = None, min_prefix_length: int = 10, prefix_count: Optional[int] = None
    ) -> None:
        super().__init__(2, epoch_num, min_prefix_length, prefix_count)

    def _format_number(self, number: int, length: int) -> str:
        return format(number, f"0{length}b")


class HexPrefixStrategy(NumericPrefixStrategy):
    """Hexadecimal digits."""

    def __init__(
        self, epoch_num: Optional[int] = None, min_prefix_length: int = 10, prefix_count: Optional[int] = None
    ) -> None:
        super().__init__(16, epoch_num, min_prefix_length, prefix_count)

    def _format_number(self, number: int, length: int) -> str:
        return format(number, f"0{length}x")


class RoundRobinPrefixStrategy(S3PrefixStrategyBase):
    """Given beginnings, in turn."""

    def __init__(self, user_prefixes: List[str], epoch_num: Optional[int] = None) -> None:
        if not user_prefixes:
            raise InvalidArgumentError("user_prefixes: must not be empty")
        self.user_prefixes, self.epoch_num = user_prefixes, epoch_num

    def generate_prefix(self, rank: int) -> str:
        return _folder(self.user_prefixes[rank % len(self.user_prefixes)], self.epoch_num, rank)


class S3FileSystem(FileSystemBase):
    """A bucket as torch's readers and writers of checkpoints take a file system."""

    def __init__(
        self,
        region: str,
        s3_client: Optional[S3Client] = None,
        s3client_config: Optional[S3ClientConfig] = None,
        reader_constructor: Any = None,
    ) -> None:
        self._client = s3_client or S3Client(region, s3client_config=s3client_config)
        self._reader_constructor = reader_constructor or S3ReaderConstructor.default()

    @contextmanager
    def create_stream(self, path: _Path, mode: str) -> Generator[Any, None, None]:
        if mode not in ("rb", "wb"):
            raise InvalidArgumentError(f'mode "{mode}": must be rb or wb')
        bucket, key = parse_s3_uri(os.fspath(path))
        with (
            self._client.put_object(bucket, key)
            if mode == "wb"
            else self._client.get_object(bucket, key, reader_constructor=self._reader_constructor)
        ) as stream:
            yield stream

    def concat_path(self, path: _Path, suffix: str) -> str:
        return os.path.join(os.fspath(path), suffix)

    def init_path(self, path: _Path) -> _Path:
        return path

    def rename(self, path: _Path, new_path: _Path) -> None:
        """Copies the object, and then deletes the old one."""
        bucket, source = parse_s3_uri(os.fspath(path))
        other, destination = parse_s3_uri(os.fspath(new_path))
        if bucket != other:
            raise InvalidArgumentError(f"cannot rename {path} to {new_path}: these are two buckets")
        self._client.copy_object(bucket, source, destination)
        self._client.delete_object(bucket, source)

    def mkdir(self, path: _Path) -> None:
        """Does nothing: a prefix exists as long as it has an object."""

    def exists(self, path: _Path) -> bool:
        return self._client.exists(*parse_s3_uri(os.fspath(path)))

    def rm_file(self, path: _Path) -> None:
        self._client.delete_object(*parse_s3_uri(os.fspath(path)))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool:
        try:
            parse_s3_uri(os.fspath(checkpoint_id))
        except ValueError:
            return False
        return True


class S3StorageWriter(FileSystemWriter):
    """``storage_writer`` of torch.distributed.checkpoint.save. ``kwargs`` are those of torch's FileSystemWriter."""

    def __init__(
        self,
        region: str,
        path: str,
        s3client_config: Optional[S3ClientConfig] = None,
        prefix_strategy: Optional[S3PrefixStrategyBase] = None,
        thread_count: int = 1,
        **kwargs: Any,
    ) -> None:
        # There is nothing to sync: an object is durable when its upload is complete.
        super().__init__(path=path, sync_files=False, thread_count=thread_count, **kwargs)
        self.fs = S3FileSystem(region, s3client_config=s3client_config)  # type: ignore[assignment]
        self.path = self.fs.init_path(path)
        self.prefix_strategy = prefix_strategy or DefaultPrefixStrategy()

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        return [
            dataclasses.replace(plan, storage_data=_StoragePrefix(self.prefix_strategy(rank)))
            for rank, plan in enumerate(plans)
        ]

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool:
        return S3FileSystem.validate_checkpoint_id(checkpoint_id)


class S3StorageReader(FileSystemReader):
    """``storage_reader`` of torch.distributed.checkpoint.load. Reads each file front to back."""

    def __init__(
        self,
        region: str,
        path: _Path,
        s3client_config: Optional[S3ClientConfig] = None,
        reader_constructor: Any = None,
    ) -> None:
        super().__init__(path)
        self._reader_constructor = reader_constructor or S3ReaderConstructor.dcp_optimized()
        self.fs = S3FileSystem(  # type: ignore[assignment]
            region, s3client_config=s3client_config, reader_constructor=self._reader_constructor
        )
        self.path = self.fs.init_path(path)
        self.sync_files = False

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        plan = super().prepare_local_plan(plan)
        plan.items.sort(key=lambda item: self.storage_data[item.storage_index].offset)
        return plan

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool:
        return S3FileSystem.validate_checkpoint_id(checkpoint_id)
