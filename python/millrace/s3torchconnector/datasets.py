"""Data sets of whole objects. They can be pickled; each process connects by itself."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any, Callable, Iterable, Iterator, List, Optional, Union

import torch

from ..errors import InvalidArgumentError
from ._client import S3BucketKeyData, S3Client, S3ClientConfig, parse_s3_uri
from ._streams import S3Reader, S3ReaderConstructor

_Objects = Callable[[S3Client], Iterable[S3BucketKeyData]]


def identity(reader: S3Reader) -> S3Reader:
    return reader


def _of_uris(uris: List[str], client: S3Client) -> Iterator[S3BucketKeyData]:
    return (S3BucketKeyData(*parse_s3_uri(uri)) for uri in uris)


def _of_prefix(uri: str, client: S3Client) -> Iterator[S3BucketKeyData]:
    return client.list_objects(*parse_s3_uri(uri))


class _Objectwise:
    """What both kinds of data sets have."""

    def __init__(
        self,
        region: str,
        get_dataset_objects: _Objects,
        endpoint: Optional[str] = None,
        transform: Callable[[S3Reader], Any] = identity,
        s3client_config: Optional[S3ClientConfig] = None,
        reader_constructor: Any = None,
    ) -> None:
        self._region, self._endpoint = region, endpoint
        self._get_dataset_objects = get_dataset_objects
        self._transform = transform
        self._reader_constructor = reader_constructor or S3ReaderConstructor.default()
        if not isinstance(self._reader_constructor, type(S3ReaderConstructor.default())):
            raise InvalidArgumentError(
                "reader_constructor: it should be one of millrace.s3torchconnector.S3ReaderConstructor"
            )
        self._client = S3Client(region, endpoint, s3client_config)

    @property
    def region(self) -> str:
        return self._region

    @property
    def endpoint(self) -> Optional[str]:
        return self._endpoint

    @classmethod
    def from_objects(
        cls,
        object_uris: Union[str, Iterable[str]],
        *,
        region: str,
        endpoint: Optional[str] = None,
        transform: Callable[[S3Reader], Any] = identity,
        s3client_config: Optional[S3ClientConfig] = None,
        **options: Any,
    ) -> Any:
        """Makes a data set of the objects at one or several URLs. Sends no request."""
        uris = [object_uris] if isinstance(object_uris, str) else list(object_uris)
        for uri in uris:
            parse_s3_uri(uri)
        return cls(region, partial(_of_uris, uris), endpoint, transform, s3client_config, **options)

    @classmethod
    def from_prefix(
        cls,
        s3_uri: str,
        *,
        region: str,
        endpoint: Optional[str] = None,
        transform: Callable[[S3Reader], Any] = identity,
        s3client_config: Optional[S3ClientConfig] = None,
        **options: Any,
    ) -> Any:
        """Makes a data set of all objects whose keys begin with that of ``s3_uri``. They are listed at the first use."""
        parse_s3_uri(s3_uri)
        return cls(region, partial(_of_prefix, s3_uri), endpoint, transform, s3client_config, **options)

    def _objects(self) -> Iterable[S3BucketKeyData]:
        return self._get_dataset_objects(self._client)

    def _transformed(self, found: S3BucketKeyData) -> Any:
        reader = self._client.get_object(found.bucket, found.key, reader_constructor=self._reader_constructor)
        return self._transform(reader)


class S3MapDataset(_Objectwise, torch.utils.data.Dataset):
    """The transformed objects by their index."""

    _found: Optional[List[S3BucketKeyData]] = None

    @property
    def _dataset_bucket_key_pairs(self) -> List[S3BucketKeyData]:
        if self._found is None:
            self._found = list(self._objects())
        return self._found

    def __getitem__(self, index: int) -> Any:
        return self._transformed(self._dataset_bucket_key_pairs[index])

    def __len__(self) -> int:
        return len(self._dataset_bucket_key_pairs)


class S3IterableDataset(_Objectwise, torch.utils.data.IterableDataset):
    """The transformed objects in the order of their keys. With ``enable_sharding``, ranks take turns, and within a rank its
    workers do; without, each worker yields all of them."""

    def __init__(
        self,
        region: str,
        get_dataset_objects: _Objects,
        endpoint: Optional[str] = None,
        transform: Callable[[S3Reader], Any] = identity,
        s3client_config: Optional[S3ClientConfig] = None,
        enable_sharding: bool = False,
        reader_constructor: Any = None,
    ) -> None:
        super().__init__(region, get_dataset_objects, endpoint, transform, s3client_config, reader_constructor)
        self._enable_sharding = enable_sharding
        # Workers do not have the process group.
        grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._rank = torch.distributed.get_rank() if grouped else 0
        self._world_size = torch.distributed.get_world_size() if grouped else 1

    def __iter__(self) -> Iterator[Any]:
        objects: Iterable[S3BucketKeyData] = self._objects()
        if self._enable_sharding:
            objects = islice(objects, self._rank, None, self._world_size)
            worker = torch.utils.data.get_worker_info()
            if worker is not None:
                objects = islice(objects, worker.id, None, worker.num_workers)
        return map(self._transformed, objects)
