#!/usr/bin/env python3
"""Compares the tokenizer with Hugging Face's library over many lines, for a folder of tokenizer.json files.

    python tools/tokenizer_parity.py --lines 50000 FOLDER --text FILE...

Every *.json of the folder: lines of the text files, then random ones (fuzz_tokenizer.py's) until there are
enough; ids with and without special tokens, decoded text, streamed text. Prints a table: lines, differences, the
SHA-256 of all ids of the library, and how many tokens a second both encode on one thread, in prompts of about
4,096 tokens. Exits 1 when there was a difference.
"""
import argparse
import glob
import hashlib
import os
import random
import struct
import sys
import time

from fuzz_tokenizer import Ours, build, compare, random_text
from tokenizers import Tokenizer

PROMPT_TOKENS = 4096


def lines_of(files, n, seed):
    """At most half of the lines from the files, some with another white space or joined; then random ones."""
    rng = random.Random(seed)
    found = []
    for name in files:
        with open(name, "rb") as f:
            found += f.read().split(b"\n")
    rng.shuffle(found)
    for line in found[:n // 2]:
        kind = rng.randrange(8)
        yield line + b"\n" if kind == 0 else b" " * kind + line if kind < 3 else line.replace(b" ", b"  ") if kind == 3 else line


def ids_hash(tokenizer, lines):
    h = hashlib.sha256()
    for encoding in tokenizer.encode_batch([line.decode(errors="replace") for line in lines]):
        h.update(struct.pack(f"<{len(encoding.ids)}I", *encoding.ids))
    return h.hexdigest()[:16]


def speed(encode, prompts, n_tokens):
    """Tokens a second, the best of five rounds."""
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        for p in prompts:
            encode(p)
        best = min(best, time.perf_counter() - start)
    return n_tokens / best


def prompts_of(theirs, files, count=8):
    text = b"".join(open(f, "rb").read(400000) for f in files).decode(errors="replace")
    size = PROMPT_TOKENS * len(text[:100000]) // max(1, len(theirs.encode(text[:100000]).ids))
    return [text[i * size:(i + 1) * size] for i in range(count)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--lines", type=int, default=50000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--speed-only", action="store_true")
    args = parser.parse_args()
    lib = build()
    failed = False
    print("| tokenizer | vocabulary | lines | differences | SHA-256 of the ids | library, tokens/s | ours, tokens/s | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for path in sorted(glob.glob(os.path.join(args.folder, "*.json"))):
        name = os.path.basename(path)[:-5]
        theirs = Tokenizer.from_file(path)
        try:
            ours = Ours(lib, path)
        except ValueError as e:
            print(f"| {name} | refused: {e} |", flush=True)
            continue
        rng = random.Random(args.seed)
        specials = [t.content for t in theirs.get_added_tokens_decoder().values()]
        lines, different = [], 0
        if not args.speed_only:
            lines = list(lines_of(args.text, args.lines, args.seed))
            lines += [random_text(rng, specials) for _ in range(args.lines - len(lines))]
            different = sum(compare(name, ours, theirs, line, rng) for line in lines)
        failed = failed or different > 0
        prompts = prompts_of(theirs, args.text)
        n = sum(len(theirs.encode(p).ids) for p in prompts)
        a = speed(theirs.encode, prompts, n)
        b = speed(lambda data: ours.encode(data, as_list=False), [p.encode() for p in prompts], n)
        print(f"| {name} | {theirs.get_vocab_size()} | {len(lines)} | {different} | {ids_hash(theirs, lines)} "
              f"| {a:,.0f} | {b:,.0f} | {b / a:.1f} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
