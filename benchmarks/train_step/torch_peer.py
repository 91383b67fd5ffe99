#!/usr/bin/env python3
"""The peer of train_step: the same Llama or GPT-2 in PyTorch, as a careful user writes it. Fused
scaled_dot_product_attention, fused AdamW, torch's own norms. With --document N, a Llama's rows are made of documents of N
tokens, kept apart by a mask and by positions that begin anew, as transformers does on a CPU. With --lora, PEFT's adapters of that rank
on all linear layers are trained, and the model is frozen. Prints one JSON object."""
import argparse
import json
import resource
import time

import torch
import torch.nn.functional as F
from torch import nn


class LlamaBlock(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.kv_heads, self.dim = o.heads, o.kv_heads, o.hidden // o.heads
        self.q = nn.Linear(o.hidden, o.heads * self.dim, bias=False)
        self.k = nn.Linear(o.hidden, o.kv_heads * self.dim, bias=False)
        self.v = nn.Linear(o.hidden, o.kv_heads * self.dim, bias=False)
        self.o = nn.Linear(o.heads * self.dim, o.hidden, bias=False)
        self.gate = nn.Linear(o.hidden, o.intermediate, bias=False)
        self.up = nn.Linear(o.hidden, o.intermediate, bias=False)
        self.down = nn.Linear(o.intermediate, o.hidden, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(o.hidden, eps=1e-5), nn.RMSNorm(o.hidden, eps=1e-5)

    def rope(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    def forward(self, x, cos, sin, mask):
        rows, length, _ = x.shape
        n = self.norm1(x)
        q = self.q(n).view(rows, length, self.heads, self.dim).transpose(1, 2)
        k = self.k(n).view(rows, length, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v(n).view(rows, length, self.kv_heads, self.dim).transpose(1, 2)
        q, k = self.rope(q, cos, sin), self.rope(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(a.transpose(1, 2).reshape(rows, length, -1))
        n = self.norm2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Llama(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embed = nn.Embedding(o.vocab, o.hidden)
        self.blocks = nn.ModuleList(LlamaBlock(o) for _ in range(o.layers))
        self.norm = nn.RMSNorm(o.hidden, eps=1e-5)
        self.head = nn.Linear(o.hidden, o.vocab, bias=False)
        dim = o.hidden // o.heads
        t = torch.arange(o.length)
        document = t // (o.document or o.length)
        self.register_buffer("mask", (document[:, None] == document) & (t[:, None] >= t) if o.document else None)
        angles = torch.outer((t % (o.document or o.length)).float(), 10000.0 ** -(torch.arange(0, dim, 2) / dim))
        dtype = torch.bfloat16 if o.bf16 else torch.float32
        self.register_buffer("cos", torch.cat((angles, angles), 1).cos().to(dtype))
        self.register_buffer("sin", torch.cat((angles, angles), 1).sin().to(dtype))

    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, self.mask)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())


class Gpt2Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads = o.heads
        self.norm1, self.norm2 = nn.LayerNorm(o.hidden), nn.LayerNorm(o.hidden)
        self.qkv, self.o = nn.Linear(o.hidden, 3 * o.hidden), nn.Linear(o.hidden, o.hidden)
        self.up, self.down = nn.Linear(o.hidden, o.intermediate), nn.Linear(o.intermediate, o.hidden)

    def forward(self, x):
        rows, length, hidden = x.shape
        q, k, v = (each.view(rows, length, self.heads, -1).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, dim=2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(rows, length, hidden))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embed, self.positions = nn.Embedding(o.vocab, o.hidden), nn.Embedding(1024, o.hidden)
        self.blocks = nn.ModuleList(Gpt2Block(o) for _ in range(o.layers))
        self.norm = nn.LayerNorm(o.hidden)
        self.register_buffer("where", torch.arange(o.length))

    def forward(self, ids, labels):
        x = self.embed(ids) + self.positions(self.where)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.norm(x), self.embed.weight).flatten(0, 1).float(), labels.flatten())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--family", choices=("llama", "gpt2"), default="llama")
    for name, default in dict(hidden=512, intermediate=1376, layers=8, heads=8, kv_heads=8, vocab=32000, batch=4,
                              length=512, document=0, lora=0, threads=2, steps=5).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    p.add_argument("--bf16", action="store_true")
    p.add_argument("--compile", action="store_true")
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    model = Llama(o) if o.family == "llama" else Gpt2(o)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    if o.bf16:
        model = model.bfloat16()
    if o.lora:
        import peft

        linear = ["q", "k", "v", "o", "gate", "up", "down", "qkv"]
        model = peft.get_peft_model(model, peft.LoraConfig(r=o.lora, lora_alpha=2 * o.lora, target_modules=linear))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    forward = torch.compile(model) if o.compile else model
    ids = torch.randint(0, o.vocab, (o.batch, o.length + 1))
    times = []
    for step in range(2 + o.steps):
        if step == 2:
            processor = time.process_time()
        start = time.perf_counter()
        loss = forward(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        if step >= 2:
            times.append(time.perf_counter() - start)
    processor = (time.process_time() - processor) / o.steps
    times.sort()
    median, tokens = times[len(times) // 2], o.batch * o.length
    print(json.dumps({"program": "torch " + torch.__version__ + (" peft" if o.lora else "") + (" compiled" if o.compile else " eager"),
                      "parameters": sum(p.numel() for p in model.parameters()), "step_s_min": times[0], "step_s": median,
                      "step_s_mean": sum(times) / len(times),
                      "step_s_max": times[-1], "cpu_s": processor, "tokens_per_s": tokens / median,
                      "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, "loss": value}))


main()
