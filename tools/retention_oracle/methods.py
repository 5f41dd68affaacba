"""One selection as in docs/retention.md sections 2 and 3: which slots of each table stay."""
import copy
from types import SimpleNamespace

import numpy as np

from presets import layer_budgets, scope_allowance
from scores import measure


FAINT = 1e-30  # below it f32 has no digits: a kernel may compute such a score as zero


class TooNear(Exception):
    """A cut has a smaller margin than the caller accepts."""


class Margins:
    """Margins of the selections: for each cut the least difference between a score kept and one
    dropped, as a share of the cut. Equal scores have no margin of 0 where they are one number (max
    pooling), because their order decides. Tables whose cut is between faint scores are `soft`: how
    many slots stay is certain, not which."""

    def __init__(self):
        self.least = float("inf")
        self.n_cuts = 0
        self.equal_is_one = self.slots_are_units = False
        self.bears = 0.0
        self.soft, self.where = set(), []

    def cut(self, kept, dropped):
        if not len(kept) or not len(dropped):
            return
        self.n_cuts += 1
        low, high = kept.min(), dropped.max()
        if max(abs(low), abs(high)) < FAINT:
            self.soft |= set(self.where)
            if not self.slots_are_units:
                self.found(0.0)
            return
        if low == high and not self.equal_is_one:
            self.found(0.0)
        above, below = kept[kept > high], dropped[dropped < low]
        gaps = [x for x in (above.min() - high if len(above) else None, low - below.max() if len(below) else None) if x is not None]
        if not gaps:
            return
        scale = max(abs(low), abs(high), 1e-300)
        self.found(min(gaps) / scale)

    def found(self, gap):
        self.least = min(self.least, gap)
        if gap < self.bears:
            raise TooNear


def ranked(score):
    """Indices by score descending, then index; NaN last."""
    return np.lexsort((np.arange(len(score)), np.where(np.isnan(score), np.inf, -score), np.isnan(score)))


class Units:
    """The units of one table (or of tables alike): the unit of each slot, protected slots,
    candidates."""

    def __init__(self, p, pos, length):
        self.n = len(pos)
        self.size = {"token": 1, "chunk": p.chunk, "page": p.page}[p.unit]
        # Tokens and chunks are units of neighbouring positions, whatever slots they have; pages are
        # the table's own.
        self.by_position = np.arange(self.n) if p.unit == "page" else np.argsort(pos)
        self.of = np.empty(self.n, int)
        self.of[self.by_position] = np.arange(self.n) // self.size
        sink, window = pos < p.sinks, pos >= length - p.window
        self.stays = np.zeros(self.n, bool) if p.mean else sink | window
        if p.unit == "page":
            partial = self.n % p.page > 0
            held = set(self.of[self.stays]) | ({self.of.max()} if partial else set())
            self.stays = np.isin(self.of, list(held))
        self.candidate = ~self.stays
        if p.variant == "alg3" and p.unit == "chunk":
            self.candidate = ~sink | np.isin(self.of, self.of[window])
        self.ids = np.unique(self.of[self.candidate])
        # The number of protected ones, counted as step 6 does: pages or tokens.
        self.p = len(np.unique(self.of[self.stays])) if p.unit == "page" else int(self.stays.sum())
        self.n_units = int(self.of.max()) + 1

    def scores(self, s, mean):
        total = np.zeros(self.n_units)
        np.add.at(total, self.of[self.candidate], s[self.candidate])
        if mean:
            total /= np.maximum(1, np.bincount(self.of[self.candidate], minlength=self.n_units))
        return total[self.ids]

    def keep(self, selected):
        return self.stays | (np.isin(self.of, list(selected)) & self.candidate)

    def room(self, p, budget):
        """Units to select beside the protected ones, and whether that raised the budget."""
        if p.mean:
            return max(1, int(np.floor(self.n_units * p.share + 1e-6))), False
        if p.unit == "chunk":
            n = (budget - self.p) // p.chunk
            return max(1, n), n < 1
        if p.unit == "page":
            budget //= p.page
        return max(budget, self.p + 1) - self.p, budget < self.p + 1

    def fits(self, p, budget):
        return p.unit != "page" and not p.mean and self.n <= budget


def select_units(p, u, s, second, budget, margins):
    room, raised = u.room(p, budget)
    if u.fits(p, budget) or room >= len(u.ids):
        return np.ones(u.n, bool), raised and not u.fits(p, budget)
    score = u.scores(s, p.mean)
    if second is None:
        order = ranked(score)
        note(margins, u, score, order[:room], order[room:])
        return u.keep(u.ids[order[:room]]), raised
    assert p.unit == "token"
    return u.keep(u.ids[two_stages(u, score, second, room, budget, margins)]), raised


