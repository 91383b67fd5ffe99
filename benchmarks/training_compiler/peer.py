#!/usr/bin/env python3
"""The peer of compare.py: the loop of Hugging Face's run_clm over the same blocks, eager or with torch.compile.

    peer.py MODEL TOKENS.json --batch N --length N --steps N --threads N --lr X --seed N [--compile] [--device cuda] [--bf16]

AdamW without weight decay, gradients clipped to a norm of 1, a learning rate that falls to 0: Trainer's defaults. Prints a
JSON object a step: step, loss, seconds. With --bf16, passes run under autocast, as with Trainer's `bf16: true`.
"""
import argparse
import json
import pathlib
import time

import torch
import transformers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokens")
    for name in ("--batch", "--length", "--steps", "--threads", "--seed"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    tokens = json.loads(pathlib.Path(o.tokens).read_text())
    model = transformers.GPT2LMHeadModel.from_pretrained(o.model, dtype=torch.float32).to(o.device).train()
    step_model = torch.compile(model) if o.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, o.steps)
    for step in range(o.steps):
        begin = time.perf_counter()
        first = step * o.batch
        rows = torch.tensor([tokens[i * o.length:i * o.length + o.length + 1] for i in range(first, first + o.batch)])
        rows = rows.to(o.device)
        with torch.autocast(o.device, torch.bfloat16, enabled=o.bf16):
            logits = step_model(rows[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        print(json.dumps({"step": step + 1, "loss": loss.item(), "seconds": time.perf_counter() - begin}), flush=True)


main()
