"""For transformers' Trainer."""

from __future__ import annotations

import json
import os
from typing import Any

from transformers import TrainerCallback

from .dataset import Dataset

_NAME = "millrace_data.json"


class StateCallback(TrainerCallback):
    """Keeps the data's position in the Trainer's checkpoints, so that resuming costs nothing.

    A Trainer that resumes asks for all batches it had before and drops them. Told where it stands, the data hand it empty
    ones, and then exactly those it would have had::

        trainer = Trainer(model, args, train_dataset=data, callbacks=[millrace.StateCallback(data)])
        trainer.train(resume_from_checkpoint=millrace.StateCallback.restore(data, "out/checkpoint-500"))
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._batches = 0  # trained on since the epoch's iteration began; the DataLoader has taken more

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
        position = self._dataset.state_at(self._batches * args.train_batch_size * args.world_size)
        partial = os.path.join(folder, _NAME + ".partial")
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(position, file)
        os.replace(partial, os.path.join(folder, _NAME))

    @staticmethod
    def restore(dataset: Dataset, checkpoint: str) -> str:
        """Tells the data how far the checkpoint is. Returns the checkpoint, for ``resume_from_checkpoint``."""
        with open(os.path.join(checkpoint, _NAME), encoding="utf-8") as file:
            dataset.skip_to(json.load(file))
        return checkpoint
