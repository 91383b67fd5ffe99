"""How the classes of this package reach a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, NamedTuple, Optional, Tuple

from .. import _native
from ..errors import InvalidArgumentError
from ..session import Options, session_of
from ._streams import S3Reader, S3ReaderConstructor, S3Writer


@dataclass(frozen=True)
class S3ClientConfig:
    """The options of s3torchconnector's client. ``unsigned`` and ``profile`` are used. Millrace's client finds the number of
    requests, the size of parts and the number of attempts by itself, and the style of URLs by the endpoint's name."""

    throughput_target_gbps: float = 10.0
    part_size: int = 8 << 20
    unsigned: bool = False
    force_path_style: bool = False
    max_attempts: int = 10
    profile: Optional[str] = None


class S3BucketKeyData(NamedTuple):
    """An object in a bucket. ``object_info`` is what its listing said, or None."""

    bucket: str
    key: str
    object_info: Any = None


def parse_s3_uri(uri: str) -> Tuple[str, str]:
    """Returns bucket and key. Errors: InvalidArgumentError (a ValueError) if ``uri`` is not s3://bucket/key."""
    scheme, _, rest = str(uri).partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise InvalidArgumentError(f"{uri!r} should be s3://bucket/key")
    return bucket, key


class S3Client:
    """A connection. It holds only options, so that it can be pickled and used in forked processes."""

    def __init__(
        self, region: str, endpoint: Optional[str] = None, s3client_config: Optional[S3ClientConfig] = None
    ) -> None:
        config = s3client_config or S3ClientConfig()
        self.options = Options(
            endpoint_url=endpoint or "", region=region or "", profile=config.profile or "", anonymous=config.unsigned
        )

    def get_object(self, bucket: str, key: str, *, object_info: Any = None, reader_constructor: Any = None) -> S3Reader:
        return (reader_constructor or S3ReaderConstructor.default())(bucket, key, self.options)

    def put_object(self, bucket: str, key: str) -> S3Writer:
        return S3Writer(f"s3://{bucket}/{key}", self.options)

    def list_objects(self, bucket: str, prefix: str = "") -> Iterator[S3BucketKeyData]:
        """Yields the objects whose keys begin with ``prefix``, sorted. Leaves out the record indexes that Millrace keeps in
        folders named .millrace."""
        objects, _ = _native.list(session_of(self.options), f"s3://{bucket}/{prefix}", True)
        for found in objects:
            if "/.millrace/" not in "/" + found["key"]:
                yield S3BucketKeyData(bucket, found["key"], found)

    def exists(self, bucket: str, key: str) -> bool:
        return _native.head(session_of(self.options), f"s3://{bucket}/{key}") is not None

    def delete_object(self, bucket: str, key: str) -> None:
        _native.delete(session_of(self.options), [f"s3://{bucket}/{key}"])

    def copy_object(self, bucket: str, source: str, destination: str) -> None:
        _native.copy(session_of(self.options), f"s3://{bucket}/{source}", f"s3://{bucket}/{destination}")
