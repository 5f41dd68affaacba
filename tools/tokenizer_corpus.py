#!/usr/bin/env python3
"""Writes the lines on which real tokenizers are compared: half of them real text, half random, by a
seed.

    python tools/tokenizer_corpus.py --lines 50000 --seed 1 --out DIR/corpus.bin TEXT...

TEXT: files, or folders whose files are read (text as it is, GNU message catalogues by their
translations). A line is its length as four bytes, least first, and its bytes, which need not be
UTF-8. The same seed, text and Python version give the same bytes.
"""
import argparse
import gettext
import hashlib
import pathlib
import random
import struct

from fuzz_tokenizer import random_text, scalar

SPECIALS = ["<s>", "</s>", "<unk>", "<pad>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "<|begin_of_text|>", "<|eot_id|>",
            "<|eot|>", "<|start_header_id|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<0x41>", "<0xE2>", "\n\nHuman:", "\n\nAssistant:"]
EMOJI = ["\U0001F600", "\U0001F44D\U0001F3FD", "\U0001F468\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466", "\U0001F1E9\U0001F1EA", "\u2764\ufe0f",
         "1\ufe0f\u20e3", "\U0001F3F4\U000E0067\U000E0062\U000E0073\U000E0063\U000E0074\U000E007F", "\U0001FAE0", "\u263a"]
BLANKS = [" ", "  ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\x0b", "\x0c", "\x85", "\x1c", "\u180e", "\ufeff"]
SCRIPTS = [(0x41, 0x7B), (0xC0, 0x250), (0x370, 0x400), (0x400, 0x500), (0x5D0, 0x5EB), (0x620, 0x6D4), (0x900, 0x980), (0xE01, 0xE5B),
           (0x10A0, 0x1100), (0x1100, 0x1200), (0x1E00, 0x2000), (0x3041, 0x30FF), (0x4E00, 0x9FA6), (0xAC00, 0xD7A4), (0x20000, 0x20100)]
CODE = ["if (x[i] != '\\0') {", "\treturn a->b ? 0x1F : 3.14e-10;", "def f(self, *args, **kw):", "    self.x += 1", "#include <stdio.h>", "SELECT * FROM t WHERE a='b';",
        "<div class=\"x\">&nbsp;</div>", "{\"k\": [1, 2.5, null, true]}", "x = y if z else w", "// ---- //", "for(;;){}", "A::B<C>&& d", "$ ls -la | grep 'x'", "camelCaseName", "SNAKE_CASE", "HTTPServer2"]


def texts_of(path):
    """The text of one file."""
    if path.suffix == ".mo":
        with open(path, "rb") as f:
            messages = gettext.GNUTranslations(f)._catalog
        return "\n".join(v for k, v in sorted(messages.items(), key=str) if isinstance(v, str) and k).encode()
    return path.read_bytes()


def real_lines(paths, rng):
    lines = []
    for path in paths:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            lines += texts_of(file).split(b"\n")
    starts = list(range(len(lines)))
    rng.shuffle(starts)
    for at in starts:
        kind = rng.randrange(20)
        if kind < 10:
            yield lines[at]
        elif kind < 16:  # several lines, as prompts have them
            yield b"\n".join(lines[at:at + rng.choice((2, 3, 5, 8, 13))])
        elif kind == 16:
            yield b" " * rng.randrange(1, 9) + lines[at]
        elif kind == 17:
            yield lines[at].replace(b" ", b"  ") + b"\n"
        elif kind == 18:
            yield lines[at].upper() + b"\r\n" + lines[at].title()
        else:  # cut anywhere: the start or the end may not be UTF-8
            cut = rng.randrange(len(lines[at]) + 1)
            yield lines[at][cut:cut + 40]


def spread(rng, part, most):
    return "".join(part() for _ in range(rng.randrange(1, most)))


def long_line(rng):
    n = rng.choice((2000, 5000, 20000, 60000))
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice("a \n.0éあ▁'") * n
    if kind == 1:
        return (rng.choice(CODE) + rng.choice(BLANKS)) * (n // 20)
    if kind == 2:
        return "".join(rng.choice("abcdefgh") for _ in range(n))
    if kind == 3:
        return "".join(rng.choice("0123456789") for _ in range(n // 4))
    return " ".join(scalar(rng) for _ in range(n // 8))


def made_line(rng):
    kind = rng.randrange(100)
    if kind < 30:
        return random_text(rng, SPECIALS)
    if kind < 40:
        text = spread(rng, lambda: rng.choice(EMOJI) + rng.choice(["", " ", "a", "\u200d"]), 12)
    elif kind < 52:
        text = spread(rng, lambda: rng.choice(BLANKS) * rng.choice((1, 1, 2, 3, 7, 40)) + rng.choice(["", "x", "1", ".", "\u4e2d"]), 12)
    elif kind < 60:
        text = spread(rng, lambda: chr(rng.randrange(0x20)) + rng.choice(["", "a", " ", "\x7f", "\x9f"]), 20)
    elif kind < 78:
        lo, hi = rng.choice(SCRIPTS)
        text = spread(rng, lambda: "".join(chr(rng.randrange(lo, hi)) for _ in range(rng.randrange(1, 9))) + rng.choice([" ", " ", "", ", ", "-", "'s "]), 25)
    elif kind < 88:
        text = spread(rng, lambda: rng.choice(CODE) + rng.choice(["\n", "\n\n    ", " ", "\t"]), 10)
    elif kind < 93:
        text = spread(rng, lambda: rng.choice(SPECIALS) + rng.choice(["", " ", "user\n\n", "x", "\u00e9"]), 12)
    elif kind < 99:
        text = spread(rng, lambda: scalar(rng), 40)
        data = bytearray(text.encode())
        for _ in range(1 + len(data) // 8):
            at = rng.randrange(len(data))
            data[at:at + rng.randrange(2)] = bytes([rng.choice((0x80, 0xBF, 0xC0, 0xC3, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF8, 0xFF, 0x41))])
        return bytes(data)
    else:
        text = long_line(rng)
    return text.encode()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", nargs="+", type=pathlib.Path)
    parser.add_argument("--lines", type=int, default=50000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    lines = [line for line, _ in zip(real_lines(args.text, rng), range(args.lines // 2))]
    n_real = len(lines)
    lines += [made_line(rng) for _ in range(args.lines - n_real)]
    rng.shuffle(lines)
    data = b"".join(struct.pack("<I", len(line)) + line for line in lines)
    args.out.write_bytes(data)
    print(f"{len(lines)} lines, {n_real} of them of real text, {len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main()
