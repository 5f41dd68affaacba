#!/usr/bin/env python3
"""Answers of random JSON Schemas, judged by the package jsonschema; run by hand, no part of CI.

  grammar_random.py --probe build/tests/grammar_probe --answers 10000 --seed 1 --out FILE

Random small schemas join the supported words. Of each that compiles, answers are drawn byte by byte
from the masks and validated, and random values that the schema allows are offered, with their
members in every order. --out gets a JSON line for each answer that is invalid, each valid value
that is refused and each schema that is not supported. The exit status is 1 where an answer was
invalid.
"""

import argparse
import collections
import decimal
import itertools
import json
import random
import sys
import tempfile

import jsonschema
import numpy as np
from grammar_oracle import Octavo

NAMES = ["a", "b", "ab", "c"]
PATTERNS = ["^a", "b$", "^.$", "^[ab]+$", "c"]
TYPES = ["string", "number", "integer", "object", "array", "boolean", "null"]
END = 256  # the token behind those of single bytes
WEIGHTS = {b'"': 12, b"}": 8, b"]": 8, b",": 3, b":": 3, b"\\": 0.02}


decimal.getcontext().prec = 2000  # a remainder of the longest answer's digits is exact
DRAFT = jsonschema.Draft202012Validator
JUDGE = jsonschema.validators.extend(
    DRAFT,
    type_checker=DRAFT.TYPE_CHECKER.redefine(
        "integer",
        lambda _, v: not isinstance(v, bool)
        and (isinstance(v, int) or isinstance(v, decimal.Decimal) and v == v.to_integral_value()),
    ),
)


def exact(text):
    """JSON with numbers as they are written: doubles would round them."""
    return json.loads(text, parse_float=decimal.Decimal)


# ---- schemas -------------------------------------------------------------------------------------


class Schemas:
    """Random schemas of a few words each."""

    def __init__(self, rng):
        self.rng = rng
        self.references = []

    def chance(self, share):
        return self.rng.random() < share

    def some(self, things, most):
        return self.rng.sample(things, self.rng.randint(1, min(most, len(things))))

    def value(self, depth=2):
        rng = self.rng
        kind = rng.randrange(8 if depth > 0 else 6)
        if kind == 0:
            return rng.choice([None, True, False])
        if kind in (1, 2):
            return rng.choice([0, 1, 2, 3, -1, 1.5, 4, 10])
        if kind in (3, 4, 5):
            return "".join(rng.choice("abc") for _ in range(rng.randrange(3)))
        if kind == 6:
            return {n: self.value(depth - 1) for n in self.some(NAMES, 3)} if self.chance(0.8) else {}
        return [self.value(depth - 1) for _ in range(rng.randrange(4))]

    def schema(self, depth, kinds=None):
        """A schema; of depth 0 without schemas within it. `kinds`: types that values have."""
        rng = self.rng
        if self.chance(0.04):
            return self.chance(0.7)
        if self.references and not kinds and self.chance(0.1):
            return {"$ref": rng.choice(self.references)}
        s = {}
        if not kinds or self.chance(0.1):
            kinds = [rng.choice(TYPES)] if self.chance(0.75) else self.some(TYPES, 3)
            if self.chance(0.95):
                s["type"] = kinds[0] if len(kinds) == 1 else kinds
        elif self.chance(0.5):
            kinds = self.some(kinds, 3)
            s["type"] = kinds[0] if len(kinds) == 1 else kinds
        if "string" in kinds and self.chance(0.6):
            self.strings(s)
        if ("number" in kinds or "integer" in kinds) and self.chance(0.6):
            self.numbers(s)
        if "object" in kinds and self.chance(0.9):
            self.objects(s, depth)
        if "array" in kinds and self.chance(0.8):
            self.arrays(s, depth)
        if self.chance(0.05):
            s["enum"] = [self.value() for _ in range(rng.randint(1, 5))]
        elif self.chance(0.03):
            s["const"] = self.value()
        if depth > 0:
            self.joined(s, depth, kinds)
        return s

    def strings(self, s):
        rng = self.rng
        if self.chance(0.4):
            s["minLength"] = rng.randrange(4)
        if self.chance(0.4):
            s["maxLength"] = rng.randrange(5)
        if self.chance(0.4):
            s["pattern"] = rng.choice(PATTERNS)

    def numbers(self, s):
        rng = self.rng
        for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if self.chance(0.3):
                s[word] = rng.choice([-1, 0, 1, 2, 2.5, 5])
        if self.chance(0.15):
            s["multipleOf"] = rng.choice([1, 2, 3, 0.5])

    def objects(self, s, depth):
        rng, down = self.rng, depth - 1
        if depth > 0 and self.chance(0.8):
            s["properties"] = {n: self.schema(down) for n in self.some(NAMES, 3)}
        if self.chance(0.4):
            s["required"] = self.some(NAMES, 2)
        if self.chance(0.35):
            s["additionalProperties"] = self.schema(down) if depth > 0 and self.chance(0.5) else False
        if depth > 0 and self.chance(0.25):
            s["patternProperties"] = {p: self.schema(down) for p in self.some(PATTERNS, 2)}
        if self.chance(0.12):
            s["propertyNames"] = rng.choice(
                [{"maxLength": 1}, {"pattern": "^a"}, {"enum": ["a", "b"]}, {"not": {"const": "a"}}]
            )
        if self.chance(0.15):
            s["minProperties"] = rng.randrange(4)
        if self.chance(0.15):
            s["maxProperties"] = rng.randrange(4)
        if self.chance(0.12):
            s["dependentRequired"] = {n: self.some(NAMES, 2) for n in self.some(NAMES, 2)}
        if depth > 0 and self.chance(0.12):
            s["dependentSchemas"] = {n: self.schema(down, ["object"]) for n in self.some(NAMES, 2)}
        if self.chance(0.08):
            s["unevaluatedProperties"] = self.schema(down) if depth > 0 and self.chance(0.3) else False

    def arrays(self, s, depth):
        rng, down = self.rng, depth - 1
        if depth > 0 and self.chance(0.6):
            s["items"] = self.schema(down)
        if depth > 0 and self.chance(0.25):
            s["prefixItems"] = [self.schema(down) for _ in range(rng.randint(1, 2))]
        if self.chance(0.3):
            s["minItems"] = rng.randrange(3)
        if self.chance(0.4):
            s["maxItems"] = rng.randrange(4)
        if self.chance(0.06):
            s["uniqueItems"] = True

    def joined(self, s, depth, kinds):
        down = depth - 1
        for word, share in (("oneOf", 0.3), ("anyOf", 0.12), ("allOf", 0.12)):
            if self.chance(share):
                s[word] = [self.schema(down, kinds) for _ in range(self.rng.randint(1, 3))]
        if self.chance(0.1):
            s["not"] = self.schema(down, kinds)
        if self.chance(0.08):
            s["if"] = self.schema(down, kinds)
            for word in ("then", "else"):
                if self.chance(0.7):
                    s[word] = self.schema(down, kinds)

    def document(self):
        self.references = []
        defs = {}
        for name in ("x", "y")[: self.rng.randrange(3)]:
            defs[name] = self.schema(1)
            self.references.append(f"#/$defs/{name}")
        s = self.schema(3)
        if isinstance(s, dict) and defs:
            s["$defs"] = defs
        return s


