"""Objects as the streams that s3torchconnector hands out."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Optional

from ..errors import InvalidArgumentError
from ..files import READ_BUFFER, ObjectReader, ObjectWriter
from ..session import Options

#: The buffer of s3torchconnector's range_based readers.
RANGE_BUFFER = 8 << 20


class S3Reader(io.BufferedIOBase):
    """Reads an object. Sends no request before the first read, seek to the end or readinto. Reads in order fetch ahead.

    If the object is replaced meanwhile, reads raise millrace.errors.StaleError.
    """

    def __init__(self, bucket: str, key: str, options: Options, buffer_size: int = READ_BUFFER) -> None:
        super().__init__()
        self._bucket, self._key, self._options = bucket, key, options
        self._buffer_size = buffer_size
        self._stream: Any = None

    @property
    def bucket(self) -> str:
        return self._bucket

    @property
    def key(self) -> str:
        return self._key

    @property
    def name(self) -> str:
        return f"s3://{self._bucket}/{self._key}"

    def read(self, size: Optional[int] = None) -> bytes:  # type: ignore[override]
        if size is not None and size < 0:
            size = None
        return self._opened().read(-1 if size is None else size)

    def read1(self, size: int = -1) -> bytes:
        return self.read(size)

    def readinto(self, buffer: Any) -> int:
        return self._opened().readinto(buffer)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves to a place. Beyond the end is the end, as with s3torchconnector."""
        stream = self._opened()
        at = stream.seek(offset, whence)
        return stream.seek(0, io.SEEK_END) if at > self._file.size else at

    def tell(self) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return 0 if self._stream is None else self._stream.tell()

    def prefetch(self) -> None:
        """Opens the object, so that errors come now."""
        self._opened()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        if self._stream is not None and not self.closed:
            self._stream.close()
        super().close()

    def _opened(self) -> Any:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._stream is None:
            self._file = ObjectReader(self.name, connection=self._options)
            self._stream = io.BufferedReader(self._file, self._buffer_size) if self._buffer_size else self._file
        return self._stream


class S3Writer(io.BufferedIOBase):
    """Writes an object front to back. ``close`` publishes it. An exception in a ``with`` block, and deleting the writer without
    ``close``, publish nothing."""

    def __init__(self, url: str, options: Options) -> None:
        super().__init__()
        self.name = url
        self._file = ObjectWriter(url, connection=options)

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        """Does nothing: the object appears as a whole."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return not self.closed

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "S3Writer":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._file.close() if kind is None else self._file.abort()

    def __del__(self) -> None:
        # The destructor of io.IOBase would close the file, and so publish half an object.
        if "_file" in self.__dict__ and not self._file.closed:
            self._file.abort()


@dataclass(frozen=True)
class _Constructor:
    """Makes readers. Can be pickled, for the workers of a DataLoader."""

    buffer_size: int

    def __call__(self, bucket: str, key: str, options: Options) -> S3Reader:
        return S3Reader(bucket, key, options, self.buffer_size)


class S3ReaderConstructor:
    """The kinds of readers. All are one class here, with other buffers: it fetches ahead when reads come in order, and only
    what is read otherwise."""

    @staticmethod
    def sequential() -> _Constructor:
        return _Constructor(READ_BUFFER)

    @staticmethod
    def range_based(buffer_size: Optional[int] = None) -> _Constructor:
        """``buffer_size``: bytes that a small read fetches; 0: what is read. Default: 8 MiB."""
        if buffer_size is not None and buffer_size < 0:
            raise InvalidArgumentError(f"buffer_size={buffer_size}: must be 0 or more")
        return _Constructor(RANGE_BUFFER if buffer_size is None else buffer_size)

    @staticmethod
    def dcp_optimized(max_gap_size: "int | float" = 32 << 20) -> _Constructor:
        """For S3StorageReader, which reads in the order of the file. ``max_gap_size`` changes nothing: the client decides what
        it fetches ahead."""
        if max_gap_size < 0:
            raise InvalidArgumentError(f"max_gap_size={max_gap_size}: must be 0 or more")
        return _Constructor(READ_BUFFER)

    @staticmethod
    def default() -> _Constructor:
        return S3ReaderConstructor.sequential()
