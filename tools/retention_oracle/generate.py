"""Runs one request step by step, with the selections at its retention points.

    python3 tools/retention_oracle/generate.py --model models/demo --prompts FILE.jsonl
        [--page-tokens 16]

Prefill, selections, and greedy decoding over the kept tokens. Lines: {"id", "prompt_token_ids",
"retention", "max_tokens"}. For each, one output line tells what every table keeps at the end, the
tokens, and the least margin of the selections.
"""
import argparse
import json
import math

import numpy as np

import methods
import presets
from model import Llama, Rows


def ranges(positions):
    out = []
    for p in sorted(positions):
        if out and out[-1][1] == p:
            out[-1][1] = int(p) + 1
        else:
            out.append([int(p), int(p) + 1])
    return out


class Request:
    def __init__(self, model, ids, retention, page=16, max_tokens=1):
        self.cut, after = presets.input_cut(retention, len(ids))
        self.n_cut, budget = after - self.cut, presets.resolve(retention, len(ids), page, max_tokens).budget
        ids = [*ids[:self.cut], *ids[after:]]
        self.model, self.ids, self.max_tokens = model, ids, max_tokens
        self.p = presets.resolve(retention, len(ids), page, max_tokens)
        self.tables, self.length, self.rows = model.new_sequence(), 0, None
        self.margins = methods.Margins()
        self.raised = self.n_cut > 0 and len(ids) > budget
        self.logit_gap, self.out = math.inf, []
        self.p.novelty, self.last_logits = np.empty(0), None
        self.watch = lambda: None

    def feed(self, ids):
        pos = self.length + np.arange(len(ids))
        first = len(self.tables[0][0].pos) if self.p.contiguous else self.length
        summing = self.p.score == "accumulated"
        logits, rows = self.model.forward(np.array(ids), pos, first + np.arange(len(ids)), self.tables, summing)
        self.length += len(ids)
        if self.p.score == "novelty":
            self.read_novelty(ids, logits)
        if self.rows:
            rows = [Rows(*(np.concatenate((getattr(a, n), getattr(b, n))) for n in ("pos", "raw", "q"))) for a, b in zip(self.rows, rows)]
        self.rows = rows
        return logits[-1]

    def read_novelty(self, ids, logits):
        """Appends -log p of each token under the logits of the row before it."""
        before = np.vstack((self.last_logits, logits[:-1])) if self.last_logits is not None else logits[:-1]
        x = before - before.max(1, keepdims=True)
        nll = np.log(np.exp(x).sum(1)) - x[np.arange(len(x)), ids[-len(x):] if len(x) else []]
        self.p.novelty = np.concatenate((self.p.novelty, np.zeros(len(ids) - len(x)), nll))
        self.last_logits = logits[-1:]

    def point(self):
        p, later = self.p, self.length > self.p.prompt_tokens
        if p.decode and later:
            keep = methods.select_scope(p, self.model, self.tables, self.rows, self.length, self.margins)
        else:
            keep, raised = methods.select(p, self.model, self.tables, self.rows, self.length, later, self.margins)
            self.raised |= raised
        for layer, flags in zip(self.tables, keep):
            for table, flag in zip(layer, flags):
                if flag.all():
                    continue
                table.take(methods.close_up(flag, p.page, p.contiguous))
                if p.contiguous:
                    table.at = np.arange(len(table.pos))
                    table.k = self.model.rotate(table.raw[:, None], table.at)[:, 0]
        self.rows = None

    def sample(self, logits):
        best = np.sort(logits)[-2:]
        self.logit_gap = min(self.logit_gap, best[1] - best[0])
        self.out.append(int(logits.argmax()))

    def run(self):
        p = self.p
        for end in presets.prompt_points(p):
            logits = self.feed(self.ids[self.length:end])
            if p.schedule not in ("never", "input"):
                self.point()
            self.rows = None
        self.sample(logits)
        while len(self.out) < self.max_tokens:
            logits = self.feed(self.out[-1:])
            if presets.is_decode_point(p, self.length - p.prompt_tokens):
                self.point()
            self.watch()
            self.sample(logits)
        return self

    def kept(self):
        """The kept tokens: [layer][head] -> ranges of tokens of the request."""
        given = lambda pos: [x if x < self.cut else x + self.n_cut for x in pos]
        return [[ranges(given(t.pos)) for t in layer] for layer in self.tables]


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--prompts", required=True)
    ap.add_argument("--page-tokens", type=int, default=16)
    a = ap.parse_args()
    model = Llama(a.model)
    for x in map(json.loads, open(a.prompts)):
        r = Request(model, x["prompt_token_ids"], x["retention"], a.page_tokens, x.get("max_tokens", 1)).run()
        print(json.dumps({"id": x["id"], "token_ids": r.out, "budget_raised": bool(r.raised), "margin": float(r.margins.least),
                          "logit_gap": float(r.logit_gap), "kept": r.kept()}), flush=True)


if __name__ == "__main__":
    main()
