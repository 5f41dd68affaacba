#!/usr/bin/env python3
"""The attention of a decode step by PyTorch, beside tools/gpu_check.sh's own: K and V lie in one piece,
which a page table does not ask for. Skipped by name where Python has no torch or torch sees no GPU."""

import sys


def decode_us(torch, batch, context, heads=32, kv_heads=8, dim=128):
    """Of one call over rows that no cache holds."""
    shape = (batch, kv_heads, context, dim)
    sets = max(2, (1 << 29) // (2 * 2 * batch * kv_heads * context * dim) + 1)
    kv = [tuple(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "kv") for _ in range(sets)]
    q = torch.randn((batch, heads, 1, dim), device="cuda", dtype=torch.bfloat16)
    attend = torch.nn.functional.scaled_dot_product_attention
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for k, v in kv:
        attend(q, k, v, enable_gqa=True)
    begin.record()
    rounds = 20
    for i in range(rounds):
        attend(q, *kv[i % sets], enable_gqa=True)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1000 / rounds


def main():
    try:
        import torch
    except ImportError as e:
        sys.exit(print(f"SKIPPED: {e}"))
    if not torch.cuda.is_available():
        sys.exit(print("SKIPPED: torch sees no GPU"))
    for batch, context in ((64, 4096), (8, 32768)):
        us = decode_us(torch, batch, context)
        bytes_read = 2 * 2 * batch * 8 * context * 128
        print(f"torch {torch.__version__} SDPA {batch} x {context}: {us:.1f} us, {bytes_read / us / 1000:.0f} GB/s")


main()
