"""The models of the benchmarks in plain PyTorch: Llama, GPT-2, BERT and GPT-J.

Weights are cast to the type of the activations where they are used. So the same model computes in bfloat16 with float32
parameters (`master` numerics) or with bfloat16 parameters (`pure`), without autocast's float32 norms and residual stream.
Each model takes ids and returns the mean loss of the predicted tokens. check_models.py compares them with transformers.
"""
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass
class Config:
    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocab: int
    length: int  # tokens of a sequence, unless --length says otherwise
    kv_heads: int = 0  # 0: as many as heads
    positions: int = 0  # rows of the table of positions
    rotary: int = 0  # dimensions of a head that GPT-J rotates

    def __post_init__(self):
        self.kv_heads = self.kv_heads or self.heads

    @property
    def head_dim(self):
        return self.hidden // self.heads

    def flops_per_token(self, length, trained=True):
        """Floating-point operations of a token's forward and backward pass, as docs/guide/job-file.md counts them: 6 for each
        matrix element it is multiplied with (4 for a frozen one), and 12 · layers · hidden · length for attention. Of BERT's
        head, only the share of the tokens that is predicted counts."""
        kv = self.kv_heads * self.head_dim
        block = 2 * self.hidden * self.hidden + 2 * self.hidden * kv
        block += (3 if self.family == "llama" else 2) * self.hidden * self.intermediate
        head = self.hidden * self.vocab
        if self.family == "bert":
            head = masked(length) / length * (head + self.hidden * self.hidden)
        return (6 if trained else 4) * (self.layers * block + head) + 12 * self.layers * self.hidden * length


CONFIGS = {
    "llama2-7b": Config("llama", 4096, 11008, 32, 32, 32000, 4096),
    "gpt2-124m": Config("gpt2", 768, 3072, 12, 12, 50257, 1024, positions=1024),
    "gpt2-medium": Config("gpt2", 1024, 4096, 24, 16, 50257, 1024, positions=1024),
    "bert-large": Config("bert", 1024, 4096, 24, 16, 30522, 128, positions=512),
    "gptj-6b": Config("gptj", 4096, 16384, 28, 16, 50400, 2048, rotary=64),
}


def masked(length):
    """Predicted tokens of a BERT sequence: 15 %."""
    return max(1, round(0.15 * length))


