#!/usr/bin/env python3
"""Writes what transformers makes of the models in testdata in bfloat16, with documents that share rows, and with dropout.

    make_variant_vectors.py TESTDATA [NAME...]    needs torch, transformers and safetensors; run once, the result is committed

Reads the folders that make_model_vectors.py and make_llama_vectors.py wrote. Writes beside their files:

bf16.json: how far transformers' bfloat16 is from its float32, for `logits`, `loss` and each gradient. The error of a tensor is the
norm of the difference divided by the norm; a norm below 1 counts as 1. The error of the loss is the norm of the tokens' errors
divided by the loss: in the sum, the errors of tokens cancel by chance. `packed/` stands before those of packed.safetensors.

documents.safetensors: two batches of the same model, packed/* and padded/*. Each has input_ids, labels, logits, cu_seqlens (where
documents begin in the rows put end to end) and token_losses (0 where the label is -100). grad/* is the gradient of the sum of all
losses of both.

dropout.safetensors: input_ids and labels of one row (BERT: row_labels, too), and for each key of the configuration that sets a
dropout, moments over DRAWS draws with that dropout alone: KEY/mean, KEY/variance and KEY/fourth (central) of what the last block
puts out [length, hidden], and KEY/loss: the same three of the row's loss.
"""
import json
import pathlib
import sys

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

DROPOUT = 0.3
DRAWS = 40_000
DOCUMENTS = ["gpt2", "gptj", "mistral", "qwen2", "qwen3", "qwen3_window", "olmo2", "smollm3", "gemma2", "gemma3"]
GPT_KEYS = ["embd_pdrop", "attn_pdrop", "resid_pdrop"]
DROPOUT_KEYS = {"gpt2": GPT_KEYS, "gptj": GPT_KEYS,
                "llama3": ["attention_dropout"], "phi3": ["attention_dropout", "resid_pdrop"],
                "bert": ["hidden_dropout_prob", "attention_probs_dropout_prob"],
                "bert_classes": ["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"]}
ROW_LOSS_WEIGHT = 2.5  # as in make_model_vectors.py


def load(folder: pathlib.Path, dtype=torch.float32, **changes) -> torch.nn.Module:
    """The model of a folder with eager attention, which is a plain formula."""
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    return getattr(hf, architecture).from_pretrained(folder, dtype=dtype, attn_implementation="eager", **changes).eval()


def cross_entropies(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    flat = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), labels.flatten(), reduction="none")
    return flat.reshape(labels.shape)


def losses_of(model: torch.nn.Module, batch: dict) -> torch.Tensor:
    """The losses of the tokens and rows of a batch as ModelVectors gives it to our model."""
    if isinstance(model, hf.GPT2ForSequenceClassification):
        return ROW_LOSS_WEIGHT * cross_entropies(model(batch["input_ids"]).logits, batch["row_labels"])
    if model.config.model_type != "bert":
        return cross_entropies(model(batch["input_ids"]).logits, batch["labels"]).flatten()
    mask = torch.ones_like(batch["input_ids"])
    mask.view(-1)[batch["documents"][-2]:] = 0  # the last document is padding
    out = model(batch["input_ids"], attention_mask=mask, token_type_ids=batch["token_type_ids"])
    return bert_losses(model, out, batch["labels"], batch["row_labels"]).flatten()


def bert_losses(model, out, labels, row_labels) -> torch.Tensor:
    """[rows, length + 1]: those of the tokens, then the row's."""
    nothing = torch.zeros(labels.shape[0], 1)
    if isinstance(model, hf.BertForMaskedLM):
        return torch.cat([cross_entropies(out.logits, labels), nothing], 1)
    if isinstance(model, hf.BertForSequenceClassification):
        return torch.cat([torch.zeros(labels.shape), ROW_LOSS_WEIGHT * cross_entropies(out.logits, row_labels)[:, None]], 1)
    rows = ROW_LOSS_WEIGHT * cross_entropies(out.seq_relationship_logits, row_labels)[:, None]
    return torch.cat([cross_entropies(out.prediction_logits, labels), rows], 1)


def plain_logits(model: torch.nn.Module, input_ids: torch.Tensor) -> torch.Tensor:
    """Of rows without padding."""
    if not isinstance(model, hf.GPT2ForSequenceClassification):
        out = model(input_ids)
        return out.prediction_logits if isinstance(model, hf.BertForPreTraining) else out.logits
    pad, model.config.pad_token_id = model.config.pad_token_id, None
    logits = torch.cat([model(row[None]).logits for row in input_ids])
    model.config.pad_token_id = pad
    return logits


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want.double()).norm() / max(1.0, want.double().norm().item())).item()


def errors_of(rounded: torch.nn.Module, expected: dict, losses: torch.Tensor, exact_losses: torch.Tensor) -> dict:
    torch.testing.assert_close(exact_losses.sum(), expected["loss"][0], rtol=1e-6, atol=0)
    errors = {"loss": ((losses - exact_losses).norm() / exact_losses.sum()).item()}
    rounded.zero_grad()
    losses.sum().backward()
    for name, parameter in rounded.named_parameters():
        if parameter.grad is not None:
            errors["grad/" + name] = error(parameter.grad, expected["grad/" + name])
    return errors


