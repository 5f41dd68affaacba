#!/usr/bin/env python3
"""Compares Octavo's forms with xgrammar's and llguidance's; run by hand, no part of CI.

  grammar_oracle.py support FOLDER    which schemas compile, and which labelled instances fit
  grammar_oracle.py masks FOLDER      masks on (schema, prefix) pairs, differences by class

FOLDER has files of MaskBench: {"schema": ..., "tests": [{"valid": bool, "data": ...}]}. --tokens
names a file with the bytes of a token in hex on each line, the last one empty (the end token).
--probe is the program grammar_probe. Packages: numpy, jsonschema, and the oracles xgrammar
(apache-tvm-ffi, pydantic) and llguidance.
"""

import argparse
import collections
import json
import pathlib
import random
import subprocess
import sys
import time
import types

import jsonschema
import numpy as np


# ---- engines -------------------------------------------------------------------------------------


class Octavo:
    """Talks to grammar_probe."""

    name = "octavo"

    def __init__(self, probe, path, tokens):
        self.words = (len(tokens) + 31) // 32
        self.command = [probe, path]
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, line, body=b""):
        self.process.stdin.write(line.encode() + b"\n" + body)
        self.process.stdin.flush()
        answer = self.process.stdout.readline().decode("utf-8", "replace").split(None, 2)
        if not answer:
            raise RuntimeError("grammar_probe ended")
        return answer

    def compile(self, schema):
        """None, or why it was refused."""
        text = json.dumps(schema).encode()
        answer = self.ask(f"schema {len(text)}", text)
        self.seconds = float(answer[1])
        return None if answer[0] == "ok" else answer[2].strip()

    def fits(self, text):
        answer = self.ask(f"text {len(text)}", text)
        return answer[0] == "ok" and answer[1] == "1"

    def restart(self, text=b""):
        return self.ask(f"text {len(text)}", text)[0] == "ok"

    def accept(self, token):
        return self.ask(f"accept {token}")[0] == "ok"

    def mask(self):
        """Words of the mask, and whether the answer may end."""
        answer = self.ask("mask")
        if answer[0] != "mask":
            return None, False
        words = self.process.stdout.read(4 * self.words)
        return np.frombuffer(words, np.uint32).copy(), answer[1] == "1"


def stub_torch():
    """xgrammar's module names types of torch and transformers; masks go through numpy as well."""
    if "torch" in sys.modules:
        return
    torch = types.ModuleType("torch")
    torch.int32 = np.int32
    torch.Tensor = torch.LongTensor = torch.FloatTensor = np.ndarray
    torch.tensor = lambda value, dtype=None: np.array(value, dtype)
    transformers = types.ModuleType("transformers")
    for name in ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast", "LogitsProcessor"):
        setattr(transformers, name, type(name, (), {}))
    sys.modules.update(torch=torch, transformers=transformers)


