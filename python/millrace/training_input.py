"""The channels of an Estimator: SageMaker's TrainingInput, and its manifests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, List, Optional

from .errors import InvalidArgumentError, UnsupportedError

#: Channels of `fit`, and the part of a job that reads them.
CHANNELS = {
    "train": "data", "training": "data", "eval": "eval", "test": "eval", "valid": "eval", "validation": "eval",
}  # fmt: skip

CONTENT_TYPES = {
    "application/json": "json", "application/jsonlines": "jsonl", "application/x-jsonlines": "jsonl",
    "application/jsonl": "jsonl", "application/x-parquet": "parquet", "application/x-tar": "tar",
    "text/csv": "csv", "text/plain": "lines",
}  # fmt: skip


@dataclass(frozen=True)
class TrainingInput:
    """The data of a channel, as SageMaker's class of this name.

    ``distribution`` may be FullyReplicated or ShardedByS3Key. Millrace's trainer divides records among ranks with both: each
    record is read once an epoch. ``s3_data_type``: S3Prefix, all objects whose keys begin with ``s3_data``; or ManifestFile, a
    JSON list that names objects.
    """

    s3_data: str
    distribution: Optional[str] = None
    compression: Optional[str] = None
    content_type: Optional[str] = None
    record_wrapping: Optional[str] = None
    s3_data_type: str = "S3Prefix"
    input_mode: Optional[str] = None
    shuffle_config: Any = None

    def check(self, channel: str) -> None:
        """Errors: InvalidArgumentError, UnsupportedError; the message names the channel and the argument."""
        choices = {
            "distribution": (None, "FullyReplicated", "ShardedByS3Key"),
            "compression": (None, "None", "Gzip"),
            "record_wrapping": (None, "None"),
            "input_mode": (None, "File", "FastFile", "Pipe"),
            "s3_data_type": ("S3Prefix", "ManifestFile"),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                words = ", ".join(word for word in allowed if word)
                raise UnsupportedError(f'channel "{channel}": {name}={value!r} is not supported; it may be {words}')
        if self.content_type is not None and self.content_type not in CONTENT_TYPES:
            raise UnsupportedError(
                f'channel "{channel}": content_type={self.content_type!r} is unknown; it may be {", ".join(CONTENT_TYPES)}'
            )


def manifest_urls(content: bytes, what: str) -> List[str]:
    """Returns the URLs that a manifest of SageMaker names: [{"prefix": "s3://bucket/folder/"}, "a", "b"], or whole URLs."""
    try:
        entries = json.loads(content)
    except ValueError as error:
        raise InvalidArgumentError(f"{what} is not a manifest: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise InvalidArgumentError(f'{what} is not a manifest: it should be [{{"prefix": "s3://…/"}}, "name", …]')
    prefix = ""
    if isinstance(entries[0], dict):
        prefix = str(entries.pop(0).get("prefix", ""))
    urls = []
    for entry in entries:
        if not isinstance(entry, str) or "\n" in entry:
            raise InvalidArgumentError(f"{what} is not a manifest: {entry!r} is not a name")
        urls.append(prefix + entry)
    if not urls:
        raise InvalidArgumentError(f"{what} names no objects")
    return urls
