"""Draws how much of the attention mass the selections of retrieval hold (docs/retrieval.md), by
layer, against the number of blocks read.

    python3 tools/retention_oracle/recall.py --tokens TOKENS.jsonl --out bench/results/NAME
        [--model models/demo] [--block 16] [--local 32] [--epsilon 0.02]

Lines of TOKENS: {"prompt_token_ids", "token_ids"}. The model reads prompt and answer in full;
the rows of the answer's tokens select. For each row, layer and query head the recall is the softmax
mass of the blocks that the query head's KV head reads. Writes NAME.svg and prints
the numbers; with --epsilon also how many candidates the bound needs, and how many a fixed number
needs for the same mean recall.
"""
import argparse
import json
import math

import numpy as np

from model import Llama, attention

KINDS = ["MEAN", "MAX", "QUEST", "FIX", "DYNAMIC"]
MODES = {"SHARED": None, "GROUP of 2": 2, "SEPARATE": 1}
FIXED, OBSERVED = 5, 128
COLOURS = {"MEAN": "#1f77b4", "MAX": "#d62728", "QUEST": "#2ca02c", "FIX": "#9467bd", "DYNAMIC": "#ff7f0e"}


def block_scores(kind, q, keys, seen=None):
    """Scores [blocks, query heads] of q [query heads, dim] for keys [blocks, B, dim]. seen
    [blocks, B]: the attention of the prompt's end."""
    size = keys.shape[1]
    if kind == "MEAN":
        return keys.sum(1) @ q.T
    if kind == "FIX":
        return keys[:, [(2 * j + 1) * size // (2 * FIXED) for j in range(FIXED)]].sum(1) @ q.T
    if kind == "DYNAMIC":
        return keys[np.arange(len(keys)), seen.argmax(1)] @ q.T
    if kind == "MAX":
        return keys.max(1) @ q.T
    up, down = np.maximum(q, 0), np.minimum(q, 0)
    return keys.max(1) @ up.T + keys.min(1) @ down.T


class Row:
    """One query row of one layer: scores and masses of its candidates."""

    def __init__(self, a, q, tables, seen, n):
        size, self.kv = a.block, len(tables)
        self.group = len(q) // self.kv
        full, blocks = n // size, -(-n // size)
        local = -(-a.local // size)
        self.between = np.arange(1, max(full - local, 1))  # one initial block
        self.n, self.size = n, size
        scale, self.scores, self.mass, self.bound, self.always = 1 / math.sqrt(q.shape[1]), {}, [], [], []
        for h, table in enumerate(tables):
            mine = q[h * self.group:(h + 1) * self.group]
            s = mine @ table.k[:n].T * scale
            top = s.max(1, keepdims=True)
            p = np.exp(s - top)
            share = np.add.reduceat(p, np.arange(0, n, size), 1)  # [group, blocks]
            keys = table.k[self.between[0] * size:(self.between[-1] + 1) * size].reshape(len(self.between), size, -1)
            observed = seen[h][self.between[0] * size:(self.between[-1] + 1) * size].reshape(len(self.between), size)
            for kind in KINDS:
                self.scores.setdefault(kind, []).append(block_scores(kind, mine, keys, observed))
            self.bound.append(size * np.exp(block_scores("QUEST", mine, keys).T * scale - top))
            self.mass.append(share[:, self.between])
            self.always.append(share.sum(1) - share[:, self.between].sum(1))
        assert blocks >= full

    def heads(self, mode):
        together = MODES[mode] or self.kv
        return [range(h, h + together) for h in range(0, self.kv, together)]

    def recalls(self, kind, mode):
        """[query heads, candidates + 1] recall when the first k candidates are read."""
        out = []
        for together in self.heads(mode):
            order = np.argsort(-sum(self.scores[kind][h].sum(1) for h in together), kind="stable")
            for h in together:
                held = np.cumsum(np.concatenate((self.always[h][:, None], self.mass[h][:, order]), 1), 1)
                out.append(held / held[:, -1:])
        return np.concatenate(out)

    def examine(self, epsilon):
        """For each KV head alone: how many candidates the bound reads, and the recalls then."""
        read, recall = [], []
        for h in range(self.kv):
            bound, mass, base = self.bound[h], self.mass[h], self.always[h]
            with np.errstate(divide="ignore"):  # of a mass that is 0 in f64
                order = np.argsort(-(bound / base[:, None]).max(0), kind="stable")
            held = np.cumsum(np.concatenate((base[:, None], mass[:, order]), 1), 1)
            rest = np.concatenate((np.cumsum(bound[:, order[::-1]], 1)[:, ::-1], np.zeros((len(base), 1))), 1)
            fine = (rest / (rest + held) <= epsilon * (1 - 1 / 128)).all(0)
            k = int(np.argmax(fine))
            read.append(k)
            recall.extend(held[:, k] / held[:, -1])
        return read, recall


def collect(a):
    """Rows by layer."""
    model, rows = Llama(a.model), None
    for line in map(json.loads, open(a.tokens)):
        ids = np.array(line["prompt_token_ids"] + line["token_ids"][:-1])
        at, tables = np.arange(len(ids)), model.new_sequence()
        _, layers = model.forward(ids, at, at, tables)
        rows = rows or [[] for _ in layers]
        n_prompt = len(line["prompt_token_ids"])
        last = np.arange(max(n_prompt - OBSERVED, 0), n_prompt)
        for i, layer in enumerate(layers):
            seen = [attention(layer.q[last][:, h * model.group:(h + 1) * model.group], last, table).sum((0, 1))
                    for h, table in enumerate(tables[i])]
            for t in range(n_prompt, len(ids)):
                rows[i].append(Row(a, layer.q[t], tables[i], seen, t + 1))
    return rows


SHARES = np.arange(0, 1.0001, 0.02)


def curve(rows, kind, mode):
    """Mean recall at shares of the candidates."""
    points = []
    for r in rows:
        c = r.recalls(kind, mode)
        points.append(c[:, np.rint(SHARES * (c.shape[1] - 1)).astype(int)].mean(0))
    return np.mean(points, 0)


def text(x, y, words, anchor="start", size=11):
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="#333333">{words}</text>'


def draw(curves, n_layers, title):
    wide, high, left, top = 210, 150, 44, 60
    out = [text(8, 20, title, size=14), text(8, 38, "recall of the attention mass, against the share of candidates read")]
    for m, mode in enumerate(MODES):
        for layer in range(n_layers):
            x, y = left + layer * (wide + 30), top + m * (high + 60)
            out.append(text(x, y - 6, f"{mode}, layer {layer}"))
            for value in (0, 0.25, 0.5, 0.75, 1):
                level = y + high * (1 - value)
                out.append(f'<line x1="{x}" y1="{level:g}" x2="{x + wide}" y2="{level:g}" stroke="#cccccc" stroke-width="0.5"/>')
                out.append(text(x - 4, level + 4, f"{value:.2f}", "end", 9))
                out.append(text(x + value * wide, y + high + 14, f"{value:g}", "middle", 9))
            for kind in KINDS:
                points = " ".join(f"{x + s * wide:.1f},{y + high * (1 - c):.1f}" for s, c in zip(SHARES, curves[mode][kind][layer]))
                out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[kind]}" stroke-width="1.5"/>')
    total, y = left + n_layers * (wide + 30), top + len(MODES) * (high + 60)
    for i, kind in enumerate(KINDS):
        out.append(f'<line x1="{left + i * 110}" y1="{y}" x2="{left + i * 110 + 24}" y2="{y}" stroke="{COLOURS[kind]}" stroke-width="2"/>')
        out.append(text(left + i * 110 + 30, y + 4, kind))
    size = f'width="{total}" height="{y + 20}" viewBox="0 0 {total} {y + 20}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n<rect width="{total}" height="{y + 20}" fill="#ffffff"/>\n'
    return head + "\n".join(out) + "\n</svg>\n"


def compare(rows, epsilon):
    """Candidates and tokens that the bound reads beside fixed numbers of equal mean recall."""
    found = []
    for layer, mine in enumerate(rows):
        read = [r.examine(epsilon) for r in mine]
        n = np.mean([len(r.between) for r in mine])
        k = np.mean([x for ks, _ in read for x in ks])
        recalls = [x for _, rs in read for x in rs]
        fixed = {}
        for kind in KINDS:
            least = min(len(r.between) for r in mine)
            means = np.mean([r.recalls(kind, "SEPARATE")[:, :least + 1].mean(0) for r in mine], 0)
            fixed[kind] = int(np.argmax(means >= np.mean(recalls) - 1e-9)) if (means >= np.mean(recalls) - 1e-9).any() else None
        at = {share: int(np.argmax(np.mean([r.recalls("QUEST", "SEPARATE")[:, :least + 1].mean(0) for r in mine], 0) >= share))
              for share in (0.9, 0.98)}
        found.append(dict(layer=layer, candidates=n, read=k, recall=float(np.mean(recalls)), least_recall=float(min(recalls)),
                          fixed_at_equal_recall=fixed, quest_for=at))
    return found


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("--tokens", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--model", default="models/demo")
    ap.add_argument("--block", type=int, default=16)
    ap.add_argument("--local", type=int, default=32)
    ap.add_argument("--epsilon", type=float, default=0.02)
    a = ap.parse_args()
    rows = collect(a)
    curves = {mode: {kind: [curve(layer, kind, mode) for layer in rows] for kind in KINDS} for mode in MODES}
    with open(a.out + ".svg", "w") as f:
        f.write(draw(curves, len(rows), f"{len(rows[0])} rows of answers, blocks of {a.block}"))
    tables = {mode: {kind: [[round(float(x), 4) for x in layer] for layer in c] for kind, c in by.items()} for mode, by in curves.items()}
    print(json.dumps(dict(exam=compare(rows, a.epsilon)), indent=1))
    for mode in MODES:
        for kind in KINDS:
            print(mode, kind, [[tables[mode][kind][i][j] for j in (0, 1, 2, 5, 10, 25)] for i in range(len(rows))])


if __name__ == "__main__":
    main()
