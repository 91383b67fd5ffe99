#!/usr/bin/env python3
"""Decoding with GPT-J in PyTorch, greedily, random weights: the peer of Millrace's decoding. Prints one JSON object.

    torch_decode.py --form blocks|eager|generate --batch 1 --prompt 128 --tokens 128

blocks: blocks compiled by torch.compile, a step of all of them replayed as one CUDA graph, over a static cache of keys and values.
eager: the same without torch.compile. generate: transformers' generate() with a static cache, which compiles by itself.
The first reading of the prompt counts in tokens_per_s, but not in decode_tokens_per_s.
"""
import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

import torch_models


class DecodeBlock(nn.Module):
    """A block of GPT-J with its cache [rows, heads, length, head_dim]."""

    def __init__(self, c, rows, length, dtype):
        super().__init__()
        self.block = torch_models.GptjBlock(c)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(rows, c.heads, length, c.head_dim, dtype=dtype), persistent=False)

    def forward(self, x, positions, cos, sin, mask):
        block = self.block
        n = block.norm(x)
        q, k, v = (each.unflatten(2, (-1, block.c.head_dim)) for each in block.qkv(n).chunk(3, dim=2))
        q, k = block.rotate(q, cos, sin).transpose(1, 2), block.rotate(k, cos, sin).transpose(1, 2)
        self.keys.index_copy_(2, positions, k)
        self.values.index_copy_(2, positions, v.transpose(1, 2))
        a = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return x + block.o(a.transpose(1, 2).flatten(2)) + block.down(F.gelu(block.up(n), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self, c, rows, length, dtype):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c.vocab, c.hidden)
        self.blocks = nn.ModuleList(DecodeBlock(c, rows, length, dtype) for _ in range(c.layers))
        self.norm, self.head = torch_models.LayerNorm(c.hidden), torch_models.Linear(c.hidden, c.vocab)
        turn = torch_models.angles(c.rotary, length)[:, None]
        self.register_buffer("cos", turn.cos().to(dtype), persistent=False)
        self.register_buffer("sin", turn.sin().to(dtype), persistent=False)
        self.register_buffer("places", torch.arange(length), persistent=False)

    def predict(self, x):
        return self.head(self.norm(x[:, -1])).argmax(-1, keepdim=True)

    def forward(self, ids, positions):
        """Reads ids [rows, n] at these positions [n]. Returns the most likely next ids [rows, 1]."""
        x, cos, sin = self.embed(ids), self.cos[positions], self.sin[positions]
        mask = self.places[None, :] <= positions[:, None]
        for block in self.blocks:
            x = block(x, positions, cos, sin, mask)
        return self.predict(x)


def graph_of(decoder, rows, device):
    """Captures a step. Returns what replays it, given ids and positions, and its output."""
    ids = torch.zeros(rows, 1, dtype=torch.long, device=device)
    positions = torch.zeros(1, dtype=torch.long, device=device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            decoder(ids, positions)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # A step leaves the next one's inputs where that finds them.
        out = decoder(ids, positions)
        ids.copy_(out)
        positions.add_(1)
    return graph, ids, positions


def decode(decoder, prompt, tokens, graph):
    """Returns the new ids, and the seconds of the prompt and of the rest."""
    device = prompt.device
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    length = prompt.shape[1]
    new = [decoder(prompt, torch.arange(length, device=device))]
    synchronize()
    read = time.perf_counter()
    if graph:
        captured, ids, positions = graph
        ids.copy_(new[0])
        positions.fill_(length)
        for _ in range(tokens - 1):
            captured.replay()
            new.append(ids.clone())
    else:
        for i in range(tokens - 1):
            new.append(decoder(new[-1], torch.tensor([length + i], device=device)))
    synchronize()
    return torch.cat(new, 1), read - start, time.perf_counter() - read


def run_plain(o, c, prompt):
    dtype = torch.bfloat16
    torch.set_default_dtype(dtype)
    with torch.device(o.device):
        decoder = Decoder(c, o.batch, o.prompt + o.tokens, dtype)
    torch.set_default_dtype(torch.float32)
    torch_models.initialize(decoder)
    if o.form == "blocks":
        # As gpt-fast: products with one row become reductions that read the weights at the memory's speed.
        torch._inductor.config.coordinate_descent_tuning = True
        torch._dynamo.config.recompile_limit = 64
        for block in decoder.blocks:
            block.compile(dynamic=False)
        decoder.predict = torch.compile(decoder.predict, dynamic=False)
    graph = graph_of(decoder, o.batch, o.device) if o.device == "cuda" else None
    decode(decoder, prompt, 4, graph)
    runs = []
    for _ in range(o.rounds):
        _, first, rest = decode(decoder, prompt, o.tokens, graph)
        runs.append((first + rest, rest))
    return runs


def run_generate(o, c, prompt):
    import transformers

    config = transformers.GPTJConfig(n_embd=c.hidden, n_layer=c.layers, n_head=c.heads, rotary_dim=c.rotary, vocab_size=c.vocab,
                                     bos_token_id=None, eos_token_id=None)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(o.device):
        model = transformers.GPTJForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    if o.nf4:
        torch_models.quantize_to_nf4((parent for block in model.transformer.h for parent in (block.attn, block.mlp)), o.device)
    synchronize = torch.cuda.synchronize if o.device == "cuda" else lambda: None

    def seconds(tokens):
        synchronize()
        start = time.perf_counter()
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, min_new_tokens=tokens,
                              max_new_tokens=tokens, cache_implementation="static", pad_token_id=0)
        synchronize()
        assert made.shape[1] == o.prompt + tokens
        return time.perf_counter() - start

    seconds(o.tokens)  # compiles
    seconds(2)
    runs = []
    for _ in range(o.rounds):
        whole, first = seconds(o.tokens), seconds(1)
        runs.append((whole, whole - first))
    return runs


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--config", default="gptj-6b", choices=("gptj-6b",))
    p.add_argument("--form", default="blocks", choices=("blocks", "eager", "generate"))
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    for name, value in (("batch", 1), ("prompt", 128), ("tokens", 128), ("rounds", 5), ("layers", 0), ("hidden", 0)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--nf4", action="store_true", help="with generate: bitsandbytes' 4-bit layers")
    o = p.parse_args()
    torch.manual_seed(1)
    c = torch_models.CONFIGS[o.config]
    c.layers = o.layers or c.layers
    if o.hidden:
        c.hidden, c.intermediate = o.hidden, 4 * o.hidden
    prompt = torch.randint(c.vocab, (o.batch, o.prompt), device=o.device)
    with torch.inference_mode():
        runs = sorted((run_generate if o.form == "generate" else run_plain)(o, c, prompt))
    whole, rest = runs[len(runs) // 2]
    of_blocks = c.layers * (4 * c.hidden**2 + 2 * c.hidden * c.intermediate)
    read = of_blocks * (4.127 / 8 if o.nf4 else 2) + 2 * c.hidden * c.vocab  # bytes of a step
    result = {"program": f"torch {torch.__version__.split('+')[0]} {o.form}", "tokens_per_s": o.batch * o.tokens / whole,
              "decode_tokens_per_s": o.batch * (o.tokens - 1) / rest, "decode_step_s": rest / (o.tokens - 1),
              "weights_gb_per_s": read * (o.tokens - 1) / rest / 1e9, "batch": o.batch, "prompt": o.prompt,
              "tokens": o.tokens, "runs": len(runs), "layers": c.layers}
    if o.device == "cuda":
        result |= {"peak_gib": torch.cuda.max_memory_allocated() / 2**30, "card": torch.cuda.get_device_name()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
