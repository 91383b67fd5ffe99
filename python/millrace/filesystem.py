"""An fsspec file system. With it pandas, pyarrow, datasets and others read and write through Millrace."""

from __future__ import annotations

import io
from datetime import datetime, timezone
from typing import Any, Dict, List, Optional, Tuple

import fsspec
from fsspec.spec import AbstractFileSystem

from . import _native
from .files import READ_BUFFER, ObjectReader, ObjectWriter
from .session import Options, session_of


class MillraceFileSystem(AbstractFileSystem):
    """``millrace://bucket/key``; after ``millrace.register_s3()`` also ``s3://bucket/key``.

    Folders are prefixes and need not be made, so ``mkdir`` does nothing.
    Keyword arguments are those of ``millrace.Options``, or s3fs's ``endpoint_url``, ``anon`` and ``profile``.
    """

    protocol = ("millrace", "s3", "s3a")
    root_marker = ""

    def __init__(self, *args: Any, connection: Optional[Options] = None, **kwargs: Any) -> None:
        client = kwargs.pop("client_kwargs", None) or {}
        endpoint = kwargs.pop("endpoint_url", None) or client.get("endpoint_url", "")
        anonymous, profile = kwargs.pop("anon", False), kwargs.pop("profile", None) or ""
        super().__init__(*args, **kwargs)
        self._connection = connection or Options(
            endpoint_url=endpoint, region=client.get("region_name", ""), profile=profile, anonymous=bool(anonymous)
        )

    @property
    def _session(self) -> "_native.Session":
        return session_of(self._connection)

    def _url(self, path: str) -> str:
        return "s3://" + self._strip_protocol(path)

    @staticmethod
    def _split(path: str) -> Tuple[str, str]:
        bucket, _, key = path.partition("/")
        return bucket, key

    def _entry(self, bucket: str, info: Dict[str, Any]) -> Dict[str, Any]:
        return {
            "name": f"{bucket}/{info['key']}",
            "size": info["size"],
            "type": "file",
            "ETag": info["etag"],
            "LastModified": datetime.fromtimestamp(info["modified"], timezone.utc),
        }

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> List[Any]:
        path = self._strip_protocol(path).rstrip("/")
        bucket, key = self._split(path)
        if not bucket:
            entries = [{"name": name, "size": 0, "type": "directory"} for name in _native.buckets(self._session)]
        else:
            objects, folders = _native.list(self._session, f"s3://{bucket}/{key + '/' if key else ''}", False)
            entries = [self._entry(bucket, info) for info in objects if not info["key"].endswith("/")]
            entries += [{"name": f"{bucket}/{name[:-1]}", "size": 0, "type": "directory"} for name in folders]
            if key and not objects and not folders:
                entries = [self.info(path)]  # raises if nothing has this path
        entries.sort(key=lambda entry: entry["name"])
        return entries if detail else [entry["name"] for entry in entries]

    def find(
        self, path: str, maxdepth: Optional[int] = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        path = self._strip_protocol(path).rstrip("/")
        bucket, key = self._split(path)
        objects, _ = _native.list(self._session, f"s3://{bucket}/{key + '/' if key else ''}", True)
        entries = {f"{bucket}/{info['key']}": self._entry(bucket, info) for info in objects if info["key"][-1] != "/"}
        if not entries and key:
            found = _native.head(self._session, self._url(path))
            entries = {path: self._entry(bucket, found)} if found is not None else {}
        return entries if detail else sorted(entries)

    def info(self, path: str, **kwargs: Any) -> Dict[str, Any]:
        path = self._strip_protocol(path).rstrip("/")
        bucket, key = self._split(path)
        if not key:
            if bucket and bucket not in _native.buckets(self._session):
                raise FileNotFoundError(path)
            return {"name": bucket, "size": 0, "type": "directory"}
        found = _native.head(self._session, self._url(path))
        if found is not None:
            return self._entry(bucket, found)
        objects, folders = _native.list(self._session, f"s3://{bucket}/{key}/", False)
        if not objects and not folders:
            raise FileNotFoundError(path)
        return {"name": path, "size": 0, "type": "directory"}

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> Any:
        if mode == "rb":
            return io.BufferedReader(ObjectReader(self._url(path), connection=self._connection), READ_BUFFER)
        if mode in ("wb", "xb"):
            return ObjectWriter(self._url(path), create=mode == "xb", connection=self._connection)
        raise NotImplementedError(f'mode "{mode}": objects are written front to back; appending needs a mount')

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **kwargs: Any) -> bytes:
        with ObjectReader(self._url(path), connection=self._connection) as file:
            first, last, _ = slice(start, end).indices(file.size)
            into = bytearray(max(0, last - first))
            file.seek(first)
            done = 0
            while done < len(into):
                done += file.readinto(memoryview(into)[done:])
            return bytes(into)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        with ObjectWriter(self._url(path), create=mode == "create", connection=self._connection) as file:
            file.write(value)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        _native.copy(self._session, self._url(path1), self._url(path2))

    def rm_file(self, path: str) -> None:
        _native.delete(self._session, [self._url(path)])

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        paths = [path] if isinstance(path, str) else list(path)
        for one in paths:
            one = self._strip_protocol(one)
            names = self.find(one, maxdepth=maxdepth) if recursive else [one]
            if not recursive:
                self.info(one)  # raises if the object does not exist
            if names:
                _native.delete(self._session, ["s3://" + name for name in names])

    def created(self, path: str) -> datetime:
        return self.modified(path)

    def modified(self, path: str) -> datetime:
        return self.info(path)["LastModified"]

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Does nothing. A prefix exists as long as it has an object."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing."""

    def rmdir(self, path: str) -> None:
        """Does nothing."""


fsspec.register_implementation("millrace", MillraceFileSystem, clobber=True)


def register_s3() -> None:
    """Registers Millrace as fsspec's file system for ``s3://``, in this process."""
    for protocol in ("s3", "s3a"):
        fsspec.register_implementation(protocol, MillraceFileSystem, clobber=True)
