#!/usr/bin/env python3
"""The peer of `train_step --lora`: PEFT's adapters on transformers' Llama, random weights. Prints one JSON object.

    torch_lora.py --config llama2-7b --batch 4 --length 2048 --lora 16 [--nf4] [--liger] [--compile default --scope block]

The base is in bfloat16, or with --nf4 in bitsandbytes' NF4 with double quantization. master: float32 adapters and autocast, as trl
trains them. pure: adapters in bfloat16.
"""
import argparse
import contextlib

import torch_step  # before torch: it says how torch's allocator works

import peft
import torch
import torch.nn.functional as F
import transformers

import torch_models

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_base(c, length, device):
    config = transformers.LlamaConfig(
        hidden_size=c.hidden, intermediate_size=c.intermediate, num_hidden_layers=c.layers, num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads, vocab_size=c.vocab, rms_norm_eps=1e-5, max_position_embeddings=length,
        attn_implementation="sdpa", use_cache=False)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.train()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_step.add_arguments(p)
    p.set_defaults(length=2048, batch=4)
    p.add_argument("--lora", type=int, default=16, help="rank")
    p.add_argument("--nf4", action="store_true")
    p.add_argument("--liger", action="store_true")
    o = p.parse_args()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    c = torch_models.CONFIGS[o.config]
    c.layers = o.layers or c.layers
    attention = torch_step.fastest_attention(c, o.batch, o.length, torch.bfloat16) if o.device == "cuda" else {}
    if o.liger:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss, apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama(rope=True, swiglu=True, rms_norm=True, cross_entropy=False, fused_linear_cross_entropy=False)
    base = make_base(c, o.length, o.device)
    if o.nf4:
        torch_models.quantize_to_nf4((parent for layer in base.model.layers for parent in (layer.self_attn, layer.mlp)), o.device)
        base.is_loaded_in_4bit = True  # PEFT looks here
    options = peft.LoraConfig(r=o.lora, lora_alpha=2 * o.lora, target_modules=TARGETS)
    adapted = peft.get_peft_model(base, options, autocast_adapter_dtype=o.numerics == "master")
    if o.recompute:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        base.enable_input_require_grads()
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)

    def head_loss(hidden, labels):
        if o.liger:
            return LigerFusedLinearCrossEntropyLoss()(base.lm_head.weight, hidden.flatten(0, 1), labels.flatten())
        return F.cross_entropy(base.lm_head(hidden).flatten(0, 1).float(), labels.flatten())

    body = base.model
    if o.compile != "off":
        mode = None if o.compile == "default" else o.compile
        head_loss = torch.compile(head_loss, mode=mode)
        if o.scope == "block":
            for layer in base.model.layers:
                layer.compile(mode=mode)
        else:
            body = torch.compile(base.model, mode=mode)
    ids = torch.randint(c.vocab, (o.batch, o.length + 1), device=o.device)
    cast = torch.autocast(o.device, torch.bfloat16) if o.numerics == "master" else contextlib.nullcontext()

    def step():
        total = 0
        for _ in range(o.micro_batches):
            with cast:
                loss = head_loss(body(input_ids=ids[:, :-1]).last_hidden_state, ids[:, 1:]) / o.micro_batches
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    tokens = o.batch * o.micro_batches * o.length
    seconds, first, loss = torch_step.measure(o, step, tokens)
    form = "eager" if o.compile == "off" else f"compile {o.compile}, by {o.scope}"
    adapters = sum(parameter.numel() for parameter in trained)
    form = "Liger " + form if o.liger else form
    torch_step.report(o, f"peft {peft.__version__} {form}, {o.numerics}", sum(x.numel() for x in adapted.parameters()), seconds, first,
                      loss, tokens, c.flops_per_token(o.length, trained=False) + 6 * adapters, config=o.config, layers=c.layers,
                      batch=o.batch, length=o.length, micro_batches=o.micro_batches, lora=o.lora, nf4=o.nf4,
                      recompute=o.recompute, attention_ms=attention)


main()