def write_bf16_errors(folder: pathlib.Path) -> None:
    exact, rounded = load(folder), load(folder, torch.bfloat16)
    expected = load_file(folder / "expected.safetensors")
    errors = {"logits": error(plain_logits(rounded, expected["input_ids"]), expected["logits"])}
    errors |= errors_of(rounded, expected, losses_of(rounded, expected), losses_of(exact, expected))
    if (folder / "packed.safetensors").exists():
        packed = load_file(folder / "packed.safetensors")
        losses = [cross_entropies(logits_of_documents(model, packed["input_ids"], packed["cu_seqlens"]), packed["labels"])
                  for model in (rounded, exact)]
        errors |= {"packed/" + name: value for name, value in errors_of(rounded, packed, *losses).items()}
    (folder / "bf16.json").write_text(json.dumps({name: float(f"{value:.3g}") for name, value in errors.items()}, indent=1) + "\n")
    print(folder.name, "bfloat16: largest error", max(errors.values()))


def logits_of_documents(model: torch.nn.Module, inputs: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """Of documents that share rows. The mask and the positions are explicit: nothing depends on how documents are found."""
    lengths = bounds.diff()
    document = torch.arange(len(lengths)).repeat_interleave(lengths).reshape(inputs.shape)
    positions = torch.cat([torch.arange(length) for length in lengths]).reshape(inputs.shape)
    distance = positions[:, :, None] - positions[:, None, :]
    seen = (document[:, :, None] == document[:, None, :]) & (distance >= 0)
    window = getattr(model.config, "sliding_window", None)
    near = seen if window is None else seen & (distance < window)

    def mask(seen):
        return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(model.dtype).min)[:, None].to(model.dtype)

    if "full_attention" in (getattr(model.config, "layer_types", None) or []):
        masks = {"full_attention": mask(seen), "sliding_attention": mask(near)}
    else:
        masks = mask(near)
    return model(inputs, attention_mask=masks, position_ids=positions).logits


def write_documents(folder: pathlib.Path, seed: int) -> None:
    torch.manual_seed(seed)
    model = load(folder)
    vocab = model.config.vocab_size
    tensors = {}

    # Two rows of 16 tokens; among their documents are some of one token, at a row's ends and within.
    bounds = torch.tensor([0, 1, 6, 7, 16, 24, 28, 31, 32], dtype=torch.int32)
    inputs, labels = torch.randint(3, vocab, (2, 16)), torch.randint(3, vocab, (2, 16))
    labels[0, 9:12] = -100
    logits = logits_of_documents(model, inputs, bounds)
    packed = cross_entropies(logits, labels)
    tensors |= {"packed/input_ids": inputs, "packed/labels": labels, "packed/logits": logits,
                "packed/cu_seqlens": bounds, "packed/token_losses": packed}

    # Three rows of 8 places: the first has 8 tokens, the second 5, the third 1. Padding is token 0.
    kept = torch.arange(8)[None] < torch.tensor([[8], [5], [1]])
    inputs, labels = torch.randint(3, vocab, (3, 8)), torch.randint(3, vocab, (3, 8))
    inputs[~kept], labels[~kept] = 0, -100
    logits = model(inputs, attention_mask=kept.long()).logits
    padded = cross_entropies(logits, labels)
    tensors |= {"padded/input_ids": inputs, "padded/labels": labels, "padded/logits": logits * kept[:, :, None],
                "padded/cu_seqlens": torch.tensor([0, 8, 13, 16, 17, 24], dtype=torch.int32), "padded/token_losses": padded}

    (packed.sum() + padded.sum()).backward()
    tensors |= {"grad/" + name: parameter.grad for name, parameter in model.named_parameters()}
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, folder / "documents.safetensors")
    print(folder.name, "packed loss", packed.sum().item(), "padded loss", padded.sum().item())


def draw(model: torch.nn.Module, batch: dict, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the last block puts out [rows, length, hidden] and the loss of each row."""
    inputs, labels = batch["input_ids"].expand(rows, -1), batch["labels"].expand(rows, -1)
    seen = []
    if model.config.model_type == "bert":
        hook = model.bert.encoder.register_forward_hook(lambda _, inputs, out: seen.append(out.last_hidden_state))
        losses = bert_losses(model, model(inputs), labels, batch["row_labels"].expand(rows))
    else:
        norm = model.model.norm if hasattr(model, "model") else model.transformer.ln_f
        hook = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        losses = cross_entropies(model(inputs).logits, labels)
    hook.remove()
    return seen[0].double(), losses.sum(1).double()


def moments(draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean = draws.mean(0)
    return mean, (draws - mean).square().mean(0), (draws - mean).pow(4).mean(0)


@torch.no_grad()
def write_dropout(folder: pathlib.Path, seed: int) -> None:
    torch.manual_seed(seed)
    batch = {"input_ids": torch.randint(3, 101, (1, 6)), "labels": torch.randint(3, 101, (1, 6))}
    if folder.name.startswith("bert"):
        batch["row_labels"] = torch.tensor([1])
    tensors = dict(batch)
    for key in DROPOUT_KEYS[folder.name]:
        model = load(folder, **{key: DROPOUT}).train()
        draws = [draw(model, batch, 2000) for _ in range(DRAWS // 2000)]
        hidden, losses = (torch.cat(parts) for parts in zip(*draws))
        for name, value in zip(("mean", "variance", "fourth"), moments(hidden)):
            tensors[f"{key}/{name}"] = value.float()
        tensors[f"{key}/loss"] = torch.stack(moments(losses)).float()
        print(folder.name, key, "loss", tensors[f"{key}/loss"].tolist())
    save_file(tensors, folder / "dropout.safetensors")


if __name__ == "__main__":
    testdata, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
    for folder in sorted(path for path in testdata.iterdir() if path.is_dir()):
        if not names or folder.name in names:
            write_bf16_errors(folder)
    for number, name in enumerate(DOCUMENTS):
        if not names or name in names:
            write_documents(testdata / name, 80 + number)
    for number, name in enumerate(DROPOUT_KEYS):
        if not names or name in names:
            write_dropout(testdata / name, 90 + number)
