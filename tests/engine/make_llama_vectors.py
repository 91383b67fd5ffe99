#!/usr/bin/env python3
"""Writes what transformers' LlamaForCausalLM makes of two tiny random models, for llama_vectors_test.

    make_llama_vectors.py OUT        needs torch, transformers and safetensors; run once, the result is committed

Each folder is a Hugging Face model (config.json, model.safetensors) with expected.safetensors beside it: input_ids, labels
(already shifted, -100 ignored), logits, loss (the sum over labels) and grad/<parameter> of that sum. packed.safetensors has the
same of rows that documents share: cu_seqlens says where these begin in the rows put end to end. What transformers is told for them is
an explicit mask and position ids, so that nothing depends on how it finds documents by itself.
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM


def make(folder: pathlib.Path, tied: bool) -> None:
    torch.manual_seed(20 + tied)
    config = LlamaConfig(
        vocab_size=101, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=tied,
        head_dim=8 if tied else 4, attn_implementation="eager", rope_theta=10000.0)
    model = LlamaForCausalLM(config).float().eval()
    with torch.no_grad():  # larger than at initialisation, so that every part of the model matters
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if "norm" in name else 0.0))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)

    input_ids = torch.randint(0, 101, (2, 17))
    labels = torch.randint(0, 101, (2, 17))
    labels[1, :5] = -100
    logits = model(input_ids).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
    loss.backward()
    expected = {"input_ids": input_ids, "labels": labels, "logits": logits.detach().contiguous(),
                "loss": loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        expected["grad/" + name] = parameter.grad.contiguous()
    save_file(expected, folder / "expected.safetensors")
    print(folder, json.dumps({"loss": loss.item(), "bytes": sum(f.stat().st_size for f in folder.iterdir())}))


def make_packed(folder: pathlib.Path) -> None:
    """Two rows of 23 tokens; among their documents are some of one token, at a row's ends and within."""
    torch.manual_seed(31)
    model = LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").float().eval()
    bounds = [0, 1, 9, 10, 23, 36, 41, 45, 46]
    lengths = torch.tensor(bounds).diff()
    document = torch.arange(len(lengths)).repeat_interleave(lengths).reshape(2, 23)
    positions = torch.cat([torch.arange(length) for length in lengths]).reshape(2, 23)
    seen = (document[:, :, None] == document[:, None, :]) & torch.ones(23, 23, dtype=torch.bool).tril()
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]
    input_ids = torch.randint(0, 101, (2, 23))
    labels = torch.randint(0, 101, (2, 23))
    labels[0, 12:17] = -100
    logits = model(input_ids, attention_mask=mask, position_ids=positions).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
    loss.backward()
    expected = {"input_ids": input_ids, "labels": labels, "cu_seqlens": torch.tensor(bounds, dtype=torch.int32),
                "loss": loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        expected["grad/" + name] = parameter.grad.contiguous()
    save_file(expected, folder / "packed.safetensors")
    print(folder, json.dumps({"packed loss": loss.item()}))


out = pathlib.Path(sys.argv[1])
make(out / "untied", tied=False)
make(out / "tied", tied=True)
make_packed(out / "untied")
make_packed(out / "tied")
