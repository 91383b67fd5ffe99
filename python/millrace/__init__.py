"""Train straight from the bucket: data sets, tokenizers and files of any S3-compatible store.

    import millrace

    data = millrace.Dataset("s3://corpus/wiki/*.jsonl", tokenizer="s3://models/tokenizer.model", sequence_length=2048)
    for sample in data:
        ...

``millrace.checkpoint`` saves states to the bucket while training goes on. ``millrace.dcp`` does the same for code that
uses torch.distributed.checkpoint.

``Dataset`` needs torch only to return tensors. ``dcp`` needs torch. ``register_s3`` and ``MillraceFileSystem`` need
fsspec. ``StateCallback`` and ``CheckpointCallback`` need transformers. Importing this module imports none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from ._native import __version__
from .documents import Source, documents
from .errors import Error
from .files import ObjectReader, ObjectWriter, lines, open
from .session import Options
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from . import checkpoint, dcp, job
    from .callbacks import CheckpointCallback, StateCallback
    from .dataset import Dataset
    from .endpoint import Endpoint
    from .estimator import Estimator, Model, TrainingCompilerConfig, default_bucket
    from .filesystem import MillraceFileSystem, register_s3
    from .training_input import TrainingInput
    from .training_job import TrainingJob
    from .tuner import CategoricalParameter, ContinuousParameter, IntegerParameter, Tuner

__all__ = [
    "CategoricalParameter",
    "CheckpointCallback",
    "ContinuousParameter",
    "Dataset",
    "Endpoint",
    "Error",
    "Estimator",
    "IntegerParameter",
    "MillraceFileSystem",
    "Model",
    "ObjectReader",
    "ObjectWriter",
    "Options",
    "Source",
    "StateCallback",
    "Tokenizer",
    "TrainingCompilerConfig",
    "TrainingInput",
    "TrainingJob",
    "Tuner",
    "__version__",
    "checkpoint",
    "dcp",
    "default_bucket",
    "documents",
    "job",
    "lines",
    "open",
    "register_s3",
]

# Modules that need other packages, or that few programs use, are imported at the first use of their names.
_LAZY_MODULES = {
    "Dataset": "dataset",
    "MillraceFileSystem": "filesystem",
    "register_s3": "filesystem",
    "CheckpointCallback": "callbacks",
    "StateCallback": "callbacks",
    "Endpoint": "endpoint",
    "Estimator": "estimator",
    "Model": "estimator",
    "TrainingCompilerConfig": "estimator",
    "TrainingInput": "training_input",
    "TrainingJob": "training_job",
    "CategoricalParameter": "tuner",
    "ContinuousParameter": "tuner",
    "IntegerParameter": "tuner",
    "Tuner": "tuner",
    "default_bucket": "estimator",
}


# The packages of the extras, by the name that an import looks for.
_EXTRAS = {"torch": "torch", "fsspec": "fsspec", "transformers": "transformers"}


def __dir__() -> List[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    import importlib

    is_module = name in ("checkpoint", "dcp", "job")
    if not is_module and name not in _LAZY_MODULES:
        raise AttributeError(f"module 'millrace' has no attribute '{name}'")
    try:
        module = importlib.import_module(f".{name if is_module else _LAZY_MODULES[name]}", __name__)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ModuleNotFoundError(
            f"millrace.{name} needs the package {error.name}: pip install 'millrace[{extra}]'", name=error.name
        ) from error
    return module if is_module else getattr(module, name)
