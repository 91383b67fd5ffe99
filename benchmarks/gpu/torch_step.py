#!/usr/bin/env python3
"""The peer of train_step on a GPU: steps of the same models in PyTorch, in PyTorch's best form. Prints one JSON object.

    torch_step.py --config llama2-7b --batch 1 --micro-batches 4 [--compile default] [--numerics master|pure] …

master: float32 parameters, gradients and moments, as Millrace; bfloat16 computes. pure: all of them in bfloat16, which is
cheaper and less exact. A step is the passes of all micro-batches, clipping and fused AdamW. The kernels of attention are
measured first, and the fastest are taken. `--scope block` compiles each block alone, which takes seconds instead of minutes.
"""
import argparse
import json
import os
import sys
import time

# Read when torch's allocator begins: with 7B parameters, little memory may be lost between blocks of unequal sizes.
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_models

# Dense bfloat16 FLOP/s by NVIDIA's data sheets; tensor cores.
PEAKS = {"H100": 989.4e12, "H200": 989.4e12, "H800": 989.4e12, "A100": 312e12, "B200": 2250e12}


def add_arguments(p):
    p.add_argument("--config", choices=torch_models.CONFIGS, required=True)
    p.add_argument("--layers", type=int, default=0, help="fewer, for a first look")
    p.add_argument("--batch", type=int, default=1, help="sequences of a micro-batch")
    p.add_argument("--length", type=int, default=0)
    p.add_argument("--micro-batches", type=int, default=1)
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--numerics", default="master", choices=("master", "pure"))
    p.add_argument("--precision", default="bf16", choices=("bf16", "fp16", "tf32", "f32", "fp8"),
                   help="fp8: bf16 with torchao's float8 linear layers in blocks")
    p.add_argument("--compile", default="off",
                   choices=("off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"))
    p.add_argument("--scope", default="model", choices=("model", "block"), help="what is compiled as one")
    p.add_argument("--recompute", type=int, default=0, help="blocks that keep only their input")
    p.add_argument("--chunks", type=int, default=1, help="parts of the tokens that head and loss take in turn")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--seconds", type=float, default=600, help="measure no longer, once there are 3 steps")


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def peak_flops(device):
    name = torch.cuda.get_device_name() if device == "cuda" else ""
    return next((peak for key, peak in PEAKS.items() if key in name), None)


