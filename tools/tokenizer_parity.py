#!/usr/bin/env python3
"""Compares the tokenizer with Hugging Face's library on many lines, for a folder of real
tokenizer.json files.

    python tools/tokenizer_corpus.py --out DIR/corpus.bin TEXT...
    python tools/tokenizer_parity.py [--goldens tests/golden/tokenizers_real.json] DIR

For every *.json of the folder and every line of its corpus.bin it compares the ids, with special
tokens on every second line; the text of these ids; the text of the same ids backwards, where
characters are broken; and every tenth line also as a stream. Prints a table. --goldens writes the
library's results as hashes, with which text_tokenizer_real_test compares. Exits with 1 when there
was a difference.
"""
import argparse
import hashlib
import json
import pathlib
import struct
import sys

import tokenizers
from fuzz_tokenizer import Ours, build, show
from tokenizers import Tokenizer

BLOCK = 5000  # lines to a hash
PIECES = ("ids", "texts", "broken")


def corpus_lines(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        n = struct.unpack_from("<I", data, at)[0]
        yield data[at + 4:at + 4 + n]
        at += 4 + n


def due_of(theirs, number, line):
    """The library's results for a line: ids, their text, the text of the ids backwards."""
    skip = number // 2 % 2 == 1
    ids = theirs.encode(line.decode(errors="replace"), add_special_tokens=number % 2 == 1).ids
    return ids, theirs.decode(ids, skip_special_tokens=skip).encode(), theirs.decode(ids[::-1], skip_special_tokens=skip).encode()


def got_of(ours, number, line):
    skip = number // 2 % 2 == 1
    ids = ours.encode(line, number % 2 == 1)
    return ids, ours.decode(ids, skip), ours.decode(ids[::-1], skip)


def compare(ours, number, line, due):
    got = got_of(ours, number, line)
    for piece, a, b in zip(PIECES, got, due):
        if a != b:
            print(f"line {number}: {piece}")
            show(line[:2000], a, b)
            return 1
    # Where a sequence of byte-fallback tokens breaks off, the library takes back text that a stream
    # has already returned, so streams are not compared there.
    if number % 10 == 0 and len(line) < 10000 and not (ours.falls_back and "\ufffd".encode() in due[1]):
        parts = ours.stream(due[0], number // 2 % 2 == 1)
        if b"".join(parts) != due[1]:
            print(f"line {number}: streamed")
            show(line, b"".join(parts), due[1])
            return 1
    return 0


class Goldens:
    def __init__(self):
        self.hashes, self.now, self.n = {p: [] for p in PIECES}, None, 0

    def add(self, due):
        if self.n % BLOCK == 0:
            self.close()
            self.now = [hashlib.sha256() for _ in PIECES]
        self.n += 1
        ids = due[0]
        self.now[0].update(struct.pack(f"<{1 + len(ids)}I", len(ids), *ids))
        for h, text in zip(self.now[1:], due[1:]):
            h.update(struct.pack("<I", len(text)) + text)

    def close(self):
        for piece, h in zip(PIECES, self.now or []):
            self.hashes[piece].append(h.hexdigest()[:16])
        self.now = None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--goldens", type=pathlib.Path)
    args = parser.parse_args()
    corpus = args.folder / "corpus.bin"
    lines = list(corpus_lines(corpus))
    lib, failed, rows = build(), False, []
    print("| tokenizer | vocabulary | lines | tokens | differences | SHA-256 of the ids |\n| --- | --- | --- | --- | --- | --- |")
    for path in sorted(args.folder.glob("*.json")):
        theirs = Tokenizer.from_file(str(path))
        try:
            ours = Ours(lib, str(path))
        except ValueError as e:
            print(f"| {path.stem} | refused: {e} |", flush=True)
            continue
        goldens, different, n = Goldens(), 0, 0
        for number, line in enumerate(lines):
            due = due_of(theirs, number, line)
            goldens.add(due)
            n += len(due[0])
            if different < 10:
                different += compare(ours, number, line, due)
        goldens.close()
        failed = failed or different > 0
        ids = hashlib.sha256("".join(goldens.hashes["ids"]).encode()).hexdigest()[:16]
        rows.append({"name": path.stem, "file": hashlib.sha256(path.read_bytes()).hexdigest(), "tokens": n, **goldens.hashes})
        print(f"| {path.stem} | {theirs.get_vocab_size()} | {len(lines)} | {n} | {different} | {ids} |", flush=True)
    if args.goldens:
        head = {"library": "tokenizers " + tokenizers.__version__, "lines": len(lines), "block": BLOCK,
                "corpus": hashlib.sha256(corpus.read_bytes()).hexdigest()}
        body = ",\n".join(json.dumps(r) for r in rows)
        args.goldens.write_text(json.dumps(head)[:-1] + ",\n\"tokenizers\": [\n" + body + "\n]}\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
