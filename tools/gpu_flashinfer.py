#!/usr/bin/env python3
"""Attention by FlashInfer on the same GPU, in turn with octavo's: the crowds of `octavo bench
kernels`, over pages of 16 tokens in the layout of octavo's pool. Skipped, and named, where Python
has no torch or flashinfer, or torch sees no GPU.

usage: gpu_flashinfer.py OUT.json OCTAVO bench kernels FLAGS...

FlashInfer compiles a kernel when it is first planned, which takes its time before anything is
measured. Octavo's run comes between two rounds of FlashInfer's."""

import json
import subprocess
import sys
import time

try:
    import torch
except ImportError:
    sys.exit(print("SKIPPED: no torch"))
try:
    import flashinfer
except ImportError:
    sys.exit(print("SKIPPED: no flashinfer"))

PAGE, KV_HEADS, HEADS, DIM = 16, 8, 32, 128
COLD_BYTES = 512 << 20  # more than any cache holds
# The line of `octavo bench kernels`, sequences, tokens of each, and rows of each that attend.
CROWDS = (("decode attention 64 x 4096, bf16", 64, 4096, 1), ("decode attention 8 x 32768, bf16", 8, 32768, 1),
          ("decode attention 1 x 32768, bf16", 1, 32768, 1), ("prefill attention 8 x 2048, bf16", 8, 2048, 2048),
          ("chunks of 32, attention 1 x 32768, bf16", 1, 32768, 32), ("prefill attention 1 x 8192, bf16", 1, 8192, 8192))

results = []


def note(what, name, us):
    """Notes the time of one round. The file is rewritten each time, so that it is always whole."""
    mine = next((r for r in results if (r["what"], r["name"]) == (what, name)), None)
    if not mine:
        mine = {"what": what, "name": name, "rounds": []}
        results.append(mine)
    mine["rounds"].append(us)
    print(f"{what}, {name}: {us:.1f} us")
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump(results, f)


def time_calls(call, n):
    """Microseconds of one of n calls on the device; each call receives its number."""
    call(0), call(1)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    first.record()
    for i in range(n):
        call(i + 2)
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) * 1e3 / n


def make_pages(n, slots):
    """As many copies of the crowd's pages as no cache holds, as views (K, V) of octavo's layout: a
    page has K [16, 128] of a head, then its V, then the next head's. The page numbers of each copy
    are in random order."""
    of_copy = n * (slots // PAGE)
    copies = COLD_BYTES // (of_copy * KV_HEADS * 2 * PAGE * DIM * 2) + 1
    pool = torch.randn((copies * of_copy, KV_HEADS, 2, PAGE, DIM), device="cuda", dtype=torch.bfloat16)
    numbers = torch.randperm(copies * of_copy, device="cuda").int().view(copies, of_copy)
    return (pool[:, :, 0], pool[:, :, 1]), numbers


def steps_of(each, n):
    """0, each, 2 * each … as the wrappers want the beginnings of n rows' parts."""
    return torch.arange(n + 1, device="cuda", dtype=torch.int32) * each


def plan_decode(workspace, n, slots, pages):
    """FlashInfer advises tensor cores where a KV head has 4 query heads or more."""
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
    wrapper.plan(steps_of(slots // PAGE, n), pages, torch.full((n,), PAGE, device="cuda", dtype=torch.int32), HEADS,
                 KV_HEADS, DIM, PAGE, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    return wrapper


def plan_prefill(workspace, n, slots, rows, pages):
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
    wrapper.plan(steps_of(rows, n), steps_of(slots // PAGE, n), pages,
                 torch.full((n,), PAGE, device="cuda", dtype=torch.int32), HEADS, KV_HEADS, DIM, PAGE, causal=True,
                 q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    return wrapper


def bench(what, n, slots, rows):
    """A plan is for the page numbers of one copy, so each copy has a wrapper and a workspace."""
    kv, numbers = make_pages(n, slots)
    q = torch.randn((n * rows, HEADS, DIM), device="cuda", dtype=torch.bfloat16)
    wrappers = []
    for pages in numbers:
        workspace = torch.zeros(128 << 20, device="cuda", dtype=torch.uint8)
        wrappers.append(plan_decode(workspace, n, slots, pages) if rows == 1 else
                        plan_prefill(workspace, n, slots, rows, pages))
    out = torch.empty_like(q)
    note(what, "FlashInfer", time_calls(lambda i: wrappers[i % len(wrappers)].run(q, kv, out=out), 20))


def bench_all():
    for crowd in CROWDS:
        try:
            bench(*crowd)
        # It compiles and asks the driver, either of which may fail in any way.
        except Exception as e:  # pylint: disable=broad-exception-caught
            print(f"FlashInfer, {crowd[0]}: not here: {str(e).splitlines()[0] if str(e) else type(e).__name__}")
        torch.cuda.empty_cache()


def bench_octavo():
    ran = subprocess.run(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    for line in ran.stdout.splitlines():
        for what, *_ in CROWDS:
            for kernel in ("", ", wgmma"):
                if line.startswith(f"{what}{kernel} "):
                    note(what, f"octavo{kernel}", float(line[len(what + kernel):].split()[0]))
    if ran.returncode != 0:
        print(f"octavo: {ran.stderr.strip()[-300:]}")


def main():
    if not torch.cuda.is_available():
        sys.exit(print("SKIPPED: torch sees no GPU"))
    print(f"torch {torch.__version__}, flashinfer {flashinfer.__version__}, {torch.cuda.get_device_name()}")
    bench_all()
    bench_octavo()
    bench_all()


main()
