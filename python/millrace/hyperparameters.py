"""Hyperparameters of an Estimator become keys of a job file.

A name with a dot, or a section of the job file with a dict, is a key of the job file as it is. Other names are those of
transformers' TrainingArguments and of NVIDIA's BERT scripts.
"""

from __future__ import annotations

import difflib
import json
import os
from typing import Any, Callable, Dict, List, Optional

from .job import TYPES, WORDS

SECTIONS = tuple(dict.fromkeys(path.partition(".")[0] for path in TYPES if "." in path))


def _integer(value: Any) -> int:
    return int(value)


def _truth(value: Any) -> bool:
    if isinstance(value, str):
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if value.lower() not in words:
            raise ValueError(value)
        return words[value.lower()]
    return bool(value)


#: Names whose effect a job has anyway, or that only steer the script they come from.
IGNORED = {
    "allreduce_post_accumulation",
    "bert_model",
    "dataloader_drop_last",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "ddp_find_unused_parameters",
    "disable_tqdm",
    "do_eval",
    "input_dir",
    "logging_first_step",
    "logging_strategy",
    "output_dir",
    "overwrite_output_dir",
    "per_device_eval_batch_size",
    "remove_unused_columns",
    "report_to",
    "smp",
    "use_sequential",
}

#: How a value becomes one of a key's type, by the type's name in JSON Schema.
_CONVERT: Dict[str, Callable[[Any], Any]] = {"integer": _integer, "number": float, "string": str, "boolean": _truth}


def _as_it_is(value: Any) -> Any:
    return value


def _own_names() -> Dict[str, str]:
    """Names of keys that no other section has: hyperparameters without their section. And ``seed``, of training."""
    names = [path.rpartition(".")[2] for path in TYPES]
    own = {path.rpartition(".")[2]: path for path in TYPES if names.count(path.rpartition(".")[2]) == 1}
    return {**own, "seed": "train.seed"}


#: Names that are one key of the job file: the key, and what makes its value.
DIRECT: Dict[str, "tuple[str, Callable[[Any], Any]]"] = {
    name: (key, _CONVERT.get(TYPES[key], _as_it_is))
    for name, key in {**_own_names(), **WORDS}.items()
    if name not in IGNORED and name not in SECTIONS
}

#: Names that must have one value, because a job does just that.
FIXED = {"apply_optimizer": True, "do_train": True}

SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine": "cosine",
    "inverse_sqrt": "inverse_sqrt",
    "linear": "linear",
    "polynomial": "polynomial",
    "warmup_stable_decay": "wsd",
}
OPTIMIZERS = {
    "adamw": "adamw",
    "adamw_hf": "adamw",
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "lamb": "lamb",
    "sgd": "sgd",
}

#: Handled by Keys below, one by one.
_OTHERS = (
    "adam_beta1",
    "adam_beta2",
    "allreduce_post_accumulation_fp16",
    "bf16",
    "config_file",
    "eval_strategy",
    "evaluation_strategy",
    "fp16",
    "gradient_accumulation_steps",
    "lr_scheduler_type",
    "optim",
    "per_device_train_batch_size",
    "save_strategy",
    "skip_checkpoint",
    "train_batch_size",
)

#: Of a checkpoint.every_steps that no run reaches. A run always saves its last step.
NEVER = 1 << 40

#: Names in the configuration of a model at Hugging Face or NVIDIA that a job file has otherwise, and those it has not.
_CONFIG_NAMES = {word: key.rpartition(".")[2] for word, key in WORDS.items() if key.startswith("model.config.")}
_CONFIG_IGNORED = (
    "architectures",
    "model_type",
    "output_all_encoded_layers",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)


def flatten(prefix: str, value: Any) -> Dict[str, Any]:
    """Returns the leaves of a nested dict by their paths."""
    if not isinstance(value, dict):
        return {prefix: value}
    leaves: Dict[str, Any] = {}
    for name, inner in value.items():
        leaves.update(flatten(f"{prefix}.{name}", inner))
    return leaves


