"""Objects as Python files."""

from __future__ import annotations

import io
import os
from typing import IO, Any, Iterator, Optional, Union

from . import _native
from .errors import AlreadyExistsError, InvalidArgumentError, PreconditionFailedError
from .session import Options, session_of

#: Bytes that a small read fetches. A guess.
READ_BUFFER = 1 << 20
#: Smaller writes are collected to this many bytes. A guess: saves calls into C++.
WRITE_BUFFER = 1 << 20


class ObjectReader(io.RawIOBase):
    """Reads the version of an object that exists when it is opened. If it is replaced, reads raise ``StaleError``."""

    def __init__(self, url: str, *, connection: Optional[Options] = None) -> None:
        super().__init__()
        self.name = url
        self.mode = "rb"
        self._native = _native.Reader(session_of(connection), url)
        self._at = 0

    @property
    def size(self) -> int:
        return self._native.size

    @property
    def etag(self) -> str:
        return self._native.etag

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}.get(whence)
        if base is None:
            raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, into: Any) -> int:
        self._check()
        count = self._native.read_into(self._at, into)
        self._at += count
        return count

    def readall(self) -> bytes:
        self._check()
        into = bytearray(max(0, self.size - self._at))
        done = 0
        while done < len(into):
            done += self.readinto(memoryview(into)[done:])
        return bytes(into)

    def close(self) -> None:
        super().close()
        self._native = None

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class ObjectWriter(io.RawIOBase):
    """Writes an object front to back, in parallel parts. ``close`` publishes the whole object. An exception in a
    ``with`` block aborts the upload, and so does deleting the file object without ``close``."""

    def __init__(self, url: str, *, create: bool = False, connection: Optional[Options] = None) -> None:
        super().__init__()
        self.name = url
        self.mode = "xb" if create else "wb"
        self._native: Optional[_native.Writer] = _native.Writer(session_of(connection), url, create)
        self._small = bytearray()
        self._at = 0
        # TextIOWrapper writes a byte order mark only if the file is seekable and at its beginning.
        self.begins_text = False

    def seekable(self) -> bool:
        return self.begins_text

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        """Writes all of ``data``."""
        native = self._open()
        with memoryview(data) as view:
            count = view.nbytes
            if count >= WRITE_BUFFER:
                self._send()
                native.write(view)
            else:
                self._small += view.cast("B") if count else b""
                if len(self._small) >= WRITE_BUFFER:
                    self._send()
        self._at += count
        return count

    def abort(self) -> None:
        """Aborts the upload. The object does not appear."""
        native, self._native = self._native, None
        if native is not None:
            native.abort()
        super().close()

    def close(self) -> None:
        if self._native is None:
            return super().close()
        try:
            self._send()
            self._native.finish()
        except (PreconditionFailedError, AlreadyExistsError) as error:
            self.abort()
            if self.mode != "xb":
                raise
            raise AlreadyExistsError(f"{self.name} exists already: somebody else wrote it meanwhile") from error
        except BaseException:
            self.abort()
            raise
        self._native = None
        super().close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close() if kind is None else self.abort()

    def __del__(self) -> None:
        # The destructor of io.RawIOBase would close the file, and so publish half an object.
        if getattr(self, "_native", None) is not None:
            self.abort()

    def _open(self) -> "_native.Writer":
        if self._native is None:
            raise ValueError("I/O operation on closed file")
        return self._native

    def _send(self) -> None:
        if self._small:
            small, self._small = self._small, bytearray()
            self._open().write(small)


class ObjectTextWriter(io.TextIOWrapper):
    """Writes text into an ObjectWriter. An exception aborts the upload, too."""

    def __init__(self, raw: ObjectWriter, encoding: str, errors: Optional[str], newline: Optional[str]) -> None:
        raw.begins_text = True
        super().__init__(raw, encoding, errors, newline)  # type: ignore[arg-type]  # ObjectWriter.write takes all bytes
        raw.begins_text = False
        self._raw = raw

    def abort(self) -> None:
        """Aborts the upload. The object does not appear."""
        self._raw.abort()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close() if kind is None else self.abort()

    def __del__(self) -> None:
        if getattr(self, "_raw", None) is not None:
            self._raw.__del__()


def open(
    url: Union[str, os.PathLike],
    mode: str = "rb",
    *,
    encoding: Optional[str] = None,
    errors: Optional[str] = None,
    newline: Optional[str] = None,
    connection: Optional[Options] = None,
) -> IO[Any]:
    """Opens an object (``s3://bucket/key``) or a file as a Python file.

    ``mode``: ``r`` reads one version of the object and can seek. ``w`` replaces the object. ``x`` creates it. If it
    exists already, ``x`` raises FileExistsError, here or when the file is closed. ``b`` is for bytes. Without ``b`` the
    file is text: ``encoding`` (default UTF-8), ``errors`` and ``newline`` are those of Python's open. Writing is front
    to back, and the object appears when the file is closed. ``a`` and ``+`` need a mount.
    """
    path = os.fspath(url)
    kind, text = mode.replace("b", "").replace("t", ""), "b" not in mode
    if kind not in ("r", "w", "x") or ("b" in mode and "t" in mode) or len(set(mode)) != len(mode):
        raise InvalidArgumentError(
            f'mode "{mode}" is not one of rb, wb, xb, r, w, x; objects cannot be changed in place'
        )
    if not text and (encoding is not None or errors is not None or newline is not None):
        raise InvalidArgumentError("encoding, errors and newline are for text; leave out the b of the mode")
    encoding = encoding or "utf-8"
    if text:  # raises on wrong arguments before any request
        io.TextIOWrapper(io.BytesIO(), encoding, errors, newline).detach()
    if kind == "r":
        reader = io.BufferedReader(ObjectReader(path, connection=connection), READ_BUFFER)
        return _named(io.TextIOWrapper(reader, encoding, errors, newline), mode) if text else reader
    if kind == "x":
        _check_absent(path, connection)
    writer = ObjectWriter(path, create=kind == "x", connection=connection)
    return _named(ObjectTextWriter(writer, encoding, errors, newline), mode) if text else writer


def _named(file: Any, mode: str) -> Any:
    file.mode = mode
    return file


def _check_absent(url: str, connection: Optional[Options]) -> None:
    """Raises early if the object exists. The conditional write when the file is closed decides."""
    try:
        ObjectReader(url, connection=connection).close()
    except PermissionError:
        return  # writing may be allowed all the same
    except FileNotFoundError:
        return
    raise AlreadyExistsError(f"{url} exists already")


def lines(url: Union[str, os.PathLike], *, connection: Optional[Options] = None) -> Iterator[str]:
    """Yields the lines of a text object, without their newlines."""
    with open(url, "r", connection=connection) as file:
        for line in file:
            yield line.rstrip("\n")
