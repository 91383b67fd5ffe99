"""A small GPT-2 that transformers' Trainer trains, and that knows nothing of Millrace: `torchrun hf_trainer.py DATA CHECKPOINTS`."""
import os
import pathlib
import sys

import torch
from loss import lose
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Rows(torch.utils.data.Dataset):
    def __init__(self, file):
        numbers = torch.tensor([int(float(line) * 100) for line in file.read_text().split()])
        self.rows = numbers.unfold(0, 16, 4)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Loss(TrainerCallback):
    def on_step_end(self, arguments, state, control, **_):
        lose(arguments.process_index, state.global_step)


def main(data, checkpoints):
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=101, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(output_dir=checkpoints, max_steps=30, save_steps=10, logging_steps=1, save_total_limit=2,
                                  per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = Trainer(model, arguments, train_dataset=Rows(data / "numbers.txt"), callbacks=[Loss()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(checkpoints))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else os.environ["MILLRACE_CHECKPOINTS"]))
    # As at the end of ddp.py: Gloo's threads may abort an interpreter that ends.
    sys.stdout.flush()
    os._exit(0)
