"""Objects as Python files."""

from __future__ import annotations

import io
import os
from typing import IO, Any, Iterator, Optional, Union

from . import _native
from .session import Options, session_of

#: What a read of a few bytes fetches.
READ_BUFFER = 1 << 20
#: Smaller writes are gathered.
WRITE_BUFFER = 1 << 20


class ObjectReader(io.RawIOBase):
    """One version of an object, fixed when it is opened: if it is replaced meanwhile, reads raise ``StaleError``."""

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
    """An object written front to back, in parallel parts. It appears, whole, when the file is closed; leaving a ``with``
    block by an exception gives it up instead, and so does losing the file unclosed."""

    def __init__(self, url: str, *, create: bool = False, connection: Optional[Options] = None) -> None:
        super().__init__()
        self.name = url
        self.mode = "xb" if create else "wb"
        self._native: Optional[_native.Writer] = _native.Writer(session_of(connection), url, create)
        self._small = bytearray()
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        """Takes all of ``data``."""
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
        """Gives the object up: nothing of it appears."""
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
        except BaseException:
            self.abort()
            raise
        self._native = None
        super().close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close() if kind is None else self.abort()

    def __del__(self) -> None:
        # io's own would publish what may be half of an object.
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


class ObjectTextWriter(io.TextIOBase):
    """Text into an ObjectWriter, with its promise about exceptions."""

    def __init__(self, raw: ObjectWriter, encoding: str, errors: Optional[str], newline: Optional[str]) -> None:
        super().__init__()
        self._raw = raw
        self._encoding, self._errors = encoding, errors or "strict"
        self._newline = os.linesep if newline is None else newline

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        translated = text.replace("\n", self._newline) if self._newline not in ("", "\n") else text
        self._raw.write(translated.encode(self._encoding, self._errors))
        return len(text)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
            super().close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._raw.abort()
            super().close()
        self.close()

    def __del__(self) -> None:
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

    ``mode``: ``r`` reads, with seeks, one version of the object; ``w`` writes it anew; ``x`` writes it only if it does not
    exist. With ``b`` bytes, without it text, as everywhere in Python. Writing is front to back, and the object appears
    when the file is closed. ``a`` and ``+`` need a mount.
    """
    path = os.fspath(url)
    kind, text = mode.replace("b", "").replace("t", ""), "b" not in mode
    if kind not in ("r", "w", "x") or ("b" in mode and "t" in mode):
        raise ValueError(f'mode "{mode}" is not one of rb, wb, xb, r, w, x; objects cannot be changed in place')
    if not text and (encoding is not None or errors is not None or newline is not None):
        raise ValueError("encoding, errors and newline are for text; leave out the b of the mode")
    if kind == "r":
        reader = io.BufferedReader(ObjectReader(path, connection=connection), READ_BUFFER)
        return io.TextIOWrapper(reader, encoding or "utf-8", errors, newline) if text else reader
    writer = ObjectWriter(path, create=kind == "x", connection=connection)
    return ObjectTextWriter(writer, encoding or "utf-8", errors, newline) if text else writer


def lines(url: Union[str, os.PathLike], *, connection: Optional[Options] = None) -> Iterator[str]:
    """The lines of a text object, without their newlines."""
    with open(url, "r", connection=connection) as file:
        for line in file:
            yield line.rstrip("\n")
