"""Callbacks for transformers' Trainer."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from typing import Any, Dict, Optional

import numpy as np
import torch
from transformers import TrainerCallback

from . import checkpoint as checkpoints
from .dataset import Dataset
from .session import Options

_NAME = "millrace_data.json"


class StateCallback(TrainerCallback):
    """Saves the data's position in the Trainer's checkpoints, so that resuming reads no data twice.

    A Trainer that resumes reads all batches before its position and drops them. ``restore`` tells the data set this
    position. The data set then yields empty batches up to the position, and the right ones from there on::

        trainer = Trainer(model, args, train_dataset=data, callbacks=[millrace.StateCallback(data)])
        trainer.train(resume_from_checkpoint=millrace.StateCallback.restore(data, "out/checkpoint-500"))
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._batches = 0  # trained on in this iteration; the DataLoader has read ahead

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._batches = 0

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._batches += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._batches += 1

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        os.makedirs(folder, exist_ok=True)
        _write_position(folder, self.position(args))

    def position(self, args: Any) -> Dict[str, Any]:
        """Returns the data's state after the last step."""
        return self._dataset.state_at(self._batches * args.train_batch_size * args.world_size)

    @staticmethod
    def restore(dataset: Dataset, checkpoint: str) -> str:
        """Sets the data to the checkpoint's position. Returns ``checkpoint``, for ``resume_from_checkpoint``."""
        with open(os.path.join(checkpoint, _NAME), encoding="utf-8") as file:
            dataset.skip_to(json.load(file))
        return checkpoint


class CheckpointCallback(TrainerCallback):
    """Saves a Trainer's run to the bucket every ``every_steps`` steps, while training goes on. Writes no local files.

    With ``save_strategy="no"`` it replaces the Trainer's own checkpoints::

        saving = millrace.CheckpointCallback("s3://runs/tiny", every_steps=500, data=data)
        trainer = Trainer(model, args, train_dataset=data, callbacks=[saving])
        trainer.train(resume_from_checkpoint=millrace.CheckpointCallback.restore("s3://runs/tiny", "out", data=data))

    ``data``: a millrace.Dataset whose position is saved, too, as by StateCallback. Options: those of checkpoint.Saver.
    For runs whose ranks hold the whole model (one process, DDP).
    """

    def __init__(self, url: str, every_steps: int, *, data: Optional[Dataset] = None, **options: Any) -> None:
        self._url, self._every, self._options = url, every_steps, options
        self._saver: Optional[checkpoints.Saver] = None
        self._data = StateCallback(data) if data is not None else None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._data:
            self._data.on_epoch_begin(args, state, control)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._data:
            self._data.on_substep_end(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._data:
            self._data.on_step_end(args, state, control)
        if state.global_step % self._every == 0 or state.global_step == state.max_steps:
            self._save(args, state, **kwargs)

    def _save(self, args: Any, state: Any, model: Any, optimizer: Any, lr_scheduler: Any, **_: Any) -> None:
        if self._saver is None:  # made here, because torch.distributed is started by now
            self._saver = checkpoints.Saver(self._url, **self._options)
        ours = f"rank{args.process_index}"
        self._saver.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": lr_scheduler.state_dict(),
                "trainer": json.dumps(dataclasses.asdict(state)),
                "data": self._data.position(args) if self._data else None,
                "rng": {ours: _random_states()},
                "world_size": args.world_size,
            },
            state.global_step,
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._saver:
            self._saver.wait()

    @staticmethod
    def restore(
        url: str,
        folder: str,
        *,
        step: Optional[int] = None,
        data: Optional[Dataset] = None,
        connection: Optional[Options] = None,
    ) -> Optional[str]:
        """Writes the newest checkpoint, or that of ``step``, to ``folder/checkpoint-STEP`` in the Trainer's format.

        Sets the data to its position. Returns the folder, for ``resume_from_checkpoint``. None if there is no
        checkpoint yet.
        """
        if not checkpoints.ls(url, connection=connection):
            return None
        saved = checkpoints.load(url, step=step, connection=connection)
        trainer = json.loads(saved["trainer"])
        target = os.path.join(folder, f"checkpoint-{trainer['global_step']}")
        ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not ranks or torch.distributed.get_rank() == 0:
            _write_folder(target, saved, trainer)
        if ranks:
            torch.distributed.barrier()
        return StateCallback.restore(data, target) if data is not None and saved["data"] else target


def _write_position(folder: str, position: Dict[str, Any]) -> None:
    partial = os.path.join(folder, _NAME + ".partial")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(position, file)
    os.replace(partial, os.path.join(folder, _NAME))


def _random_states() -> Dict[str, Any]:
    """Returns the random states in the form of the Trainer's rng_state.pth."""
    kind, keys, position, has_gauss, cached = np.random.get_state()
    states: Dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, np.asarray(keys), position, has_gauss, cached),
        "cpu": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _write_folder(folder: str, saved: Dict[str, Any], trainer: Dict[str, Any]) -> None:
    from safetensors.torch import save_file

    os.makedirs(folder, exist_ok=True)
    save_file(saved["model"], os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    torch.save(saved["optimizer"], os.path.join(folder, "optimizer.pt"))
    torch.save(saved["scheduler"], os.path.join(folder, "scheduler.pt"))
    for name, states in saved["rng"].items():
        kind, keys, *rest = states["numpy"]
        keys = keys.numpy() if isinstance(keys, torch.Tensor) else keys
        file = "rng_state.pth" if saved["world_size"] == 1 else f"rng_state_{name[len('rank'):]}.pth"
        torch.save({**states, "numpy": (kind, keys, *rest)}, os.path.join(folder, file))
    if saved["data"]:
        _write_position(folder, saved["data"])
    with open(os.path.join(folder, "trainer_state.json"), "w", encoding="utf-8") as file:
        json.dump(trainer, file, indent=2)
