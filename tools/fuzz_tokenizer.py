#!/usr/bin/env python3
"""Differential fuzzing of the tokenizer against Hugging Face's library: random strings must give
equal ids.

    python tools/fuzz_tokenizer.py --seconds 60 --seed 1 tests/golden/tokenizers/*.json ...

Builds the tokenizer's sources into a shared library and calls it through ctypes. Prints every
difference and how many strings agreed; exits with 1 when there was a difference. With --exhaustive
every code point is tried once in a dozen contexts.
"""
import argparse
import ctypes
import glob
import os
import random
import subprocess
import sys
import tempfile
import time

from tokenizers import Regex, Tokenizer, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Status(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char_p)]


class Error(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char * 512)]


class Ids(ctypes.Structure):
    _fields_ = [("ids", ctypes.POINTER(ctypes.c_uint32)), ("n", ctypes.c_size_t),
                ("capacity", ctypes.c_size_t)]


class Strbuf(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(ctypes.c_char)), ("size", ctypes.c_size_t),
                ("capacity", ctypes.c_size_t), ("failed", ctypes.c_bool)]


class Stream(ctypes.Structure):
    _fields_ = [("t", ctypes.c_void_p), ("skip_special", ctypes.c_bool), ("first", ctypes.c_bool),
                ("strip", ctypes.c_uint), ("pending", ctypes.c_uint8 * 4),
                ("n_pending", ctypes.c_uint8)]


def build():
    out = os.path.join(tempfile.mkdtemp(), "tokenizer.so")
    sources = glob.glob(ROOT + "/text/tokenizer/*.c") + glob.glob(ROOT + "/base/*.c")
    subprocess.run(["cc", "-std=gnu17", "-O2", "-g", "-D_GNU_SOURCE", "-fPIC", "-shared", "-I", ROOT,
                    *sources, "-o", out, "-lpcre2-8", "-lutf8proc", "-ljansson", "-lm", "-lpthread"],
                   check=True)
    return typed(ctypes.CDLL(out))


def typed(lib):
    for name in ("tok_load_text", "tok_encode", "tok_decode", "tok_stream_push"):
        getattr(lib, name).restype = Status
    return lib


class Ours:
    def __init__(self, lib, path):
        self.lib, self.handle, error = lib, ctypes.c_void_p(), Error()
        with open(path, "rb") as f:
            text = f.read()
        s = lib.tok_load_text(path.encode(), text, ctypes.c_size_t(len(text)),
                              ctypes.byref(self.handle), ctypes.byref(error))
        if s.code:
            raise ValueError(error.text.decode())
        self.ids, self.text = Ids(), Strbuf()
        self.falls_back = b'"ByteFallback"' in text

    def encode(self, data, add_special=True, as_list=True):
        self.ids.n = 0
        error = Error()
        s = self.lib.tok_encode(self.handle, data, ctypes.c_size_t(len(data)),
                                ctypes.c_bool(add_special), ctypes.byref(self.ids),
                                ctypes.byref(error))
        if s.code:
            raise ValueError(error.text.decode())
        return self.ids.ids[:self.ids.n] if as_list else None

    def _taken(self):
        data = ctypes.string_at(self.text.data, self.text.size) if self.text.size else b""
        self.text.size = 0
        return data

    def array(self, ids):
        return (ctypes.c_uint32 * len(ids))(*ids)

    def decode(self, ids, skip_special):
        return self.decode_array(self.array(ids), skip_special)

    def decode_array(self, array, skip_special):
        s = self.lib.tok_decode(self.handle, array, ctypes.c_size_t(len(array)),
                                ctypes.c_bool(skip_special), ctypes.byref(self.text), None)
        assert s.code == 0
        return self._taken()

    def stream(self, ids, skip_special):
        stream, parts = Stream(), []
        self.lib.tok_stream_init(ctypes.byref(stream), self.handle, ctypes.c_bool(skip_special))
        for i in ids:
            s = self.lib.tok_stream_push(ctypes.byref(stream), ctypes.c_uint32(i),
                                         ctypes.byref(self.text))
            assert s.code == 0
            parts.append(self._taken())
        self.lib.tok_stream_finish(ctypes.byref(stream), ctypes.byref(self.text))
        return parts + [self._taken()]


RANGES = [(0x20, 0x7F), (0, 0x20), (0x80, 0x250), (0x2B0, 0x380), (0x300, 0x370), (0x370, 0x530),
          (0x590, 0x700), (0x800, 0x900), (0x900, 0xE00), (0xE00, 0x1000), (0x1100, 0x1200),
          (0x1680, 0x1820), (0x1AB0, 0x1B00), (0x1DC0, 0x2070), (0x20D0, 0x2200), (0x2460, 0x2500), (0x2600, 0x2800),
          (0x3000, 0x3100),
          (0x4E00, 0x5000), (0xA640, 0xA700), (0xAC00, 0xAE00), (0xF900, 0xFB50),
          (0xFB50, 0xFE30), (0xFE00, 0x10000), (0x10000, 0x10400), (0x11000, 0x11A00),
          (0x16A00, 0x17000), (0x1D100, 0x1D400), (0x1E000, 0x1E960), (0x1F000, 0x1FB00), (0x2F800, 0x2FA20),
          (0xE0000, 0xE0200), (0, 0x110000)]
