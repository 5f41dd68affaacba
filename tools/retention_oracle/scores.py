"""The scores of docs/retention.md section 4, for each KV head of a layer, written from that text in
float64."""
import math
from types import SimpleNamespace

import numpy as np

from model import attention, softmax
from presets import rows_measured

CODE_KERNEL = 7  # for AnDPro's variant "code"
FUTURE = 512     # positions that `expected` looks ahead


def pool(x, kind, kernel):
    """Pools along the last axis; outside counts as nothing (max) or as 0 (avg, whose divisor is the
    kernel)."""
    if not x.shape[-1]:
        return x
    side = [(0, 0)] * (x.ndim - 1) + [(kernel // 2, kernel // 2)]
    padded = np.pad(x, side, constant_values=-np.inf if kind == "max" else 0.0)
    seen = np.lib.stride_tricks.sliding_window_view(padded, kernel, -1)
    return seen.max(-1) if kind == "max" else seen.sum(-1) / kernel


def projection(c):
    """a <theta, v + b>: theta is the output of attention by the softmax of scores over a
    temperature, which is also called theta."""
    v, a = c.table.v, projection_weights(c, c.q)
    anchor = projection_weights(c, c.q / c.p.theta)
    if c.p.variant == "code":
        n, size = len(v), {"token": 1, "page": c.p.page, "chunk": c.p.chunk}[c.p.unit]
        end = (n // size + (n % size > 0) - c.p.window // size) * size
        y = anchor[..., size:end] @ v[size:end]
    else:
        y = anchor @ v
    return (a * (np.einsum("rgd,nd->rgn", y, v) + c.p.bias)).sum((0, 1))


def projection_weights(c, q):
    a = attention(q, c.rows_pos, c.table)
    if c.p.variant == "alg1":
        past = ~c.in_window
        x = np.einsum("rgd,nd->rgn", q, c.table.k[past]) / math.sqrt(q.shape[-1])
        x = np.where((c.table.pos[past][None, :] <= c.rows_pos[:, None])[:, None], x, -np.inf)
        a = np.zeros_like(a)
        a[..., past] = softmax(x)
    elif c.p.variant == "code":
        a = pool(a, "max", CODE_KERNEL)
    return a


def expected(c):
    d, table = c.q.shape[-1], c.table
    late = c.rows_pos >= c.p.sinks
    angle = (c.length + np.arange(FUTURE))[:, None] * c.freq
    cos, sin = np.diag(np.cos(angle).mean(0)), np.diag(np.sin(angle).mean(0))
    turn = np.block([[cos, -sin], [sin, cos]])
    usable = table.pos >= c.p.sinks
    k, out = table.k[usable], np.zeros(len(table.pos))
    for g in range(c.q.shape[1]):
        q = c.raw[late, g]
        mean = q.mean(0)
        cov = (q - mean).T @ (q - mean) / len(q)
        mean, cov = turn @ mean, turn @ cov @ turn.T
        x = (k @ mean + np.einsum("nd,de,ne->n", k, cov, k) / (2 * math.sqrt(d))) / math.sqrt(d)
        out[usable] += softmax(x)
    return out / c.q.shape[1] * np.linalg.norm(table.v, axis=1)


def window(c):
    if c.p.variant == "raw":
        return np.einsum("rgd,nd->n", c.q, c.table.k)
    total = attention(c.q, c.rows_pos, c.table).sum((0, 1))
    return total / (c.q.shape[0] * c.q.shape[1]) if c.p.mean else total


def critical(c):
    """The base score alone; value_weight multiplies it."""
    return attention(c.q, c.rows_pos, c.table).sum((0, 1)) / (c.q.shape[0] * c.q.shape[1])


def value_weight(c):
    norms = [np.abs(c.table.v @ w.T).sum(1) for w in c.output_columns]
    return sum(norms) / len(norms)


def novelty(c):
    """The score of the first half of the selection; `window` selects the rest."""
    return c.p.novelty[c.table.pos]


def keydiff(c):
    unit = c.table.k / np.linalg.norm(c.table.k, axis=1, keepdims=True)
    mean = unit.mean(0)
    return -(unit @ mean) / np.linalg.norm(mean)


SCORES = {
    "window": window,
    "last": window,
    "accumulated": lambda c: c.table.sum,
    "projection": projection,
    "critical": critical,
    "expected": expected,
    "novelty": novelty,
    "knorm": lambda c: -np.linalg.norm(c.table.k, axis=1),
    "keydiff": keydiff,
    "vknorm": lambda c: np.linalg.norm(c.table.v, axis=1) / np.linalg.norm(c.table.k, axis=1),
    "recency": lambda c: c.table.pos.astype(float),
}


def pooled(p, s, pos, in_window):
    """Pools along the positions, whatever slots they have."""
    if not p.pool:
        return s
    s, others = s.copy(), np.flatnonzero(~in_window)
    others = others[np.argsort(pos[others])]
    s[others] = pool(s[others], p.pool["kind"], p.pool["kernel"])
    return s


def measure(p, score, model, layer, tables, rows, length):
    """For each KV head of a layer: scores of its slots after pooling, and for two-stage scores
    those of the second stage."""
    n_rows = rows_measured(p, score)
    rows = rows if n_rows is None or score == "accumulated" else rows.last(n_rows)
    out = []
    for g, table in enumerate(tables):
        mine = slice(g * model.group, (g + 1) * model.group)
        in_window = table.pos >= length - p.window
        c = SimpleNamespace(p=p, table=table, q=rows.q[:, mine], raw=rows.raw[:, mine], rows_pos=rows.pos, freq=model.freq, length=length,
                            in_window=in_window,
                            output_columns=[model.output_columns(layer, h) for h in range(mine.start, mine.stop)])
        s = SimpleNamespace(base=pooled(p, SCORES[score](c), table.pos, in_window), second=None, in_window=in_window)
        if score == "critical":
            s.second = (s.base + 1e-4) * value_weight(c)
        if score == "novelty":
            s.second = window(c)
        out.append(s)
    if p.mean:
        top = max(s.base[~s.in_window].max() for s in out if not s.in_window.all()) + 1
        for s in out:
            s.base = np.where(s.in_window, top, s.base)
    return out