def two_stages(u, score, second, room, budget, margins):
    """Selects up to half of the budget by the first score, the rest by the second; returns indices
    of u.ids."""
    first = min(room, max(0, budget // 2 - u.p))
    order = ranked(score)
    note(margins, u, score, order[:first], order[first:])
    rest = np.sort(order[first:])
    second = second[u.by_position[u.ids]]
    again = rest[ranked(second[rest])]
    note(margins, u, second, again[:room - first], again[room - first:])
    return np.concatenate((order[:first], again[:room - first]))


def note(margins, u, score, kept, dropped):
    margins.cut(score[kept], score[dropped])


def select_adaptive(p, us, scores, budget, margins):
    """Selects with a budget that the heads of a layer share."""
    n_heads = len(us)
    if p.unit != "page" and sum(u.n for u in us) <= n_heads * budget:
        return [np.ones(u.n, bool) for u in us], False
    if p.unit == "chunk":
        n = (n_heads * budget - sum(u.p for u in us)) // p.chunk
        total, raised = max(1, n), n < 1
        floors = [int(np.floor(p.floor * budget / p.chunk + 1e-6)) - u.p // p.chunk for u in us]
    else:
        b = budget // p.page if p.unit == "page" else budget
        total, raised = sum(max(b, u.p + 1) - u.p for u in us), any(u.p + 1 > b for u in us)
        floors = [int(np.floor(p.floor * b + 1e-6)) - u.p for u in us]
    unit_scores = [u.scores(s.base, False) for u, s in zip(us, scores)]
    selected, rest = [], []
    for h, (u, s, f) in enumerate(zip(us, unit_scores, floors)):
        order, f = ranked(s), max(0, f)
        note(margins, u, s, order[:f], order[f:])
        selected.append(list(u.ids[order[:f]]))
        rest += [(s[i], h, u.ids[i]) for i in sorted(order[f:])]
    room = max(0, total - sum(map(len, selected)))
    order = ranked(np.array([x[0] for x in rest]))
    joint = np.array([x[0] for x in rest])
    margins.cut(joint[order[:room]], joint[order[room:]])
    for i in order[:room]:
        selected[rest[i][1]].append(rest[i][2])
    if scores[0].second is not None:  # each head selects anew with the share that it won
        for h, (u, s) in enumerate(zip(us, scores)):
            selected[h] = u.ids[two_stages(u, u.scores(s.base, False), s.second, len(selected[h]), u.p + len(selected[h]), margins)]
    return [u.keep(c) for u, c in zip(us, selected)], raised


def at_layer(p, layer, layers):
    """The policy of one scope of layers: the two halves of the hybrid allocator differ."""
    if p.allocator != "hybrid":
        return p
    q = copy.copy(p)
    lower = layer < -(-layers // 2)
    q.unit, q.pool = ("chunk", None) if lower else ("token", p.pool)
    return q


def select(p, model, tables, rows, length, later, margins):
    """Returns keep[layer][KV head], a flag for each slot, and whether a budget was raised."""
    score = p.later if later and p.later else p.score
    keep, any_raised = [], False
    budgets = layer_budgets(p, model.layers)
    for layer in range(model.layers):
        if layer % p.reuse_layers:
            keep.append(keep[-1])
            continue
        margins.equal_is_one = bool(p.pool) and p.pool["kind"] == "max"
        margins.slots_are_units = p.unit == "token"
        followers = range(layer, min(layer + p.reuse_layers, model.layers))
        q, budget = at_layer(p, layer, model.layers), budgets[layer // p.reuse_layers]
        scores = measure(q, score, model, layer, tables[layer], rows[layer], length)
        if q.scope == "layer":
            scores = [SimpleNamespace(base=sum(s.base for s in scores), second=None if scores[0].second is None else sum(s.second for s in scores))]
        us = [Units(q, t.pos, length) for t in tables[layer][:len(scores)]]
        if q.allocator.endswith("adaptive"):
            margins.where = [(l, h) for l in followers for h in range(model.kv)]
            flags, raised = select_adaptive(q, us, scores, budget, margins)
        else:
            flags, raised = [], False
            for h, (u, s) in enumerate(zip(us, scores)):
                margins.where = [(l, g) for l in followers for g in ([h] if q.scope == "head" else range(model.kv))]
                flag, r = select_units(q, u, s.base, s.second, budget, margins)
                flags.append(flag)
                raised |= r
        keep.append(flags * (len(tables[layer]) // len(flags)))
        any_raised |= raised
    return keep, any_raised


def select_scope(p, model, tables, rows, length, margins):
    """SCOPE's decode policies, under which the prompt's slots are frozen."""
    d, generated, keep = p.decode, length - p.prompt_tokens, []
    allowed, margins.equal_is_one, margins.slots_are_units = scope_allowance(d, generated), False, True
    plain = SimpleNamespace(variant=None, mean=False, pool=None, window=0, rows=None, bias=0.0, theta=1.0)
    for layer in range(model.layers):
        flags = []
        if layer % p.reuse_layers:
            keep.append(keep[-1])
            continue
        plain.rows = 1
        for h, (table, s) in enumerate(zip(tables[layer], measure(plain, d.score, model, layer, tables[layer], rows[layer], length))):
            margins.where = [(l, h) for l in range(layer, min(layer + p.reuse_layers, model.layers))]
            stays = (table.pos < p.prompt_tokens) | (table.pos >= length - d.beta2)
            if (table.pos >= p.prompt_tokens).sum() > allowed:
                others = np.flatnonzero(~stays)
                others = others[np.argsort(table.pos[others])]
                order, n = others[ranked(s.base[others])], allowed - d.beta2
                margins.cut(s.base[order[:n]], s.base[order[n:]])
                stays[order[:n]] = True
            else:
                stays[:] = True
            flags.append(stays)
        keep.append(flags)
    return keep


def close_up(keep, page, contiguous):
    """The kept slots in the order that the table has after a selection."""
    kept, n = np.flatnonzero(keep), len(keep)
    whole = all(keep[i:i + page].all() or not keep[i:i + page].any() for i in range(0, n, page))
    if contiguous or whole or n - len(kept) > page:
        return kept
    order = np.arange(len(kept))
    order[~keep[:len(kept)]] = kept[kept >= len(kept)]
    return order
