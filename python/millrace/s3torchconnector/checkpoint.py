"""Streams for torch.save and torch.load."""

from __future__ import annotations

from typing import Optional

from ._client import S3Client, S3ClientConfig, parse_s3_uri
from ._streams import S3Reader, S3Writer


class S3Checkpoint:
    """Makes streams: ``torch.save(state, checkpoint.writer(url))`` and ``torch.load(checkpoint.reader(url))``."""

    def __init__(
        self, region: str, endpoint: Optional[str] = None, s3client_config: Optional[S3ClientConfig] = None
    ) -> None:
        self.region = region
        self.endpoint = endpoint
        self._client = S3Client(region, endpoint, s3client_config)

    def reader(self, s3_uri: str) -> S3Reader:
        return self._client.get_object(*parse_s3_uri(s3_uri))

    def writer(self, s3_uri: str) -> S3Writer:
        return self._client.put_object(*parse_s3_uri(s3_uri))