SNIPPETS = ["'s", "'T", "'re", "'VE", "'ll", "'\u017f", "'Sx", "'\u017fx", "\r\n", "\n", "\t", "  ", "   ", "\u00a0", "\u180e",
            "\u200d", "\ufe0f", "\U0001F468\u200d\U0001F469\u200d\U0001F467", "e\u0301", "a\u0327\u0301",
            "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0958", "\u2126", "\ufeff", "12345", "1", "the ", " of", "\u2581", "\u2581\u2581 ", "<0x41>", "\u01c5a", "ABc", "\u02b0B", "//\n/",
            "return ", "();", "...", "\u3000", "\x85", "\x1c", "\ufffd", "<", "|", ">", "_", "aaaa", "\x00"]


def scalar(rng):
    lo, hi = rng.choice(RANGES)
    while True:
        c = rng.randrange(lo, hi)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def random_text(rng, specials):
    parts = []
    for _ in range(rng.choice((1, 2, 3, 5, 8, 13, 40))):
        kind = rng.random()
        if kind < 0.35:
            parts.append(scalar(rng))
        elif kind < 0.5:
            parts.append(scalar(rng) * rng.randrange(1, 6))
        elif kind < 0.7:
            parts.append(rng.choice(SNIPPETS))
        elif kind < 0.8 and specials:
            s = rng.choice(specials)
            parts.append(s if rng.random() < 0.7 else s[:rng.randrange(1, len(s) + 1)])
        elif kind < 0.9:
            parts.append("".join(rng.choice("abcdefghij ETAOIN'\n0123.,") for _ in range(rng.randrange(1, 20))))
        else:
            parts.append(rng.choice(" \n\t\r\u2003") * rng.randrange(1, 70))
    data = "".join(parts).encode()
    if rng.random() < 0.1:
        data = bytes(rng.randrange(256) if rng.random() < 0.1 else b for b in data)
    return data


def show(data, ours, theirs):
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    print(f"DIFFERENCE for {data!r}\n  at {at}: ours {ours[at:at + 8]}, theirs {theirs[at:at + 8]}")


def compare(name, ours, theirs, data, rng):
    text = data.decode(errors="replace")
    add = rng.random() < 0.5
    got, due = ours.encode(data, add), theirs.encode(text, add_special_tokens=add).ids
    if got != due:
        print(name)
        show(data, got, due)
        return 1
    if due and rng.random() < 0.5:
        due = [rng.choice(due) for _ in due]  # ids in random order give broken characters, too
    skip = rng.random() < 0.5
    got, whole = ours.decode(due, skip), theirs.decode(due, skip_special_tokens=skip).encode()
    parts = ours.stream(due, skip)
    # Where a sequence of byte-fallback tokens breaks off, the library takes back text that a stream
    # has already returned, so streams are not compared there.
    broken = ours.falls_back and "\ufffd".encode() in whole
    if got != whole or not broken and b"".join(parts) != whole:
        print(name)
        show(due, got, whole)
        print(parts)
        return 1
    for part in parts:
        part.decode()  # raises unless it is whole characters
    return 0


class Splits:
    """Compares the hand-written matchers with the library's regular expressions."""

    def __init__(self, lib):
        self.pairs = []
        lib.tok_split_find.restype = ctypes.c_void_p
        kind = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t)
        for pattern in (GPT2, LLAMA3, LLAMA3.replace("{1,3}", ""), TEKKEN):
            found = lib.tok_split_find(pattern.encode(), ctypes.c_size_t(len(pattern)))
            self.pairs.append((kind(found), pre_tokenizers.Split(Regex(pattern), "isolated")))

    def compare(self, data):
        text = data.decode(errors="replace")
        data = text.encode()
        for split, theirs in self.pairs:
            due, got, at = [len(p.encode()) for p, _ in theirs.pre_tokenize_str(text)], [], 0
            while at < len(data):
                end = split(data, len(data), at)
                got.append(end - at)
                at = end
            if got != due:
                show(data, got, due)
                return 1
        return 0


def exhaustive():
    scalars = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for c in map(chr, scalars):
        yield f"{c} {c}{c}a{c}1{c}\n{c}  {c}'{c}e'l{c}'{c} .{c}\u0301\u0316{c}e\u0327{c}\u0301"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    lib = build()
    pairs = []
    for path in args.files:
        theirs = Tokenizer.from_file(path)
        specials = [t.content for t in theirs.get_added_tokens_decoder().values()]
        pairs.append((path, Ours(lib, path), theirs, specials))
    splits = Splits(lib)
    rng = random.Random(args.seed)
    tried = different = 0
    if args.exhaustive:
        for text in exhaustive():
            different += splits.compare(text.encode())
            for name, ours, theirs, _ in pairs:
                different += compare(name, ours, theirs, text.encode(), rng)
                tried += 1
    end = time.time() + args.seconds
    while time.time() < end and different < 20:
        name, ours, theirs, specials = rng.choice(pairs)
        data = random_text(rng, specials)
        different += compare(name, ours, theirs, data, rng) or splits.compare(data)
        tried += 1
    print(f"seed {args.seed}: {tried} strings, {different} differences")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
