#!/usr/bin/env python3
"""Compares DPO runs of `millrace train` with trl's DPOTrainer, step by step: losses, rewards and final adapters.

    dpo_trl.py --millrace build/release/bin/millrace

Both sides begin with the same model and adapter, and read the same texts in the same order, without dropout. Some
answers are longer than a row and are cut.

Runs in $MILLRACE_PEERS/venv where that is, with trl from $MILLRACE_PEERS/trainers. Exit status: 0 all the same, 77 a
library is missing (named), 1 otherwise.
"""
import argparse
import json
import os
import pathlib
import random
import sys
import tempfile

sys.path.append(str(pathlib.Path(os.environ.get("MILLRACE_PEERS", "/nonexistent")) / "trainers"))

from checkpoint_formats import Program, need, torch  # noqa: E402
from lora_peft import adapter_of  # noqa: E402
from parallel_torch import TOKENIZER, make_model, run_job  # noqa: E402

STEPS, PAIRS, ACCUMULATION, LENGTH = 12, 8, 2, 24  # of a step: pairs and micro-batches; the most tokens of an answer
LR, BETAS, EPS = 5e-3, (0.9, 0.95), 1e-6
REWARDS = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen",
           "logps/rejected"]
# Relative. Both compute in float32 and add in different orders.
LOSS_TOLERANCE, ADAPTER_TOLERANCE = 2e-5, 1e-3
CASES = [("llama", "sigmoid", 0.5, ["", "tensor: 2"]), ("gpt2", "ipo", 0.2, ["data: 2, shard: 2, zero: 2"])]


def make_pairs():
    draw, words = random.Random(1), ["mill", "wheel", "stone", "grain", "flour", "bread"]
    text = lambda least, most: "".join(f" {word}" for word in draw.choices(words, k=draw.randint(least, most)))
    return [{"prompt": "the" + text(1, 3), "chosen": " turns water" + text(0, 4), "rejected": text(1, 12)}
            for _ in range(STEPS * PAIRS)]


def pieces():
    """Returns transformers' form of TOKENIZER, with the ids of sentencepiece."""
    import sentencepiece
    import transformers

    class Pieces(transformers.PreTrainedTokenizer):
        def __init__(self):
            self.model = sentencepiece.SentencePieceProcessor(model_file=str(TOKENIZER))
            super().__init__(bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>")

        vocab_size = property(lambda self: self.model.vocab_size())
        get_vocab = lambda self: {self.model.id_to_piece(i): i for i in range(self.model.vocab_size())}
        _tokenize = lambda self, text: self.model.encode(text, out_type=str)
        _convert_token_to_id = lambda self, token: self.model.piece_to_id(token)
        _convert_id_to_token = lambda self, number: self.model.id_to_piece(number)
        build_inputs_with_special_tokens = lambda self, ids, more=None: [self.model.bos_id()] + ids + (more or [])

    return Pieces()


def train_with_trl(folder, family, loss_type, beta, pairs):
    """Returns the losses and rewards of each step. Leaves the adapters in the folders `start` and `end`."""
    import datasets
    import peft
    import trl

    class InOrder(trl.DPOTrainer):
        steps, losses = [], []

        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, *arguments, **more):
            loss = super().compute_loss(*arguments, **more)
            self.losses.append(loss.item())
            return loss

        def log(self, logs, *_, **__):
            if "loss" not in logs:
                return
            means = {name: sum(values) / len(values) for name, values in self._metrics["train"].items()}
            self.steps.append(dict(means, loss=sum(self.losses) / len(self.losses)))
            self._metrics["train"].clear()
            self.losses.clear()

    torch.manual_seed(7)
    trainer = InOrder(
        model=make_model(family), processing_class=pieces(), train_dataset=datasets.Dataset.from_list(pairs),
        args=trl.DPOConfig(
            output_dir=str(folder / "trl"), per_device_train_batch_size=PAIRS // ACCUMULATION,
            gradient_accumulation_steps=ACCUMULATION, max_steps=STEPS, learning_rate=LR, lr_scheduler_type="constant",
            adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_epsilon=EPS, weight_decay=0.0, max_grad_norm=0.0,
            max_length=LENGTH, beta=beta, loss_type=loss_type, bf16=False, use_cpu=True, logging_steps=1,
            save_strategy="no", report_to=[], gradient_checkpointing=False, disable_tqdm=True),
        peft_config=peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, lora_dropout=0.0,
                                    target_modules="all-linear", fan_in_fan_out=family == "gpt2"))
    trainer.model.save_pretrained(folder / "start")
    trainer.train()
    trainer.model.save_pretrained(folder / "end")
    return trainer.steps


def train_with_millrace(program, folder, name, loss_type, beta, layout):
    job = folder / f"{name}.yaml"
    job.write_text(f"""name: {name}
model: {{from: "{folder}/base"}}
lora: {{adapter: "{folder}/start"}}
data:
  sources: [{{url: "{folder}/pairs.jsonl"}}]
  tokenizer: {TOKENIZER}
  sequence_length: {2 * LENGTH}
  shuffle: {{window: 0}}
  threads: 1
train:
  objective: dpo
  dpo: {{beta: {beta}, loss_type: {loss_type}}}
  steps: {STEPS}
  global_batch: {PAIRS}
  micro_batch: 2
  optimizer: {{lr: {LR:f}, betas: {list(BETAS)}, eps: {EPS:.9f}, weight_decay: 0, clip_norm: 0}}
  schedule: {{name: constant}}
  parallel: {{{layout}}}
  threads: 1
checkpoint: {{url: "{folder}/{name}", every_steps: {STEPS}}}
run: {{processes_per_node: {2 if layout else 1}}}
""")
    steps = run_job(program, job, STEPS)
    program("export", folder / name, folder / f"{name}-peft", "--to", "peft")
    return steps, adapter_of(folder / f"{name}-peft")


def compare(program, folder, family, loss_type, beta, layouts):
    pairs = make_pairs()
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    make_model(family).save_pretrained(folder / "base")
    theirs = train_with_trl(folder, family, loss_type, beta, pairs)
    wanted = adapter_of(folder / "end")
    assert len(theirs) == STEPS, len(theirs)
    assert theirs[-1]["rewards/margins"] > theirs[0]["rewards/margins"] + 0.01, "it learns nothing"
    for number, layout in enumerate(layouts):
        ours, got = train_with_millrace(program, folder, f"run{number}", loss_type, beta, layout)
        assert got.keys() == wanted.keys(), set(got) ^ set(wanted)
        loss = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(ours, theirs))
        rewards = max(abs(a[name] - b[name]) / (1 + abs(b[name])) for a, b in zip(ours, theirs) for name in REWARDS)
        weights = max(((got[name] - value).norm() / value.norm()).item() for name, value in wanted.items())
        print(f"{family}, {loss_type}, {layout or 'one rank'}: loss {ours[0]['loss']:.6f} -> {ours[-1]['loss']:.6f}; "
              f"largest differences: losses {loss:.1e}, rewards {rewards:.1e}, adapters {weights:.1e}", flush=True)
        assert loss <= LOSS_TOLERANCE and rewards <= LOSS_TOLERANCE and weights <= ADAPTER_TOLERANCE


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millrace", required=True)
    arguments = parser.parse_args()
    os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
    need("transformers").utils.logging.disable_progress_bar()
    for library in ("peft", "trl", "sentencepiece", "datasets"):
        need(library)
    torch.set_num_threads(1)
    program = Program(pathlib.Path(arguments.millrace).resolve())
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            compare(program, pathlib.Path(folder), *case)


if __name__ == "__main__":
    main()
