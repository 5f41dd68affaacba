#!/usr/bin/env python3
"""Writes text/tokenizer/unicode_tables.c: the class bits of every code point.

    pip install unicodedata2==16.0.0 tokenizers
    python tools/gen_unicode.py > text/tokenizer/unicode_tables.c

text/tokenizer/unicode.h tells what the bits mean. They come from two versions of Unicode, because
the `tokenizers` library, which our tokenizer must equal, uses two: its regular expressions know
Unicode 16, its NFC knows Unicode 9. The library itself is asked what its NFC knows; the rest is
computed and then compared with the library's answer for every code point.
"""
import unicodedata2 as ud
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

assert ud.unidata_version == "16.0.0"
LETTER, NUMBER, SPACE, WORD, NFC_ACTIVE, NFC_NEWER, HEAD, TAIL = 1, 2, 4, 8, 16, 32, 64, 128
BLOCK, CHUNK = 128, 32  # code points, blocks
SCALARS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
WHITE_SPACE = set([*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
                   0x202F, 0x205F, 0x3000])
# \w of Rust's regex: Alphabetic, M, Nd, Pc, Join_Control. Beyond L, M and Nl, Alphabetic has the
# circled and squared letters.
WORD_EXTRA = set([0x200C, 0x200D, *range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A),
                  *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)])


def class_bits(c):
    category = ud.category(chr(c))
    bits = LETTER if category[0] == "L" else NUMBER if category[0] == "N" else 0
    if c in WHITE_SPACE:
        bits |= SPACE
    if category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in WORD_EXTRA:
        bits |= WORD
    if category in ("Lu", "Lt", "Lm", "Lo") or category[0] == "M":
        bits |= HEAD
    if category in ("Ll", "Lm", "Lo") or category[0] == "M":
        bits |= TAIL
    return bits


def nfc_bits():
    """NFC_ACTIVE: not a starter, or NFC_Quick_Check is not Yes. NFC_NEWER: normalisation by a later
    Unicode changes the code point, but the library's does not."""
    nfc = normalizers.NFC().normalize_str
    pairs = {}  # primary composites of Unicode 16
    for c in SCALARS:
        parts = ud.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<") and ud.normalize("NFC", chr(c)) == chr(c):
            pairs[c] = tuple(int(p, 16) for p in parts)
    jamo = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))  # Hangul composes by a rule
    known = {c: nfc(chr(a) + chr(b)) == chr(c) for c, (a, b) in pairs.items()}
    seconds = {b for _, b in pairs.values()} | jamo
    known_seconds = {b for c, (_, b) in pairs.items() if known[c]} | jamo
    bits = {}
    for c in SCALARS:
        ch = chr(c)
        combining = ud.combining(ch) != 0
        # A mark that the library knows is reordered with one of the highest class before it, or
        # with one of the lowest behind it.
        known_mark = combining and any(nfc(s) != s for s in ("\u0345" + ch, ch + "\u0334"))
        known_decomposition = nfc(ch) != ch
        if known_mark or known_decomposition or c in known_seconds:
            bits[c] = NFC_ACTIVE
        elif combining or ud.normalize("NFC", ch) != ch or c in seconds or (c in pairs and not known[c]):
            bits[c] = NFC_NEWER
    for c, (a, b) in pairs.items():
        if not known[c] and bits.get(b) == NFC_ACTIVE:
            assert bits.get(a, NFC_NEWER) == NFC_NEWER, hex(a)
            bits[a] = NFC_NEWER
    return bits


def check(table):
    def members(pattern):
        split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
        text = "".join(map(chr, SCALARS))
        return {ord(ch) for i in range(0, len(text), 4096)
                for piece, _ in split.pre_tokenize_str(text[i:i + 4096]) for ch in piece}

    for pattern, bit in ((r"\p{L}", LETTER), (r"\p{N}", NUMBER), (r"\s", SPACE),
                         (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", HEAD), (r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", TAIL)):
        assert members(pattern) == {c for c in SCALARS if table[c] & bit}, pattern
    single = Tokenizer(models.BPE({"\u0001": 0}, []))
    single.add_tokens([AddedToken("xyz", single_word=True)])
    for i in range(0, len(SCALARS), 4096):
        part = [c for c in SCALARS[i:i + 4096] if c != 1]
        for c, e in zip(part, single.encode_batch([chr(c) + "xyz" for c in part])):
            assert (not e.ids) == bool(table[c] & WORD), hex(c)


def main():
    table = [0] * 0x110000
    for c in SCALARS:
        table[c] = class_bits(c)
    for c, bits in nfc_bits().items():
        table[c] |= bits
    check(table)

    def share(values, size):
        """Cuts values into runs of `size`. Returns the distinct runs, and the index of each run
        among them."""
        seen, index = {}, []
        for i in range(0, len(values), size):
            index.append(seen.setdefault(tuple(values[i:i + size]), len(seen)))
        return list(seen), index

    blocks, block_index = share(table, BLOCK)
    chunks, chunk_index = share(block_index, CHUNK)
    assert len(blocks) <= 256 and len(chunks) <= 256
    words = [sum(bits << (8 * k) for k, bits in enumerate(block[i:i + 8]))
             for block in blocks for i in range(0, BLOCK, 8)]

    def define(declaration, items):
        print(f"\nconst {declaration}[{len(items)}] = {{")
        line = "   "
        for item in items:
            if len(line) + len(item) + 2 > 100:
                print(line)
                line = "   "
            line += f" {item},"
        print(line + "\n};")

    print("/* Written by tools/gen_unicode.py from Unicode 16.0 (NFC: 9.0). Do not edit. */")
    print('#include "text/tokenizer/unicode.h"\n')
    print("// clang-format off")
    define("uint8_t tok_unicode_chunk", [str(v) for v in chunk_index])
    define("uint8_t tok_unicode_block", [str(v) for chunk in chunks for v in chunk])
    define("uint64_t tok_unicode_words", [hex(v) for v in words])


main()