def fastest_attention(c, batch, length, dtype):
    """Measures attention's forward and backward pass for each backend, and prefers the fastest from then on."""
    shape = (batch, length, c.heads, c.head_dim)
    q, k, v = (torch.randn(shape, dtype=dtype, device="cuda", requires_grad=True).transpose(1, 2) for _ in range(3))
    out_gradient = torch.randn_like(q)
    milliseconds = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        try:
            with sdpa_kernel(backend):
                times = []
                for _ in range(8):
                    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    begin.record()
                    out = F.scaled_dot_product_attention(q, k, v, is_causal=c.family != "bert")
                    torch.autograd.grad(out, (q, k, v), out_gradient)
                    end.record()
                    torch.cuda.synchronize()
                    times.append(begin.elapsed_time(end))
            milliseconds[backend] = sorted(times)[len(times) // 2]
        except RuntimeError as error:
            print(f"{backend.name}: {str(error).splitlines()[0]}", file=sys.stderr)
    if milliseconds:
        best = min(milliseconds, key=milliseconds.get)
        torch.backends.cuda.enable_flash_sdp(best == SDPBackend.FLASH_ATTENTION)
        torch.backends.cuda.enable_cudnn_sdp(best == SDPBackend.CUDNN_ATTENTION)
        torch.backends.cuda.enable_math_sdp(False)
    return {backend.name.split("_")[0].lower(): round(ms, 3) for backend, ms in sorted(milliseconds.items(), key=lambda i: i[1])}


def compile_model(model, o):
    """Returns what computes the loss. The model's parameters stay its own."""
    if o.compile == "off":
        return model
    mode = None if o.compile == "default" else o.compile
    torch._dynamo.config.recompile_limit = 64  # blocks may be compiled one by one; past the limit they would run eagerly
    if o.scope == "model":
        return torch.compile(model, mode=mode)
    for block in model.blocks:
        block.compile(mode=mode)
    model.loss = torch.compile(model.loss, mode=mode)
    return model


def measure(o, step, tokens):
    """Runs the steps. Returns their seconds, sorted, the first step's seconds, and the last loss."""
    first, seconds, began = 0.0, [], None
    if o.device == "cuda":
        torch.cuda.reset_peak_memory_stats()  # the steps count, not how the weights were made
    for i in range(o.warmup + o.steps):
        if i == o.warmup:
            began = time.perf_counter()
            if o.device == "cuda":
                torch.cuda.profiler.start()
        synchronize(o.device)
        start = time.perf_counter()
        loss = step()
        synchronize(o.device)
        took = time.perf_counter() - start
        first = first or took
        if i >= o.warmup:
            seconds.append(took)
            if time.perf_counter() - began > o.seconds and len(seconds) >= 3:
                break
        print(f"step {i}: {took:.4f} s, loss {float(loss):.4f}, {tokens / took:.0f} tokens/s", file=sys.stderr, flush=True)
    if o.device == "cuda":
        torch.cuda.profiler.stop()
    return sorted(seconds), first, float(loss)


def report(o, program, parameters, seconds, first, loss, tokens, flops, **more):
    median = seconds[len(seconds) // 2]
    peak = peak_flops(o.device)
    result = {"program": program, "parameters": parameters, "steps": len(seconds), "step_s_min": seconds[0], "step_s": median,
              "step_s_max": seconds[-1], "tokens_per_s": tokens / median, "model_tflops": flops * tokens / median / 1e12,
              "mfu": flops * tokens / median / peak if peak else None, "first_step_s": first, "loss": loss}
    if o.device == "cuda":
        result |= {"peak_gib": torch.cuda.max_memory_allocated() / 2**30, "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
                   "card": torch.cuda.get_device_name()}
    print(json.dumps(result | {"torch": torch.__version__} | more), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(p)
    o = p.parse_args()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("highest" if o.precision == "f32" else "high")
    c = torch_models.CONFIGS[o.config]
    c.layers = o.layers or c.layers
    length = o.length or c.length
    dtype = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}.get(o.precision, torch.float32)
    attention = fastest_attention(c, o.batch, length, dtype) if o.device == "cuda" and dtype != torch.float32 else {}
    with torch.device(o.device):
        if o.numerics == "pure":
            torch.set_default_dtype(dtype)
        model = torch_models.make_model(c, length, dtype, o.recompute, o.chunks)
        torch.set_default_dtype(torch.float32)
    torch_models.initialize(model)
    if o.precision == "fp8":
        torch_models.use_fp8(model.blocks, o.device)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    scaler = torch.amp.GradScaler(o.device, enabled=o.precision == "fp16")
    forward = compile_model(model, o)
    batches = [torch_models.random_batch(c, o.batch, length, o.device) for _ in range(o.micro_batches)]

    def step():
        total = 0
        for batch in batches:
            loss = forward(*batch) / o.micro_batches
            scaler.scale(loss).backward()
            total = total + loss.detach()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return total

    tokens = o.batch * o.micro_batches * length
    seconds, first, loss = measure(o, step, tokens)
    form = "eager" if o.compile == "off" else f"compile {o.compile}, by {o.scope}"
    report(o, f"torch {torch.__version__.split('+')[0]} {form}, {o.numerics}", sum(p.numel() for p in parameters), seconds, first, loss,
           tokens, c.flops_per_token(length), config=o.config, layers=c.layers, batch=o.batch, length=length,
           micro_batches=o.micro_batches, precision=o.precision, recompute=o.recompute, attention_ms=attention)


if __name__ == "__main__":
    main()