class Keys:
    """What hyperparameters say: ``keys`` of the job file, and the sizes of batches, which need the number of ranks."""

    def __init__(self, hyperparameters: Dict[str, Any], source_dir: Optional[str] = None) -> None:
        self.keys: Dict[str, Any] = {}
        self.per_process: Optional[int] = None  # sequences of a data-parallel rank in one pass, or in a step: see below
        self.accumulation: Optional[int] = None
        self.is_whole_step = False  # NVIDIA's train_batch_size is divided by the accumulation, not multiplied
        self._source_dir = source_dir
        betas: List[Optional[float]] = [None, None]
        for name, value in hyperparameters.items():
            try:
                self._take(name, value, betas)
            except (TypeError, ValueError) as error:
                if str(error).startswith("hyperparameter "):
                    raise
                raise ValueError(f"hyperparameter {name}: {value!r} is not a value of it") from None
        if betas != [None, None]:
            # The defaults of transformers.
            self.keys["train.optimizer.betas"] = [
                betas[0] if betas[0] is not None else 0.9,
                betas[1] if betas[1] is not None else 0.999,
            ]

    def batch(self, data_parallel: int, has_microbatches: bool) -> Dict[str, int]:
        """Returns the keys of batch sizes for a number of data-parallel ranks. With ``train.parallel.microbatches``, the
        batch of a rank is divided into these, as SageMaker's library does it."""
        if self.per_process is None:
            if self.accumulation is not None:
                raise ValueError("hyperparameter gradient_accumulation_steps: give per_device_train_batch_size, too")
            return {}
        accumulation = self.accumulation or 1
        if self.is_whole_step and self.per_process % accumulation != 0:
            raise ValueError(
                f"hyperparameter train_batch_size: {self.per_process} is not a multiple of {accumulation} accumulations"
            )
        micro = self.per_process // accumulation if self.is_whole_step else self.per_process
        keys = {"train.global_batch": micro * accumulation * data_parallel}
        if not has_microbatches:
            keys["train.micro_batch"] = micro
        return keys

    def _take(self, name: str, value: Any, betas: List[Optional[float]]) -> None:
        if "." in name or name in SECTIONS:
            self.keys.update(flatten(name, value))
        elif name in DIRECT:
            key, convert = DIRECT[name]
            if name in ("max_steps", "data_seed") and (value is None or int(value) < 0):
                return  # the defaults of transformers: not given
            self.keys[key] = convert(value)
        elif name in FIXED:
            if _truth(value) is not FIXED[name]:
                raise ValueError(f"hyperparameter {name}: must be {FIXED[name]}; a job trains")
        elif name in _OTHERS:
            self._take_other(name, value, betas)
        elif name not in IGNORED:
            known = [*DIRECT, *IGNORED, *FIXED, *_OTHERS, *SECTIONS]
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "write a key of the job file, such as train.optimizer.lr"
            raise ValueError(f"hyperparameter {name}: unknown; {hint}")

    def _take_other(self, name: str, value: Any, betas: List[Optional[float]]) -> None:
        if name in ("per_device_train_batch_size", "train_batch_size"):
            self.per_process, self.is_whole_step = int(value), name == "train_batch_size"
        elif name == "gradient_accumulation_steps":
            self.accumulation = int(value)
        elif name in ("adam_beta1", "adam_beta2"):
            betas[int(name[-1]) - 1] = float(value)
        elif name in ("fp16", "bf16"):
            if _truth(value):
                self.keys["train.precision"] = "bf16"
        elif name == "allreduce_post_accumulation_fp16":
            if _truth(value):
                self.keys["train.parallel.reduce"] = "bf16"
        elif name == "skip_checkpoint":
            if _truth(value):
                self.keys["checkpoint.every_steps"] = NEVER
        elif name == "config_file":
            self._take_config(str(value))
        elif name in ("save_strategy", "evaluation_strategy", "eval_strategy"):
            self._take_strategy(name, str(value))
        else:
            words, key = (
                (SCHEDULES, "train.schedule.name")
                if name == "lr_scheduler_type"
                else (OPTIMIZERS, "train.optimizer.name")
            )
            if value not in words:
                raise ValueError(f"hyperparameter {name}: {value!r} is not one of {', '.join(words)}")
            self.keys[key] = words[value]

    def _take_strategy(self, name: str, value: str) -> None:
        if value == "no":
            key, never = ("checkpoint.every_steps", NEVER) if name == "save_strategy" else ("eval.every_steps", 0)
            self.keys[key] = never
        elif value != "steps":
            raise ValueError(f'hyperparameter {name}: {value!r} is not "no" or "steps"; give the steps')

    def _take_config(self, name: str) -> None:
        path = os.path.join(self._source_dir or "", name)
        try:
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
        except (OSError, ValueError) as error:
            raise ValueError(f"hyperparameter config_file: cannot read {path}: {error}") from None
        for key, value in config.items():
            if key not in _CONFIG_IGNORED:
                self.keys["model.config." + _CONFIG_NAMES.get(key, key)] = value