class Xgrammar:
    name = "xgrammar"

    def __init__(self, tokens):
        try:
            import torch  # noqa: F401
        except ImportError:
            import tvm_ffi  # noqa: F401  looks for torch itself

            stub_torch()
        import xgrammar

        self.module = xgrammar
        self.end = len(tokens) - 1
        info = xgrammar.TokenizerInfo(
            tokens[:-1] + [b"</s>"], vocab_size=len(tokens), stop_token_ids=[self.end]
        )
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.words = np.zeros((1, (len(tokens) + 31) // 32), np.int32)

    def compile(self, schema):
        start = time.monotonic()
        try:
            compiled = self.compiler.compile_json_schema(
                json.dumps(schema), any_whitespace=True, strict_mode=False
            )
            self.matcher = self.module.GrammarMatcher(compiled)
        except Exception as error:  # its binding raises several kinds
            return str(error).strip().splitlines()[-1][:200]
        finally:
            self.seconds = time.monotonic() - start
        return None

    def restart(self, text=b""):
        self.matcher.reset()
        return not text or self.matcher.accept_string(text)

    def fits(self, text):
        if not self.restart(text):
            return False
        self.matcher.fill_next_token_bitmask(self.words, 0)
        word = self.words.view(np.uint32)[0, self.end // 32]
        return bool(word >> (self.end % 32) & 1)

    def accept(self, token):
        return self.matcher.accept_token(token)

    def mask(self):
        if not self.matcher.fill_next_token_bitmask(self.words, 0):
            self.words.fill(-1)
        out = self.words.view(np.uint32)[0].copy()
        may_end = bool(out[self.end // 32] >> np.uint32(self.end % 32) & np.uint32(1))
        out[self.end // 32] &= ~np.uint32(1 << (self.end % 32))
        return out, may_end


class Llguidance:
    name = "llguidance"

    def __init__(self, tokens):
        import llguidance

        class Plain:
            eos_token_id, bos_token_id = len(tokens) - 1, None
            special_token_ids = [len(tokens) - 1]

        Plain.tokens = tokens[:-1] + [b"<|end|>"]
        Plain.__call__ = lambda _self, text: list(text.encode())
        self.module = llguidance
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Plain()))
        self.end = len(tokens) - 1
        self.single = {t: i for i, t in enumerate(tokens) if len(t) == 1}

    def compile(self, schema):
        start = time.monotonic()
        try:
            grammar = self.module.LLMatcher.grammar_from_json_schema(
                json.dumps(schema), defaults={"whitespace_pattern": "[ \\n\\t]*", "lenient": False, "coerce_one_of": True}
            )
            self.matcher = self.module.LLMatcher(self.tokenizer, grammar, log_level=0)
        except Exception as error:
            return str(error).strip().splitlines()[0][:200]
        finally:
            self.seconds = time.monotonic() - start
        return self.matcher.get_error()[:200] if self.matcher.is_error() else None

    def restart(self, text=b""):
        self.matcher.reset()
        return all(self.accept(self.single[bytes([byte])]) for byte in text)

    def fits(self, text):
        return self.restart(text) and self.matcher.is_accepting()

    def accept(self, token):
        return bool(self.matcher.consume_token(token))

    def mask(self):
        if self.matcher.is_stopped():
            return None, self.matcher.is_accepting()
        words = np.frombuffer(self.matcher.compute_bitmask(), np.uint32).copy()
        may_end = bool(words[self.end // 32] >> np.uint32(self.end % 32) & np.uint32(1))
        words[self.end // 32] &= ~np.uint32(1 << (self.end % 32))
        return words, may_end


def read_tokens(path):
    return [bytes.fromhex(line.strip()) for line in open(path)]


def open_engines(args, tokens):
    engines = []
    for name in args.engines.split(","):
        if name == "octavo":
            engines.append(Octavo(args.probe, args.tokens, tokens))
        else:
            engines.append({"xgrammar": Xgrammar, "llguidance": Llguidance}[name](tokens))
    return engines


# ---- support -------------------------------------------------------------------------------------


def written(value):
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def support(args):
    tokens = read_tokens(args.tokens)
    engines = open_engines(args, tokens)
    out = open(args.out, "a") if args.out else sys.stdout
    for path in chosen(args):
        test = json.loads(path.read_text())
        row = {"name": path.stem}
        for engine in engines:
            refusal = engine.compile(test["schema"])
            row[engine.name] = {"seconds": round(engine.seconds, 6)}
            if refusal is not None:
                row[engine.name]["refused"] = refusal
                continue
            wrong = []
            for i, case in enumerate(test.get("tests", [])):
                text = written(case["data"])
                if engine.fits(text) != case["valid"]:
                    wrong.append([i, case["valid"]])
            row[engine.name]["wrong"] = wrong
        print(json.dumps(row), file=out, flush=True)


def chosen(args):
    paths = sorted(pathlib.Path(args.folder).glob("*.json"))
    random.Random(args.seed).shuffle(paths)
    return paths[args.skip : args.skip + args.most]


# ---- masks ---------------------------------------------------------------------------------------


def place_of(text):
    """Where in JSON a text ends: string, name, escape, number, word or between."""
    stack, inside, escape, name, expects_name = [], False, 0, False, False
    last = ""
    for char in text.decode("utf-8", "replace"):
        if inside:
            if escape:
                escape = 4 if escape == 1 and char == "u" else 0 if escape == 1 else escape - 1
                escape = 0 if escape == 1 else escape
            elif char == "\\":
                escape = 1
            elif char == '"':
                inside, expects_name, last = False, False, char
        elif char == '"':
            inside, name = True, expects_name
        else:
            if char in "{[":
                stack.append(char)
            elif char in "}]" and stack:
                stack.pop()
            expects_name = bool(stack) and stack[-1] == "{" and char in "{," or (
                expects_name and char in " \n\t\r"
            )
            last = char
    if inside:
        return "escape" if escape else "name" if name else "string"
    if last and last in "0123456789-+.eE" and not text[-1:].isspace():
        return "number"
    return "word" if last.isalpha() and not text[-1:].isspace() else "between"


def class_of(text, byte):
    """The class of a difference: where a text ends, and the byte that one engine refuses there."""
    place, char = place_of(text), chr(byte)
    if place in ("between", "word", "number") and (char in " \n\t\r"):
        return "white space"
    if place == "escape" or (place in ("string", "name") and char == "\\"):
        return "escapes in strings"
    if place in ("string", "name") and (byte >= 0x7F or byte < 0x20):
        return "bytes of characters in strings"
    if place == "name":
        return "names: order, twice, additional"
    if place == "string":
        return "texts: pattern, format, length, enum"
    if place == "number":
        return "numbers: format, bounds" if char in "0123456789.eE+-" else "end of a value"
    if char in ",}]":
        return "members and elements: how many, required"
    return "kinds of values" if place == "between" else "words"


def split(text, by_first, rng):
    """Tokens of a text, at random among those that fit, longer ones more often."""
    out, at = [], 0
    while at < len(text):
        fits = [t for t, b in by_first[text[at]] if text.startswith(b, at)]
        lengths = [len(TOKENS[t]) ** 2 for t in fits]
        token = rng.choices(fits, lengths)[0]
        out.append(token)
        at += len(TOKENS[token])
    return out


def words_of(flags):
    flags = flags + [False] * (-len(flags) % 32)
    return np.packbits(np.array(flags), bitorder="little").view(np.uint32)


def bits(words):
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def taken(engine, text, more):
    """How many bytes of `more` an engine follows behind a text."""
    if isinstance(engine, Octavo):
        whole = text + more
        answer = engine.ask(f"text {len(whole)}", whole)
        return len(more) if answer[0] == "ok" else max(0, int(answer[1]) - len(text))
    if not engine.restart(text):
        return 0
    for i in range(len(more)):
        if not engine.accept(SINGLE[more[i : i + 1]]):
            return i
    return len(more)


def completed(engine, text, rng, most=600):
    """A whole text that an engine allows and that begins so; None where it does not end soon."""
    if not engine.restart(text):
        return None
    for step in range(most):
        words, may_end = engine.mask()
        if may_end:
            return text
        if words is None:
            return None
        allowed = [b for b, t in SINGLE.items() if words[t // 32] >> np.uint32(t % 32) & 1]
        if not allowed:
            return None
        good = [b for b in (b'"', b"}", b"]", b"0", b"1", b",", b":", b"a") if b in allowed]
        byte = good[0] if good and (step < 100 or rng.random() < 0.7) else rng.choice(allowed)
        if not engine.accept(SINGLE[byte]):
            return None
        text += byte
    return None


def is_valid(schema, text):
    """None where it cannot be said."""
    try:
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
        return validator.is_valid(json.loads(text))
    except ValueError:
        return False
    except Exception:
        return None


class Comparison:
    def __init__(self, args, engines):
        self.args, self.engines, self.rng = args, engines, random.Random(args.seed)
        self.pairs = collections.Counter()
        self.out = open(args.out, "a")

    def difference(self, name, schema, oracle, text, tokens, octavo_has):
        """One row for each class among tokens that one engine alone allows."""
        octavo, seen = self.engines[0], set()
        refuser, allower = (oracle, octavo) if octavo_has else (octavo, oracle)
        for token in self.rng.sample(sorted(tokens), min(len(tokens), 12)):
            more = TOKENS[token]
            at = taken(refuser, text, more)
            if at == len(more):
                kind = "a token refused whose bytes are allowed"
            else:
                kind = class_of(text + more[:at], more[at])
            if kind in seen:
                continue
            seen.add(kind)
            whole = completed(allower, text + more, self.rng)
            row = {"name": name, "oracle": oracle.name, "only": "octavo" if octavo_has else "oracle"}
            row.update(kind=kind, text=(text + more)[-80:].decode("utf-8", "replace"))
            row.update(at=more[at : at + 4].decode("utf-8", "replace"))
            row["valid"] = None if whole is None else is_valid(schema, whole)
            row["whole"] = whole and whole[-200:].decode("utf-8", "replace")
            print(json.dumps(row), file=self.out, flush=True)

    def follow(self, name, schema, text, oracles):
        octavo, most = self.engines[0], self.args.prefixes
        tokens = split(text, BY_FIRST, self.rng)[:most]
        live = [e for e in oracles if e.restart()]
        octavo.restart()
        prefix, reported = b"", collections.Counter()
        for token in tokens + [None]:
            own, own_end = octavo.mask()
            if own is None:
                break
            for oracle in list(live):
                words, end = oracle.mask()
                if words is not None:
                    words = words[: len(own)] & KNOWN
                same = words is None and own_end or (
                    words is not None and np.array_equal(own, words) and own_end == end
                )
                like = words is not None and np.array_equal(own & PLAIN, words & PLAIN)
                what = "equal" if same else "equal but for CR" if like else "different"
                self.pairs[oracle.name, what] += 1
                if what == "equal but for CR" and own_end == end:
                    continue
                if same or words is None or reported[oracle.name] >= 3:
                    continue
                reported[oracle.name] += 1
                mine, theirs = bits(own), bits(words)
                if mine - theirs:
                    self.difference(name, schema, oracle, prefix, mine - theirs, True)
                if theirs - mine:
                    self.difference(name, schema, oracle, prefix, theirs - mine, False)
                if own_end != end:
                    row = {"name": name, "oracle": oracle.name, "kind": "end of the answer"}
                    row.update(only="octavo" if own_end else "oracle", valid=is_valid(schema, prefix))
                    print(json.dumps(row), file=self.out, flush=True)
                octavo.restart(prefix)  # the differences moved them
                oracle.restart(prefix)
            if token is None or not octavo.accept(token):
                break
            prefix += TOKENS[token]
            live = [e for e in live if e.accept(token)]
            if not live:
                break

    def schema(self, path):
        test = json.loads(path.read_text())
        texts = [written(t["data"]) for t in test.get("tests", []) if t["valid"]]
        texts = [t for t in texts if len(t) < 4000][: self.args.texts]
        if not texts or self.engines[0].compile(test["schema"]) is not None:
            return
        oracles = [e for e in self.engines[1:] if e.compile(test["schema"]) is None]
        for text in texts:
            self.follow(path.stem, test["schema"], text, oracles)


def masks(args):
    global TOKENS, SINGLE, BY_FIRST, KNOWN, PLAIN
    TOKENS = read_tokens(args.tokens)
    SINGLE = {t: i for i, t in reversed(list(enumerate(TOKENS))) if len(t) == 1}
    BY_FIRST = collections.defaultdict(list)
    KNOWN = words_of([bool(token) for token in TOKENS])
    PLAIN = words_of([bool(token) and b"\r" not in token for token in TOKENS])
    for i, token in enumerate(TOKENS[:-1]):
        BY_FIRST[token[0]].append((i, token))
    comparison = Comparison(args, open_engines(args, TOKENS))
    stop = time.monotonic() + args.seconds
    for number, path in enumerate(chosen(args)):
        if time.monotonic() > stop:
            break
        comparison.schema(path)
    row = {f"{oracle} {what}": n for (oracle, what), n in comparison.pairs.items()}
    print(json.dumps({"schemas": number, **row}), file=comparison.out, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["support", "masks"])
    parser.add_argument("folder")
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--probe", default="build/tests/grammar_probe")
    parser.add_argument("--engines", default="octavo,xgrammar,llguidance")
    parser.add_argument("--most", type=int, default=10**9, help="schemas")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=1e9, help="masks: no new schema after")
    parser.add_argument("--texts", type=int, default=3, help="masks: instances of a schema")
    parser.add_argument("--prefixes", type=int, default=80, help="masks: prefixes of a text")
    args = parser.parse_args()
    {"support": support, "masks": masks}[args.what](args)


if __name__ == "__main__":
    main()
