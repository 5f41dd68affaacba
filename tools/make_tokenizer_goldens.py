#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/: small tokenizers trained with Hugging Face's library, and the
library's results for lines of text with these tokenizers and with the demo model's.

    pip install tokenizers==0.23.3
    python tools/make_tokenizer_goldens.py

  gpt2.json      GPT-2's split with a space put in front, no normalizer, merges as pairs
  llama3.json    Llama 3's split, NFC, ignore_merges, a BOS template, merges as strings, odd added
                 tokens
  corpus.txt     10,000 lines: the text, then for demo, gpt2, llama3 TAB n:ids:decoded, then TAB
                 pieces
  llama2.json    a BPE of characters: Prepend and Replace, byte fallback, decoder with Fuse and
                 Strip
  mistral.json   Metaspace in front of the first text alone, not split; byte fallback; odd added
                 tokens
  gemma.json     Replace, a split on spaces merged with what is before them, byte fallback
  meta.json      Metaspace always, split, and its decoder; NFC; digits by themselves; unk, some
                 bytes only
  tekken.json    tekken's split, ignore_merges
  shapes.txt     800 lines: the text, then for llama2, mistral, gemma, meta, tekken TAB
                 n:ids:decoded, TAB pieces

The text is escaped: \\xHH for control characters, bytes that are not UTF-8, and the backslash. n is
the number of ids (with special tokens added), `ids` FNV-1a over them as 32-bit little-endian words,
`decoded` FNV-1a over four texts, each with a byte 0xff behind it: the ids decoded, decoded without
special tokens, and both again with the ids in reverse order, which breaks characters apart.
`pieces` is FNV-1a over the byte lengths of the pieces into which the splits of GPT-2, Llama 3 and
Qwen cut the text; in shapes.txt, of tekken's pieces.
"""
import json
import os
import random
import struct

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "tests/golden/tokenizers")
LINES, SHAPE_LINES = 10000, 800
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
HEAD, TAIL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{HEAD}*{TAIL}+|[^\r\n\p{{L}}\p{{N}}]?{HEAD}+{TAIL}*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# The first article of the Universal Declaration of Human Rights, or its beginning.
PROSE = """
All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience and should act towards one another in a spirit of brotherhood.
Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de conscience.
Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt.
Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y conciencia.
Todos os seres humanos nascem livres e iguais em dignidade e em direitos.
Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti.
Alle mensen worden vrij en gelijk in waardigheid en rechten geboren.
Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.
Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.
Minden emberi lény szabadon születik és egyenlő méltósága és joga van.
Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.
Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.
Все люди рождаются свободными и равными в своем достоинстве и правах.
Всі люди народжуються вільними і рівними у своїй гідності та правах.
Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.
Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։
ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.
כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.
يولد جميع الناس أحراراً متساوين في الكرامة والحقوق.
تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।
সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।
மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.
มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ
人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。
すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.
ሰብዓዊ ፍጡራን ሁሉ ነጻ፤ የእኩል ክብርና መብት ባለቤቶች ሆነው ተፈጥረዋል።
Watu wote wamezaliwa huru, hadhi na haki zao ni sawa.
Semua orang dilahirkan merdeka dan mempunyai martabat dan hak-hak yang sama.
""".strip().split("\n")
CODE = r"""
for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
def f(x, *args, **kw): return {k: v for k, v in kw.items() if v is not None}
    if err := json.loads(s).get("error"): raise ValueError(f"{err!r}")
