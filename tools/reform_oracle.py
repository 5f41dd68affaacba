"""Writes tests/golden/reform.json: embeddings of tokens and gathered sets, in float64 with numpy.

    python3 tools/reform_oracle.py [--check]

It uses none of Octavo's code (docs/reform.md says what is computed). "embeddings" has for some
tokens of a model the vectors of some heads, as hexadecimal f16, computed by the forward pass of
tools/retention_oracle. Models whose family is not that pass's appear with heads of layer 0, which
needs no attention. "gather" has 100 prompts: a seed makes the numbers of context and question by
the generator below, which tests/unit/engine_gather_test.c has too. "answers" has 100 prompts of the
demo model: what is computed again of each, and the answer, by the passes of tools/retention_oracle
with the selections of h2o-recurrent. --check compares the file with what would be written.
"""
import argparse
import json
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools/retention_oracle"))
from generate import Request  # noqa: E402
from model import Llama  # noqa: E402

MODELS = ROOT / "tests/golden/models"
OUT = ROOT / "tests/golden/reform.json"
HEADS = [(0, "k", 0), (1, "v", 0)]  # of tests/e2e/house.h
READING = {"method": "h2o-recurrent", "tokens": 48, "recurrent_chunk": 64, "rows": 16, "sinks": 8, "window": 8}
FIELDS = {"gather_tokens": 64, "gather_window": 9, "query_tokens": 6}
MARGIN = 2e-5  # between the last gathered score and the next one, so that f32 gathers alike


# ---- embeddings ----------------------------------------------------------------------------------

def unit(x):
    """Vectors [..., dim] divided by their norms; zeros stay."""
    norm = np.sqrt((x * x).sum(-1, keepdims=True))
    return np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)


def projections(model, ids, n_layers):
    """For each layer the outputs of its projections: {"q": [n, heads, dim], "k", "v"}."""
    at, tables = np.arange(len(ids)), model.new_sequence()
    if n_layers > 1:
        _, rows = model.forward(np.array(ids), at, at, tables)
        stack = lambda layer, name: np.stack([getattr(t, name) for t in layer], 1)
        return [{"q": r.raw, "k": stack(t, "raw"), "v": stack(t, "v")} for r, t in zip(rows, tables)]
    p = "model.layers.0."
    h = model.norm(model.w["model.embed_tokens.weight"][ids], p + "input_layernorm.weight")
    project = lambda m: h @ model.w[f"{p}self_attn.{m}_proj.weight"].T + model.w.get(f"{p}self_attn.{m}_proj.bias", 0)
    return [{m: project(m).reshape(len(ids), -1, model.dim) for m in "qkv"}]


def embedding_case(folder, ids, heads):
    model = Llama(ROOT / folder)
    layers = projections(model, ids, 1 + max(h[0] for h in heads))
    parts = [unit(layers[layer][kind][:, head]) for layer, kind, head in heads]
    values = np.concatenate(parts, 1).astype("<f2")
    return {"model": folder, "token_ids": ids, "heads": [list(h) for h in heads], "f16": values.tobytes().hex()}


def embedding_cases():
    demo = [1021] + [(i * i * 7 + 13 * i) % 1000 for i in range(1, 24)]
    short = [(5 * i * i + i) % 60 for i in range(6)]
    return [
        embedding_case("models/demo", demo, [(3, "q", 5), (0, "k", 3), (2, "v", 0), (1, "k", 1), (3, "v", 2)]),
        embedding_case("tests/golden/models/qwen2_f32", short, [(0, "k", 1), (0, "q", 2), (0, "v", 0)]),
        embedding_case("tests/golden/models/qwen3_f32", short, [(0, "q", 1), (0, "k", 0), (0, "v", 1)]),
    ]


# ---- gathering -----------------------------------------------------------------------------------

def numbers(seed, n):
    """n numbers in [-1, 1) with 8 bits each."""
    out, x = np.empty(n), seed
    for i in range(n):
        x = (x * 1664525 + 1013904223) % (1 << 32)
        out[i] = ((x >> 16) % 256 - 128) / 128
    return out


