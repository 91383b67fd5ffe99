#!/usr/bin/env python3
"""Writes what transformers' LlamaForCausalLM makes of two tiny random models, for llama_vectors_test.

    make_llama_vectors.py OUT        needs torch, transformers and safetensors; run once, the result is committed

Each folder is a Hugging Face model (config.json, model.safetensors) with expected.safetensors beside it: input_ids, labels
(already shifted, -100 ignored), logits, loss (the sum over labels) and grad/<parameter> of that sum.
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


out = pathlib.Path(sys.argv[1])
make(out / "untied", tied=False)
make(out / "tied", tied=True)
