"""Train straight from the bucket: data sets, tokenizers and files of any S3-compatible store.

    import millrace

    data = millrace.Dataset("s3://corpus/wiki/*.jsonl", tokenizer="s3://models/tokenizer.model", sequence_length=2048)
    for sample in data:
        ...

``Dataset`` needs torch only for tensors; ``register_s3`` and ``MillraceFileSystem`` need fsspec; ``StateCallback`` needs
transformers. Importing this module imports none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._native import __version__
from .documents import documents
from .errors import Error
from .files import ObjectReader, ObjectWriter, lines, open
from .session import Options
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .callbacks import StateCallback
    from .dataset import Dataset
    from .filesystem import MillraceFileSystem, register_s3

__all__ = [
    "Dataset",
    "Error",
    "MillraceFileSystem",
    "ObjectReader",
    "ObjectWriter",
    "Options",
    "StateCallback",
    "Tokenizer",
    "__version__",
    "documents",
    "lines",
    "open",
    "register_s3",
]

_LATER = {
    "Dataset": "dataset",
    "MillraceFileSystem": "filesystem",
    "register_s3": "filesystem",
    "StateCallback": "callbacks",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'millrace' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