def scores(context, query, budget, window):
    """The largest cosine of each row of context with a row of query, less that row's background."""
    cosines = np.round(unit(context) @ unit(query).T, 10)
    background = -np.sort(-cosines, 0)[min(budget // window, len(context) - 1)]
    return np.round(cosines - background, 10).max(1)


def gather(s, budget, window, first, last):
    """The gathered tokens, and the margin of the last one taken."""
    n, half = len(s), window // 2
    if n <= budget:
        return list(range(n)), 1.0
    pooled = np.array([s[max(0, i - half):i + half + 1].max() for i in range(n)])
    middle = sorted(range(first, n - last), key=lambda i: (-pooled[i], i))
    k = budget - first - last
    kept = sorted([*range(first), *middle[:k], *range(n - last, n)])
    others = np.unique(pooled[first:n - last])
    cut = pooled[middle[k - 1]] if k else np.inf
    apart = np.abs(others - cut)
    return kept, float(apart[apart > 0].min(initial=1.0))


def ranges(ids):
    out = []
    for i in ids:
        if out and out[-1][1] == i:
            out[-1][1] = i + 1
        else:
            out.append([i, i + 1])
    return out


def gather_case(seed, index):
    """A case of a seed. Each 5th row of context repeats an earlier one, to make scores equal."""
    pick = lambda i, low, high: low + int((numbers(seed * 977 + i, 3)[2] + 1) / 2 * (high - low))
    n, m, dim = pick(1, 1, 700), pick(2, 1, 40), pick(3, 1, 24)
    first, last, window = pick(4, 0, 30), pick(5, 0, 30), 2 * pick(6, 0, 40) + 1
    budget = first + last + pick(7, 0, 300 if index % 4 else 3)
    context = numbers(seed, n * dim).reshape(n, dim)
    for i in range(5, n, 5):
        context[i] = context[(i * 7) % i]
    if index % 10 == 0:
        context[::9] = 0
    found = scores(context, numbers(seed + 1, m * dim).reshape(m, dim), budget, window)
    kept, margin = gather(found, budget, window, first, last)
    fields = {"n": n, "m": m, "dim": dim, "budget": budget, "window": window, "first": first, "last": last}
    return {"seed": seed, "zeros": index % 10 == 0, **fields, "kept": ranges(kept)}, margin


def gather_cases():
    out, seed = [], 1
    while len(out) < 100:
        case, margin = gather_case(seed, len(out))
        seed += 2
        if margin >= MARGIN:
            out.append(case)
    return out


# ---- answers -------------------------------------------------------------------------------------

class Reading(Request):
    """A prompt read with selections, and the embedding of each row."""

    def __init__(self, model, ids):
        super().__init__(model, ids, READING)
        self.parts = []

    def feed(self, ids):
        out = super().feed(ids)
        stored = {"q": lambda l, h: self.rows[l].raw[-len(ids):, h], "k": lambda l, h: self.tables[l][h].raw[-len(ids):],
                  "v": lambda l, h: self.tables[l][h].v[-len(ids):]}
        self.parts.append(np.concatenate([unit(stored[kind](l, h)) for l, kind, h in HEADS], 1))
        return out

    def embeddings(self):
        return np.concatenate(self.parts).astype("<f2").astype(float)


def prompt_of(seed):
    """Random tokens; the last ones, which ask, stand somewhere before, too."""
    ids, x = [], seed
    for _ in range(180 + seed % 90):
        x = (x * 1664525 + 1013904223) % (1 << 32)
        ids.append((x >> 16) % 1000)
    m, at = FIELDS["query_tokens"], 20 + (seed * 7) % 120
    ids[-m:] = ids[at:at + m]
    return ids


def answer_case(model, seed):
    ids, m = prompt_of(seed), FIELDS["query_tokens"]
    reading = Reading(model, ids).run()
    e, n = reading.embeddings(), len(ids) - m
    last = max(0, READING["window"] - m)
    budget, window = FIELDS["gather_tokens"] - m, FIELDS["gather_window"]
    kept, margin = gather(scores(e[:n], e[n:], budget, window), budget, window, READING["sinks"], last)
    kept += range(n, len(ids))
    answer = Request(model, [ids[i] for i in kept], {"method": "full"}, max_tokens=4).run()
    fine = margin > 3e-4 and reading.margins.least > 1e-4 and answer.logit_gap > 0.02
    return {"seed": seed, "kept": ranges(kept), "answer": answer.out} if fine else None


def answer_cases():
    model, out, seed = Llama(ROOT / "models/demo"), [], 1
    while len(out) < 100:
        case = answer_case(model, seed)
        seed += 1
        if case:
            out.append(case)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--check", action="store_true")
    a = ap.parse_args()
    lines = lambda rows: ",\n".join(json.dumps(r) for r in rows)
    text = '{"embeddings": [\n%s],\n"gather": [\n%s],\n"answers": [\n%s]}\n' % (
        lines(embedding_cases()), lines(gather_cases()), lines(answer_cases()))
    if a.check:
        sys.exit(OUT.read_text() != text and f"{OUT}: other numbers")
    OUT.write_text(text)


if __name__ == "__main__":
    main()
