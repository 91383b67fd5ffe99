"""The ``distribution`` of an Estimator, as SageMaker writes it."""

from __future__ import annotations

import re
import shlex
from typing import Any, Dict, Optional

from .errors import InvalidArgumentError, UnsupportedError
from .job import WORDS

#: Words of SageMaker's model-parallel library that a job file has otherwise. It takes the others as they are.
_PARALLEL_WORDS = {word: key.rpartition(".")[2] for word, key in WORDS.items() if key.startswith("train.parallel.")}
_PARALLEL_NOTHING = ("auto_partition", "default_partition", "horovod", "prescaled_batch")


class Distribution:
    """What `distribution` says: whether there are processes for all GPUs, how many, the layout, and the environment."""

    def __init__(self, distribution: Dict[str, Any]) -> None:
        self.enabled = False
        self.processes: Optional[int] = None
        self.parallel: Dict[str, Any] = {}
        self.environment: Dict[str, str] = {}
        for name, options in distribution.items():
            if name in ("pytorchddp", "torch_distributed", "pytorchxla"):
                self._switch(name, options)
            elif name == "smdistributed":
                for kind, inner in options.items():
                    if kind not in ("dataparallel", "modelparallel"):
                        raise UnsupportedError(
                            f"distribution: smdistributed.{kind} is unknown; it may be dataparallel or modelparallel"
                        )
                    if self._switch(f"smdistributed.{kind}", inner) and kind == "modelparallel":
                        self._take_parallel(inner.get("parameters") or {})
            elif name == "mpi":
                if self._switch(name, options):
                    self.processes = options.get("processes_per_host")
                    self._take_mpi(options.get("custom_mpi_options") or "")
            else:
                raise UnsupportedError(
                    f"distribution: {name} is unknown; it may be pytorchddp, torch_distributed, pytorchxla, smdistributed or mpi"
                )

    def _switch(self, name: str, options: Any) -> bool:
        known = {"enabled", "parameters", "processes_per_host", "custom_mpi_options"}
        unknown = set(options) - known
        if unknown:
            raise UnsupportedError(f"distribution: {name} does not have {', '.join(sorted(unknown))}")
        on = bool(options.get("enabled"))
        self.enabled = self.enabled or on
        return on

    def _take_parallel(self, parameters: Dict[str, Any]) -> None:
        for word, value in parameters.items():
            if word == "sharded_data_parallel_degree":
                if value > 1:
                    self.parallel.update({"zero": 3, "shard": value})
            elif word == "shard_optimizer_state":
                if value:
                    self.parallel.setdefault("zero", 1)
            elif word == "offload_activations":
                if value:
                    self.parallel.update({"offload_activations": True, "recompute": "full"})
            elif word not in _PARALLEL_NOTHING:
                self.parallel[_PARALLEL_WORDS.get(word, word)] = value

    def _take_mpi(self, text: str) -> None:
        """Takes -x NAME=VALUE. Options of MPI itself change nothing, because ranks do not speak MPI."""
        words = iter(shlex.split(text))
        for word in words:
            if word == "-x":
                name, equals, value = next(words, "").partition("=")
                if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
                    raise InvalidArgumentError("custom_mpi_options: -x needs NAME or NAME=VALUE")
                if equals:
                    self.environment[name] = value
            elif word in ("--mca", "-mca"):
                if next(words, None) is None or next(words, None) is None:
                    raise InvalidArgumentError(f"custom_mpi_options: {word} needs a name and a value")
            elif word not in ("-verbose", "--verbose", "-v", "--tag-output", "-tag-output", "--allow-run-as-root"):
                raise UnsupportedError(
                    f"custom_mpi_options: {word} is not supported; it may be -x NAME=VALUE, --mca NAME VALUE, --verbose or --tag-output"
                )
