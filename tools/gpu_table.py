#!/usr/bin/env python3
"""Shares of what the device can do, out of tools/gpu_check.sh's logs. usage: gpu_table.py FOLDER"""

import json
import os
import re
import sys


def limits(folder):
    """The device's copy bandwidth in GB/s and rate of large products in TFLOP/s, measured just before."""
    with open(os.path.join(folder, "bench_kernels.log"), encoding="utf-8") as f:
        text = f.read()
    copy = re.search(r"^copy on the device .*?([\d.]+) GB/s", text, re.M)
    product = re.search(r"^a large product.*?([\d.]+) TFLOP/s", text, re.M)
    return float(copy.group(1)), float(product.group(1))


def rows(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return json.load(f)["rows"]


def engine_lines(folder, copy, product):
    for r in rows(folder, "engine.json"):
        if r["what"] == "decode":
            share = r["gb_s"] / copy
            yield f"8B decode, batch {r['batch']} at {r['tokens']}", f"{r['tokens_s']:.0f} tokens/s", share, 0.80
        elif r["what"] == "prefill":
            share = r["gflop_s"] / 1000 / product
            yield f"8B prefill of {r['tokens']}", f"{r['tokens_s']:.0f} tokens/s", share, 0.60


def main():
    folder = sys.argv[1]
    try:
        copy, product = limits(folder)
        print(f"\ncopy {copy:.0f} GB/s, product {product:.0f} TFLOP/s")
        for name, rate, share, bar in engine_lines(folder, copy, product):
            print(f"{name:<34} {rate:>16} {100 * share:6.1f} % of the limit (bar {100 * bar:.0f})")
        for r in rows(folder, "retention.json"):
            if r["what"] == "cost":
                print(f"{r['method']:<34} {100 * r['share_of_prefill']:22.2f} % of the prefill (bar 1)")
    except (OSError, AttributeError, ValueError, KeyError) as e:
        print(f"no speeds: {e}")


main()