# ---- answers -------------------------------------------------------------------------------------


def draw(engine, rng, most):
    """A text of the form that was compiled; None where none ended within `most` bytes."""
    engine.restart()
    text = b""
    while len(text) < most:
        words, may_end = engine.mask()
        if words is None:
            return None
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        allowed = [int(b) for b in allowed if b < END]
        if may_end and (not allowed or rng.random() < 0.5):
            return text
        if not allowed:
            raise RuntimeError(f"nothing may follow {text!r}")
        weights = [weight_of(bytes([b])) for b in allowed]
        byte = rng.choices(allowed, weights)[0]
        if not engine.accept(byte):
            raise RuntimeError(f"{byte} was allowed behind {text!r} and is refused")
        text += bytes([byte])
    return None


def weight_of(byte):
    if byte in WEIGHTS:
        return WEIGHTS[byte]
    if byte in b"abc0123-.{[ntfruels":
        return 2
    return 0.2 if byte in b" \n\t" else 0.03


def orders(value):
    """A value with the members of its objects in every order."""
    if isinstance(value, list):
        return [list(parts) for parts in itertools.product(*map(orders, value))]
    if not isinstance(value, dict):
        return [value]
    out = []
    for names in itertools.permutations(value):
        for parts in itertools.product(*(orders(value[n]) for n in names)):
            out.append(dict(zip(names, parts)))
    return out


class Campaign:
    def __init__(self, args):
        self.args, self.rng = args, random.Random(args.seed)
        self.counts = collections.Counter()
        self.out = open(args.out, "w") if args.out else sys.stdout
        tokens = tempfile.NamedTemporaryFile("w", suffix=".tokens")
        tokens.write("".join(f"{b:02x}\n" for b in range(256)) + "\n")
        tokens.flush()
        self.tokens = tokens
        self.engine = Octavo(args.probe, tokens.name, [b""] * 257)

    def note(self, what, **row):
        self.counts[what] += 1
        print(json.dumps({"what": what, **row}), file=self.out, flush=True)

    def answers(self, schema, validator):
        for _ in range(self.args.each):
            text = draw(self.engine, self.rng, self.args.most)
            if text is None:
                self.counts["unfinished"] += 1
                continue
            self.counts["answers"] += 1
            if not validator.is_valid(exact(text)):
                self.note("invalid", text=text.decode("utf-8", "replace"), schema=schema)

    def values(self, schema, validator, source):
        for _ in range(self.args.values):
            value = source.value()
            if not validator.is_valid(exact(json.dumps(value))):
                continue
            self.counts["values"] += 1
            if not any(self.engine.fits(json.dumps(one).encode()) for one in orders(value)[:60]):
                self.note("value refused", value=value, schema=schema)

    def run(self):
        source = Schemas(self.rng)
        while self.counts["answers"] < self.args.answers:
            schema = source.document()
            validator = JUDGE(exact(json.dumps(schema)))
            self.counts["schemas"] += 1
            refusal = self.engine.compile(schema)
            if refusal is not None:
                self.note("refused", message=refusal, schema=schema)
                continue
            self.answers(schema, validator)
            self.values(schema, validator, source)
        print(json.dumps(self.counts))
        return self.counts["invalid"] > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--probe", default="build/tests/grammar_probe")
    parser.add_argument("--answers", type=int, default=10000)
    parser.add_argument("--each", type=int, default=6, help="answers of a schema")
    parser.add_argument("--values", type=int, default=12, help="values offered to a schema")
    parser.add_argument("--most", type=int, default=300, help="bytes of an answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out")
    sys.exit(Campaign(parser.parse_args()).run())


if __name__ == "__main__":
    main()
