"""Fine-tunes a Llama of a mounted bucket with trl and PEFT, and writes the adapter back through the mount.

    python sft.py /mnt/llama2 [--load-in-4bit] [--max-steps 20] [--log steps.jsonl]
          needs torch, transformers, datasets, peft, trl and, with --load-in-4bit, bitsandbytes

Nothing here knows of S3: data, model and results are files below the mount. trl's SFTTrainer is used as it is.
job.yaml has the same settings for `millrace train`.
"""
import argparse
import json
import pathlib
import time

import datasets
import peft
import torch
import transformers
import trl


class StepTimes(transformers.TrainerCallback):
    """Measures how long each step takes."""

    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *_, **__):
        self.began = time.monotonic()

    def on_step_end(self, *_, **__):
        self.seconds.append(time.monotonic() - self.began)


def four_bits() -> transformers.BitsAndBytesConfig:
    return transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                           bnb_4bit_compute_dtype=torch.float32)


def write_log(trainer: trl.SFTTrainer, seconds: list[float], path: pathlib.Path) -> None:
    """Writes an object for each step. `tokens` are those of the step's texts, without padding."""
    seen = 0
    with path.open("w", encoding="utf-8") as file:
        for line, step_s in zip((line for line in trainer.state.log_history if "loss" in line), seconds, strict=True):
            tokens, seen = int(line["num_tokens"]) - seen, int(line["num_tokens"])
            step = {"step": line["step"], "loss": line["loss"], "lr": line["learning_rate"],
                    "grad_norm": line["grad_norm"], "tokens": tokens, "step_s": step_s}
            file.write(json.dumps(step) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mount", type=pathlib.Path)
    parser.add_argument("--model", default="small-llama", help="the model's folder below the mount")
    parser.add_argument("--load-in-4bit", action="store_true")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--max-steps", type=int, default=20)
    parser.add_argument("--log", type=pathlib.Path, help="write the loss and the time of each step to this file")
    arguments = parser.parse_args()

    times, runs = StepTimes(), arguments.mount / "runs"
    trainer = trl.SFTTrainer(
        model=str(arguments.mount / arguments.model),
        train_dataset=datasets.load_dataset(
            "arrow", data_files=str(arguments.mount / "openassistant-guanaco-train.arrow"), split="train"),
        args=trl.SFTConfig(
            output_dir=str(runs / "trl"), model_init_kwargs={"dtype": "float32"}, max_length=512,
            per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=arguments.max_steps,
            learning_rate=arguments.learning_rate, lr_scheduler_type="linear",
            train_sampling_strategy="sequential", gradient_checkpointing=False, bf16=False, use_cpu=True, seed=1,
            logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True),
        quantization_config=four_bits() if arguments.load_in_4bit else None,
        peft_config=peft.LoraConfig(task_type="CAUSAL_LM", r=64, lora_alpha=16, lora_dropout=0.0,
                                    target_modules=["q_proj", "v_proj"]),
        callbacks=[times])
    # trl rounds adapters over 4-bit weights to bfloat16. In float32 they learn as those of Millrace do.
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    trainer.model.save_pretrained(runs / "adapter-start")
    trainer.train()
    trainer.save_model()
    if arguments.log:
        write_log(trainer, times.seconds, arguments.log)


if __name__ == "__main__":
    main()
