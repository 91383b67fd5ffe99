#!/usr/bin/env python3
"""Measures two ceilings of the GPU: a large product in bfloat16, and a large copy (bytes read and written). Prints JSON."""
import argparse
import json

import torch


def median_ms(work, times):
    for _ in range(3):
        work()
    taken = []
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end))
    return sorted(taken)[times // 2]


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    product = median_ms(lambda: torch.mm(a, b, out=out), 20)
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    copy = median_ms(lambda: target.copy_(source), 20)
    print(json.dumps({"program": "ceilings", "product_tflops": 2 * 8192**3 / product / 1e9,
                      "copy_gb_per_s": 2 * source.nbytes / copy / 1e6, "card": torch.cuda.get_device_name(),
                      "torch": torch.__version__}))


main()