#include <stdint.h>
fn main() -> Result<(), Box<dyn Error>> { println!("{:?}", x?); Ok(()) }
SELECT id, COUNT(*) FROM t WHERE a <> 'b' GROUP BY 1 HAVING COUNT(*) >= 10;
<div class="a b" id='c'>&nbsp;text &amp; more</div>
const x = async () => await fetch(`/api/${id}?q=${encodeURIComponent(q)}`);
\frac{\partial L}{\partial w} = \sum_{i=1}^{N} (y_i - \hat{y}_i) x_i
{"key": [1, 2.5e-10, null, true], "s": "\u00e9\n"}
0x7fffffff 1_000_000 3.14159 1e10 0b1010 12345678901234567890
git commit -m "fix: don't" && ./run.sh --flag=value > /dev/null 2>&1
""".strip("\n").split("\n")
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "❤️", "👩🏾‍💻", "1️⃣", "🧑‍🚀", "🫠", "🪿", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🤷‍♀️", "☃"]
WORDS = ["don't", "I'm", "we'll", "they've", "it's", "she'd", "you're", "DON'T", "IT'S", "We'Ll", "'tis", "rock'n'roll", "'",
         "''s", "o'\u017f", "'\u017f", "x'S", "x'Sy", "WE'LLgo", "'Dx", "x'\u017fy", "l\u2019eau", "the", "of", "and", "token", "naïve", "cafe\u0301", "e\u0301toile"]
# Characters that NFC changes or must leave alone: marks in the wrong order, jamo, singletons,
# exclusions, and marks and letters that are newer than the library's normalizer.
COMBINING = ["e\u0301", "a\u0323\u0307", "a\u0307\u0323", "q\u0307\u0323", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0958",
             "\u2126", "\u212b", "\u1e9b\u0323", "o\u0308\u0304", "\u0344", "\u0f73", "\u09c7\u09be", "\u3099", "か\u3099",
             "\u1ac1\u032a", "\u0898\u0316", "\U000105d2\u0307", "\U00011935\U00011930", "\u0301", "ǖ\u0301", "\u2000"]
SPACES = [" ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "\u180e", "\u200b", "\u001c", "\u000b"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<mask>", "<mask>s", "<left>",
            "<right>", "[word]", "étoile", "e\u0301toile", "ÄÖ", "    ", "<|im_", "|>", "<|fim|>", "Ġodd"]
SHAPE_SPECIALS = ["<s>", "</s>", "<unk>", "[INST]", "[/INST]", "<|end|>", "[L]", "word", "two words", "  ", "▁X", "▁",
                  "▁▁", "<0x41>", "<0xE2>", "ABc", "\u01c5a", "\u02b0B", "//\n/", "a\u0301B"]


def scalar(rng):
    lo, hi = rng.choice([(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x600), (0x600, 0x1000), (0x1000, 0x2000), (0x2000, 0x2C00),
                         (0x3000, 0x3400), (0x4E00, 0xA000), (0xA000, 0xD800), (0xE000, 0x10000), (0x10000, 0x12000),
                         (0x16000, 0x17000), (0x1D000, 0x20000), (0x20000, 0x110000)])
    return chr(rng.randrange(lo, hi))


def prose(rng):
    words = rng.choice(PROSE).split(" ")
    start = rng.randrange(len(words))
    return " ".join(words[start:start + rng.randrange(1, 12)])


def line(rng, specials=SPECIALS):
    """One line of the corpus, as bytes."""
    kind = rng.randrange(12)
    if kind < 3:
        text = rng.choice(("", " ", "\n")) + prose(rng) + rng.choice(("", "!", "\n", " " + prose(rng)))
    elif kind == 3:
        text = rng.choice(CODE)[rng.randrange(8):]
        text = rng.choice(("", "\t", "    ", "        ")) + text + rng.choice(("", "\n", "\r\n\n"))
    elif kind == 4:
        text = "".join(rng.choice((rng.choice(EMOJI), " ", "ok")) for _ in range(rng.randrange(1, 9)))
    elif kind == 5:
        text = "".join(scalar(rng) for _ in range(rng.randrange(1, 20)))
    elif kind == 6:
        return bytes(rng.randrange(256) if rng.random() < 0.3 else b
                     for b in (prose(rng).encode() if rng.random() < 0.5 else bytes(rng.randrange(1, 16))))
    elif kind == 7:
        text = rng.choice(("", " ")).join(rng.choice((prose(rng)[:12], rng.choice(specials), rng.choice(specials)))
                                          for _ in range(rng.randrange(1, 6)))
    elif kind == 8:
        text = "".join(rng.choice((rng.choice(COMBINING), rng.choice(COMBINING), "a", " ", "z"))
                       for _ in range(rng.randrange(1, 10)))
    elif kind == 9:
        run = rng.choice(SPACES + ["a", "-", "0", "é", "字"])
        text = rng.choice(("", "x")) + run * rng.choice((2, 3, 7, 16, 40, rng.randrange(1, 130)))
        text += rng.choice(("", "y", ".", "1")) + "".join(rng.choice(SPACES) for _ in range(rng.randrange(4)))
    elif kind == 10:
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 8)))
    else:
        text = "".join(rng.choice((rng.choice("0123456789"), rng.choice("0123456789"), rng.choice("٣४五Ⅷ½²,. -")))
                       for _ in range(rng.randrange(1, 24)))
    return text.encode()


def escape(data):
    out = ""
    for ch in data.decode("utf-8", "surrogateescape"):
        c = ord(ch)
        if 0xDC80 <= c <= 0xDCFF:
            out += f"\\x{c - 0xDC00:02x}"
        elif c < 0x20 or c == 0x7F or ch == "\\":
            out += f"\\x{c:02x}"
        else:
            out += ch
    return out


def fnv(data):
    h = 0x811C9DC5
    for b in data:
        h = ((h ^ b) * 0x01000193) & 0xFFFFFFFF
    return h


def golden(tokenizer, data):
    ids = tokenizer.encode(data.decode(errors="replace")).ids
    decoded = b"".join(tokenizer.decode(order, skip_special_tokens=skip).encode() + b"\xff"
                       for order in (ids, ids[::-1]) for skip in (False, True))
    return f"{len(ids)}:{fnv(struct.pack(f'<{len(ids)}I', *ids)):08x}:{fnv(decoded):08x}"


def pieces(data, patterns=(GPT2, LLAMA3, QWEN)):
    text = data.decode(errors="replace")
    lengths = [len(piece.encode()) for pattern in patterns
               for piece, _ in pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)]
    return f"{fnv(struct.pack(f'<{len(lengths)}I', *lengths)):08x}"


def train(tokenizer, vocab_size, special, rng):
    text = PROSE * 3 + CODE * 3 + [" ".join(rng.choice(WORDS) for _ in range(8)) for _ in range(40)]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(text, trainer)


def gpt2(rng):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    train(t, 900, ["<|endoftext|>"], rng)
    t.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("<|fim|>", normalized=True)])
    return json.loads(t.to_str())


def llama3(rng):
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.normalizer = normalizers.Sequence([normalizers.NFC()])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    train(t, 1100, [], rng)
    t.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    t.add_tokens([
        # Both match at "<mask>s": the longer one wins.
        AddedToken("<mask>", normalized=False), AddedToken("<mask>s", normalized=False),
        AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("[word]", single_word=True), AddedToken("e\u0301toile", normalized=True),
        AddedToken("ÄÖ", normalized=False), AddedToken("    ", normalized=False), AddedToken("Ġodd", normalized=False)])
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                      special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])])
    data = json.loads(t.to_str())
    # Without some merges, tokens stay in the vocabulary that only ignore_merges can reach.
    merges = [m for i, m in enumerate(data["model"]["merges"]) if i % 9 != 5]
    data["model"]["merges"] = [" ".join(m) for m in merges]
    return data


def characters(rng, size):
    """Vocabulary and merges of a BPE of characters that has a token for every byte."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    text = PROSE * 3 + CODE * 3 + [" ".join(rng.choice(WORDS) for _ in range(8)) for _ in range(40)]
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, special_tokens=special, limit_alphabet=220,
                                                    show_progress=False))
    model = json.loads(t.to_str())["model"]
    return model["vocab"], [tuple(m) for m in model["merges"]]


