"""Classes with the names and signatures of s3torchconnector, over Millrace's client. One line changes in code that has them:

    from millrace.s3torchconnector import S3Checkpoint, S3IterableDataset, S3MapDataset
    from millrace.s3torchconnector.dcp import S3StorageReader, S3StorageWriter

Data sets and checkpoints are the same objects in the bucket, so either package reads what the other wrote.
"""

from ..errors import Error as S3Exception
from ._client import S3BucketKeyData, S3ClientConfig
from ._streams import S3Reader, S3ReaderConstructor, S3Writer
from .checkpoint import S3Checkpoint
from .datasets import S3IterableDataset, S3MapDataset

__all__ = [
    "S3BucketKeyData",
    "S3Checkpoint",
    "S3ClientConfig",
    "S3Exception",
    "S3IterableDataset",
    "S3MapDataset",
    "S3Reader",
    "S3ReaderConstructor",
    "S3Writer",
]
