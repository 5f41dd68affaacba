#!/usr/bin/env python3
"""Tokens a second of Hugging Face's library and of ours, one thread each, in turns.

    python tools/tokenizer_speed.py [--lib tokenizer.so] TOKENIZER.json NAME=TEXT...

Each text is cut into prompts of 4,096 tokens. A round lets each side encode (then decode) all of
them, one call a prompt; the median round is printed. The library's two ways to encode are both
measured: `encode`, and `encode_batch_fast` of one prompt, which leaves out where the tokens lie;
the ratio is to the better of the two. --build only builds our library, so that no compiler runs
beside a measurement.
"""
import os

os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")

import argparse
import ctypes
import pathlib
import shutil
import statistics
import time

from fuzz_tokenizer import Ours, build, typed
from tokenizers import Tokenizer

PROMPT_TOKENS, PROMPTS = 4096, 8


def prompts_of(theirs, text):
    out, at = [], 0
    while len(out) < PROMPTS and at < len(text):
        offsets = theirs.encode(text[at:at + 8 * PROMPT_TOKENS], add_special_tokens=False).offsets
        if len(offsets) < PROMPT_TOKENS:
            break
        end = max(1, offsets[PROMPT_TOKENS - 1][1])
        out.append(text[at:at + end])
        at += end
    return out


def rate(call, inputs, n_tokens, seconds):
    """One round: repeats the inputs until the time is filled."""
    start, turns = time.perf_counter(), 0
    while True:
        for x in inputs:
            call(x)
        turns += 1
        spent = time.perf_counter() - start
        if spent > seconds:
            return turns * n_tokens / spent


def medians(sides, n_tokens, rounds, seconds):
    found = {name: [] for name, _, _ in sides}
    for _ in range(rounds):
        for name, call, inputs in sides:
            found[name].append(rate(call, inputs, n_tokens, seconds))
    return {name: statistics.median(v) / 1e6 for name, v in found.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer", type=pathlib.Path, nargs="?")
    parser.add_argument("text", nargs="*")
    parser.add_argument("--lib")
    parser.add_argument("--build", help="where to put the library, and no more")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a round")
    args = parser.parse_args()
    if args.build:
        shutil.copy(build()._name, args.build)
        return
    lib = typed(ctypes.CDLL(args.lib)) if args.lib else build()
    theirs, ours = Tokenizer.from_file(str(args.tokenizer)), Ours(lib, str(args.tokenizer))
    for item in args.text:
        name, path = item.split("=", 1)
        prompts = prompts_of(theirs, pathlib.Path(path).read_text(errors="replace"))
        ids = [theirs.encode(p).ids for p in prompts]
        n = sum(len(i) for i in ids)
        assert ids == [ours.encode(p.encode()) for p in prompts]
        m = medians([("encode", theirs.encode, prompts), ("fast", lambda p: theirs.encode_batch_fast([p]), prompts),
                     ("ours", lambda p: ours.encode(p, as_list=False), [p.encode() for p in prompts])], n, args.rounds, args.seconds)
        arrays = [ours.array(i) for i in ids]
        d = medians([("decode", theirs.decode, ids), ("ours", lambda a: ours.decode_array(a, True), arrays)], n, args.rounds, args.seconds)
        print(f"| {args.tokenizer.stem} | {name} | {sum(map(len, prompts)) / n:.1f} | {m['encode']:.2f} | {m['fast']:.2f} | {m['ours']:.2f} "
              f"| {m['ours'] / max(m['encode'], m['fast']):.1f} | {d['decode']:.2f} | {d['ours']:.2f} | {d['ours'] / d['decode']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
