#!/usr/bin/env python3
"""BERTs that `millrace train` makes, exported and loaded by transformers: every weight has its place, and the loss is the
one that the run's evaluation reports.

    bert_models.py --millrace build/release/bin/millrace

The models are those of each objective: masked tokens, masked tokens with pairs, and classes, which a GPT-2 learns, too. Each trains some steps with
random weights. Its evaluation reads the samples that transformers' model gets as well, so both losses must agree.

Exit status: 0 all the same, 77 a library is not installed (printed), 1 otherwise.
"""
import argparse
import json
import os
import pathlib
import random
import sys
import tempfile

from bert_data import IGNORED, need, run

LENGTH, WORDS, CLASSES, ROWS, PREDICTED = 16, 60, 3, 24, 3
STEPS = 4
SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48, "hidden_act": "gelu_new"}
GPT2_SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48}


def make_shard(path, draw):
    """Samples with their masks, as NVIDIA's create_pretraining_data.py writes them."""
    import h5py
    ids, mask, segments, positions, hidden, follows = [], [], [], [], [], []
    for _ in range(ROWS):
        tokens = draw.randrange(8, LENGTH + 1)
        row = [2, *(draw.randrange(5, WORDS) for _ in range(tokens - 2)), 3]
        ids.append(row + [0] * (LENGTH - tokens))
        mask.append([1] * tokens + [0] * (LENGTH - tokens))
        segments.append([int(tokens // 2 <= i < tokens) for i in range(LENGTH)])
        positions.append(sorted(draw.sample(range(1, tokens - 1), PREDICTED)))
        hidden.append([draw.randrange(5, WORDS) for _ in range(PREDICTED)])
        follows.append(draw.randrange(2))
    with h5py.File(path, "w") as file:
        for name, values in (("input_ids", ids), ("input_mask", mask), ("segment_ids", segments),
                             ("masked_lm_positions", positions), ("masked_lm_ids", hidden),
                             ("next_sentence_labels", follows)):
            file.create_dataset(name, data=values, dtype="i4")


def make_records(path, draw):
    words = [f"w{i}" for i in range(5, WORDS)]
    lines = [f"{' '.join(draw.choices(words, k=draw.randrange(3, 20)))}\t{draw.randrange(CLASSES)}" for _ in range(ROWS)]
    path.write_text("\n".join(["sentence\tlabel", *lines]))


def loss_of(model, rows):
    """The mean over the predicted tokens, and the mean over the classes of rows, added up."""
    import torch
    inputs, segments, labels = (torch.tensor([row[key] for row in rows]) for key in ("inputs", "segments", "labels"))
    attention = torch.tensor([[int(i < row["length"]) for i in range(LENGTH)] for row in rows])
    name = type(model).__name__
    with torch.no_grad():
        if name == "GPT2ForSequenceClassification":
            model.config.pad_token_id = 0
            out = model(input_ids=inputs, attention_mask=attention)
        else:
            out = model(input_ids=inputs, token_type_ids=segments, attention_mask=attention)
    tokens = {"BertForMaskedLM": "logits", "BertForPreTraining": "prediction_logits"}.get(name)
    classes = {"BertForSequenceClassification": "logits", "GPT2ForSequenceClassification": "logits",
               "BertForPreTraining": "seq_relationship_logits"}.get(name)
    loss = 0.0
    if tokens:
        loss += torch.nn.functional.cross_entropy(out[tokens].flatten(0, 1), labels.flatten(), ignore_index=IGNORED).item()
    if classes:
        loss += torch.nn.functional.cross_entropy(out[classes], torch.tensor([row["row_label"] for row in rows])).item()
    return loss


def compare(millrace, folder, name, objective, source, data, architecture):
    import transformers
    model = {"family": "bert", "config": SIZES}
    if architecture.startswith("GPT2"):
        model = {"family": "gpt2", "config": GPT2_SIZES}
    if objective == "classification":
        model["num_labels"] = CLASSES
    job = folder / f"{name}.yaml"
    job.write_text(json.dumps({
        "name": name, "model": model,
        "data": {"sources": [{"url": str(source)}], "tokenizer": str(folder / "vocab.txt"), "sequence_length": LENGTH,
                 "shuffle": {"window": 0}, **data},
        "train": {"objective": objective, "steps": STEPS, "global_batch": 8, "optimizer": {"lr": 0.01}, "threads": 1},
        "eval": {"every_steps": STEPS, "sources": [{"url": str(source)}], "samples": ROWS},
        "checkpoint": {"url": str(folder / name)}}))
    # Other tests may have jobs of the same name.
    said = run(millrace, "train", job, "--json", env=dict(os.environ, MILLRACE_STATE_DIR=str(folder / "state")))
    reported = [line for line in said if line.get("event") == "eval"][-1]
    run(millrace, "ckpt", "export", folder / name, folder / f"{name}-hf", "--json")
    rows = run(millrace, "data", "cat", job, "--count", ROWS, "--json")
    assert len(rows) == ROWS == reported["samples"], (len(rows), reported)
    model, loading = getattr(transformers, architecture).from_pretrained(folder / f"{name}-hf", output_loading_info=True)
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    assert model.config.architectures == [architecture], model.config.architectures
    loss = loss_of(model.eval(), rows)
    assert abs(loss - reported["loss"]) <= 1e-5 * loss, (name, loss, reported)
    print(f"ok: {architecture}: {loss:.7f}, {reported['loss']:.7f} in training")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millrace", required=True)
    millrace = str(pathlib.Path(parser.parse_args().millrace).resolve())
    need("h5py", "torch", "transformers")
    with tempfile.TemporaryDirectory() as temporary:
        folder, draw = pathlib.Path(temporary), random.Random(3)
        (folder / "vocab.txt").write_text(
            "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, WORDS))]))
        make_shard(folder / "samples.hdf5", draw)
        make_records(folder / "records.tsv", draw)
        for pairs, architecture in ((False, "BertForMaskedLM"), (True, "BertForPreTraining")):
            compare(millrace, folder, f"pairs-{pairs}", "mlm", folder / "samples.hdf5", {"mlm": {"next_sentence": pairs}},
                    architecture)
        compare(millrace, folder, "classes", "classification", folder / "records.tsv", {}, "BertForSequenceClassification")
        compare(millrace, folder, "gpt2-classes", "classification", folder / "records.tsv", {},
                "GPT2ForSequenceClassification")


if __name__ == "__main__":
    sys.exit(main())