class Linear(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class LayerNorm(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


def rotate_halves(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def rotate_pairs(x, cos, sin):
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def angles(dim, length):
    return torch.outer(torch.arange(length).float(), 10000.0 ** -(torch.arange(0, dim, 2).float() / dim))


def attend(q, k, v, causal):
    """[rows, length, heads, head_dim] each → [rows, length, hidden]"""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal,
                                         enable_gqa=q.shape[2] != k.shape[2])
    return out.transpose(1, 2).flatten(2)


class LlamaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.sizes = c, [c.hidden, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
        self.norm1, self.norm2 = RmsNorm(c.hidden, 1e-5), RmsNorm(c.hidden, 1e-5)
        self.qkv, self.o = Linear(c.hidden, sum(self.sizes), bias=False), Linear(c.hidden, c.hidden, bias=False)
        self.gate_up = Linear(c.hidden, 2 * c.intermediate, bias=False)
        self.down = Linear(c.intermediate, c.hidden, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (each.unflatten(2, (-1, self.c.head_dim)) for each in self.qkv(self.norm1(x)).split(self.sizes, 2))
        x = x + self.o(attend(rotate_halves(q, cos, sin), rotate_halves(k, cos, sin), v, True))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=2)
        return x + self.down(F.silu(gate) * up)


class Gpt2Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.norm1, self.norm2 = LayerNorm(c.hidden), LayerNorm(c.hidden)
        self.qkv, self.o = Linear(c.hidden, 3 * c.hidden), Linear(c.hidden, c.hidden)
        self.up, self.down = Linear(c.hidden, c.intermediate), Linear(c.intermediate, c.hidden)

    def forward(self, x):
        q, k, v = (each.unflatten(2, (-1, self.c.head_dim)) for each in self.qkv(self.norm1(x)).chunk(3, dim=2))
        x = x + self.o(attend(q, k, v, True))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GptjBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.norm = c, LayerNorm(c.hidden)
        self.qkv, self.o = Linear(c.hidden, 3 * c.hidden, bias=False), Linear(c.hidden, c.hidden, bias=False)
        self.up, self.down = Linear(c.hidden, c.intermediate), Linear(c.intermediate, c.hidden)

    def rotate(self, x, cos, sin):
        turned, rest = x.split((self.c.rotary, self.c.head_dim - self.c.rotary), dim=-1)
        return torch.cat((rotate_pairs(turned, cos, sin), rest), dim=-1)

    def forward(self, x, cos, sin):
        n = self.norm(x)
        q, k, v = (each.unflatten(2, (-1, self.c.head_dim)) for each in self.qkv(n).chunk(3, dim=2))
        a = self.o(attend(self.rotate(q, cos, sin), self.rotate(k, cos, sin), v, True))
        return x + a + self.down(F.gelu(self.up(n), approximate="tanh"))


class BertBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.qkv, self.o = Linear(c.hidden, 3 * c.hidden), Linear(c.hidden, c.hidden)
        self.up, self.down = Linear(c.hidden, c.intermediate), Linear(c.intermediate, c.hidden)
        self.norm1, self.norm2 = LayerNorm(c.hidden, 1e-12), LayerNorm(c.hidden, 1e-12)

    def forward(self, x):
        q, k, v = (each.unflatten(2, (-1, self.c.head_dim)) for each in self.qkv(x).chunk(3, dim=2))
        x = self.norm1(x + self.o(attend(q, k, v, False)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


BLOCKS = {"llama": LlamaBlock, "gpt2": Gpt2Block, "gptj": GptjBlock, "bert": BertBlock}


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.float(), labels)


class LanguageModel(nn.Module):
    """A Llama, GPT-2 or GPT-J. `recompute`: the number of first blocks that keep only their input. `chunks`: the number
    of parts in which the head and the loss take the tokens, computing the logits again in the backward pass."""

    def __init__(self, c, length, dtype, recompute=0, chunks=1):
        super().__init__()
        self.c, self.dtype, self.recompute, self.chunks = c, dtype, recompute, chunks
        # 50257 rows are no multiple of anything: products run faster with some that no token has.
        rows = (c.vocab + 63) // 64 * 64
        self.embed = nn.Embedding(rows, c.hidden)
        self.positions = nn.Embedding(c.positions, c.hidden) if c.family == "gpt2" else None
        self.blocks = nn.ModuleList(BLOCKS[c.family](c) for _ in range(c.layers))
        self.norm = RmsNorm(c.hidden, 1e-5) if c.family == "llama" else LayerNorm(c.hidden)
        self.head = Linear(c.hidden, rows, bias=c.family == "gptj")
        if c.family == "gpt2":
            self.head.weight = self.embed.weight
        turn = angles(c.rotary or c.head_dim, length)[:, None]  # the same for all heads
        self.register_buffer("cos", turn.cos().to(dtype), persistent=False)
        self.register_buffer("sin", turn.sin().to(dtype), persistent=False)

    def loss(self, x, labels):
        return cross_entropy(self.head(self.norm(x))[:, :self.c.vocab], labels)

    def forward(self, ids, labels):
        x = F.embedding(ids, self.embed.weight).to(self.dtype)
        if self.positions is not None:
            x = x + self.positions.weight[:ids.shape[1]].to(self.dtype)
        for i, block in enumerate(self.blocks):
            inputs = (x,) if self.c.family == "gpt2" else (x, self.cos, self.sin)
            x = checkpoint(block, *inputs, use_reentrant=False) if i < self.recompute else block(*inputs)
        x, labels = x.flatten(0, 1), labels.flatten()
        if self.chunks == 1:
            return self.loss(x, labels)
        parts = zip(x.chunk(self.chunks), labels.chunk(self.chunks))
        return sum(checkpoint(self.loss, *part, use_reentrant=False) for part in parts) / self.chunks


class Bert(nn.Module):
    """BERT's pre-training: the masked tokens, whose places `where` names in the flattened batch, and the next sentence."""

    def __init__(self, c, dtype, recompute=0):
        super().__init__()
        self.c, self.dtype, self.recompute = c, dtype, recompute
        rows = (c.vocab + 63) // 64 * 64
        self.embed, self.positions = nn.Embedding(rows, c.hidden), nn.Embedding(c.positions, c.hidden)
        self.segments, self.norm = nn.Embedding(2, c.hidden), LayerNorm(c.hidden, 1e-12)
        self.blocks = nn.ModuleList(BertBlock(c) for _ in range(c.layers))
        self.transform, self.transform_norm = Linear(c.hidden, c.hidden), LayerNorm(c.hidden, 1e-12)
        self.head = Linear(c.hidden, rows)
        self.head.weight = self.embed.weight
        self.pooler, self.next = Linear(c.hidden, c.hidden), Linear(c.hidden, 2)

    def loss(self, x, first, labels, follows):
        logits = self.head(self.transform_norm(F.gelu(self.transform(x))))[:, :self.c.vocab]
        return cross_entropy(logits, labels) + cross_entropy(self.next(torch.tanh(self.pooler(first))), follows)

    def forward(self, ids, segments, where, labels, follows):
        x = F.embedding(ids, self.embed.weight) + self.positions.weight[:ids.shape[1]] + F.embedding(segments, self.segments.weight)
        x = self.norm(x.to(self.dtype))
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if i < self.recompute else block(x)
        return self.loss(x.flatten(0, 1)[where], x[:, 0], labels, follows)


def make_model(c, length, dtype, recompute=0, chunks=1):
    """Returns the model with random float32 weights on the current default device."""
    if c.family == "bert":
        return Bert(c, dtype, recompute)
    return LanguageModel(c, length, dtype, recompute, chunks)


def initialize(model):
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)


def random_batch(c, batch, length, device):
    ids = torch.randint(c.vocab, (batch, length + 1), device=device)
    if c.family != "bert":
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    where = torch.rand(batch, length, device=device).argsort(1)[:, :masked(length)].sort(1).values
    where = (where + length * torch.arange(batch, device=device)[:, None]).flatten()
    segments = (torch.arange(length, device=device) >= length // 2).long().expand(batch, length).contiguous()
    ids = ids[:, :-1].contiguous()
    labels = torch.randint(c.vocab, where.shape, device=device)
    return ids, segments, where, labels, torch.randint(2, (batch,), device=device)


def use_fp8(blocks, device):
    """Puts torchao's float8 linear layers in their place, scaled for each tensor when it is cast, as torchtitan trains. A CPU
    computes with the rounded numbers in their own type."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    convert_to_float8_training(blocks, config=Float8LinearConfig(emulate=device != "cuda"))


def quantize_to_nf4(parents, device):
    """Puts bitsandbytes' NF4 layers in the place of the linear layers of these modules, as load_in_4bit does."""
    import bitsandbytes

    for parent in parents:
        for name, linear in list(parent.named_children()):
            if not isinstance(linear, torch.nn.Linear):
                continue
            new = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features, bias=linear.bias is not None,
                                             quant_type="nf4", compute_dtype=torch.bfloat16, compress_statistics=True,
                                             device="meta")
            new.weight = bitsandbytes.nn.Params4bit(linear.weight.data.cpu(), requires_grad=False, quant_type="nf4",
                                                    compress_statistics=True, module=new)
            new.bias = linear.bias
            setattr(parent, name, new.to(device))