def shape(model, normalizer, pre_tokenizer, decoder, normalized=False):
    t = Tokenizer(model)
    if normalizer:
        t.normalizer = normalizer
    if pre_tokenizer:
        t.pre_tokenizer = pre_tokenizer
    t.decoder = decoder
    t.add_special_tokens([AddedToken(s, normalized=normalized) for s in ("<unk>", "<s>", "</s>")])
    t.add_special_tokens([AddedToken("[INST]", normalized=False), AddedToken("[/INST]", normalized=False),
                          AddedToken("<|end|>", normalized=False, rstrip=True)])
    t.add_tokens([AddedToken("[L]", normalized=False, lstrip=True), AddedToken("word", single_word=True),
                  AddedToken("two words", normalized=True), AddedToken("▁X", normalized=True)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                     special_tokens=[("<s>", t.token_to_id("<s>"))])
    return json.loads(t.to_str())


FALLS_BACK = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def llama2(vocab, merges):
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    data = shape(model, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None,
                 decoders.Sequence(FALLS_BACK + [decoders.Strip(" ", 1, 0)]), normalized=True)
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    return data


def mistral(vocab, merges):
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return shape(model, None, pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False),
                 decoders.Sequence(FALLS_BACK + [decoders.Strip(" ", 1, 0)]))


def gemma(vocab, merges):
    # These merges join two words across a space.
    vocab = {**vocab, "e▁": len(vocab), "e▁t": len(vocab) + 1}
    model = models.BPE(vocab, [("e", "▁")] + merges + [("e▁", "t")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return shape(model, normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"),
                 decoders.Sequence(FALLS_BACK))


def meta(vocab, merges):
    vocab = {token: i for i, token in enumerate(t for t in vocab if t not in ("<0xE4>", "<0xC3>", "<0xF0>"))}
    model = models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True)
    pre = pre_tokenizers.Sequence([pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True),
                                   pre_tokenizers.Digits(individual_digits=True)])
    return shape(model, normalizers.NFC(), pre, decoders.Metaspace("▁", prepend_scheme="always", split=True))


def tekken(rng):
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(TEKKEN), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    train(t, 800, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], rng)
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return json.loads(t.to_str())


def save(name, data):
    path = os.path.join(OUT, name + ".json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=False, indent=0, separators=(",", ":"))
        f.write("\n")
    return path


def write_lines(name, n, rng, paths, specials, patterns):
    tokenizers = [Tokenizer.from_file(p) for p in paths]
    with open(os.path.join(OUT, name), "w", encoding="utf-8") as f:
        for _ in range(n):
            data = line(rng, specials)
            f.write("\t".join([escape(data)] + [golden(t, data) for t in tokenizers] + [pieces(data, patterns)]) + "\n")


def main():
    os.makedirs(OUT, exist_ok=True)
    rng = random.Random(20250101)
    paths = [os.path.join(ROOT, "models/demo/tokenizer.json")]
    paths += [save(name, make(rng)) for name, make in (("gpt2", gpt2), ("llama3", llama3))]
    write_lines("corpus.txt", LINES, rng, paths, SPECIALS, (GPT2, LLAMA3, QWEN))
    rng = random.Random(20250102)
    trained = characters(rng, 900)
    paths = [save(f.__name__, f(*trained)) for f in (llama2, mistral, gemma, meta)] + [save("tekken", tekken(rng))]
    write_lines("shapes.txt", SHAPE_LINES, rng, paths, SHAPE_SPECIALS, (TEKKEN,))


main()
