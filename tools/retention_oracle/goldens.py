"""Writes tests/golden/retention_methods.json: what every method keeps, by the oracle.

    python3 tools/retention_oracle/goldens.py [--only WORD ...] [--keep] [--out FILE]

A case moves to another place of its prompt until every selection in it has a margin of at least
MARGIN (as a share of the score at the cut) and every greedy token one of at least GAP, so that
engines with other roundings must select alike. "soft" names the [layer, head] of tables of which
only the size is certain: a trained model's sharp heads give most tokens less attention than f32 can
tell from none.
"""
import argparse
import json
import pathlib
import random

from generate import Request
from methods import TooNear
from model import Llama

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARGIN, GAP, PLACES = 5e-5, 5e-4, 24
DEMO, GQA1, GQA8 = "models/demo", "tests/golden/models/gqa1_f32", "tests/golden/models/gqa8_bf16"
GQA4 = "tests/golden/models/gqa4_tied_f32"
ALL = {DEMO: 4, GQA1: 3, GQA4: 2, GQA8: 1}
# Sharp heads of a trained model leave many tokens with the attention of exactly one row, their own:
# such ties cannot be broken by sums of rows.
TIED = {(DEMO, "h2o"), (DEMO, "pyramidinfer"), (DEMO, "infinipot")}


def case(name, retention, n, model=DEMO, tokens=8, heads=None, layers=1, page=16, prompt=None):
    """A case; heads: KV heads in a group (None = 1)."""
    return dict(name=name, model=model, page_tokens=page, layers_per_group=layers, heads_per_group=heads or 1,
                prompt=prompt or {DEMO: "niah", GQA1: "96", GQA4: "64", GQA8: "100"}[model], n=n, max_tokens=tokens, retention=retention)


def m(method, **more):
    return {"method": method, **more}


def small(model):
    """Presets whose large constants are made small enough to act in a short context."""
    t = lambda **d: d
    scope = t(decode=t(beta1=7, beta2=6, horizon=40))
    rec = t(tokens=80, recurrent_chunk=64, sinks=8, window=16)
    return [
        (m("full"), 8), (m("truncate", ratio=0.3), 8), (m("streaming", tokens=60), 20), (m("h2o", tokens=64), 20), (m("tova", tokens=50), 20),
        (m("snapkv", ratio=0.4), 8), (m("pyramidkv", ratio=0.4), 8), (m("pyramidinfer", ratio=0.35, window=24), 14), (m("adakv", ratio=0.4), 8),
        (m("criticalkv", ratio=0.5), 8), (m("chunkkv", ratio=0.5), 8), (m("chunkkv-reuse", ratio=0.4), 8), (m("chunkkv-hybrid", ratio=0.4), 8),
        (m("andpro", ratio=0.4), 8), (m("scope-slide", **scope), 30), (m("scope-adaptive", **scope), 42),
        (m("scope-discontinuous", prefill=m("snapkv", ratio=0.4, window=8), **scope), 42),
        (m("snapkv-decode", tokens=64), 40), (m("andpro-decode", tokens=64), 40), (m("streaming-recurrent", **rec), 8),
        (m("h2o-recurrent", rows=None, **rec), 8), (m("tova-recurrent", **rec), 8), (m("infinipot", **rec), 8), (m("keydiff", ratio=0.4), 8), (m("knorm", ratio=0.4), 8),
        (m("expected-attention", ratio=0.4), 8 if model != DEMO else 1), (m("paged-eviction", tokens=64), 40),
    ]


def overrides():
    pool = lambda kind, kernel: {"kind": kind, "kernel": kernel}
    decode = {"beta1": 5, "beta2": 9, "horizon": 36}
    rows = [
        # units
        (m("snapkv", unit="page", ratio=0.4), 211, {}), (m("snapkv", unit="chunk", chunk=5, tokens=77), 203, {"model": GQA4}),
        (m("chunkkv", unit="chunk", ratio=0.3), 397, {"heads": 4}), (m("chunkkv", unit="chunk", chunk=3, tokens=100, window=8), 305, {"heads": 4}),
        (m("chunkkv", unit="token", ratio=0.3), 250, {"heads": 4}), (m("chunkkv", ratio=0.25), 901, {"heads": 2, "prompt": "kv"}),
        (m("adakv", unit="page", ratio=0.4), 333, {}), (m("andpro", chunk=1, tokens=90), 180, {}), (m("andpro", unit="token", tokens=90), 190, {}),
        (m("andpro", chunk=16, tokens=90), 257, {}), (m("andpro", unit="page", ratio=0.5), 257, {}),
        (m("keydiff", unit="page", ratio=0.3), 420, {}), (m("streaming", unit="page", tokens=96), 150, {"heads": 4, "tokens": 40}),
        (m("tova", unit="page", tokens=80), 150, {"heads": 4, "tokens": 40}), (m("h2o", unit="page", tokens=96), 170, {"tokens": 40}),
        # scope and reuse
        (m("snapkv", scope="layer", ratio=0.2), 433, {"heads": 4}), (m("h2o", scope="layer", tokens=70), 140, {"heads": 4, "tokens": 16}),
        (m("tova", scope="head", tokens=60), 120, {"tokens": 16}), (m("chunkkv", scope="head", ratio=0.3), 300, {}),
        (m("chunkkv", reuse_layers=2, ratio=0.3, unit="token"), 290, {"heads": 4, "layers": 2}),
        (m("snapkv", reuse_layers=3, ratio=0.3), 222, {}), (m("adakv", reuse_layers=2, ratio=0.3), 230, {"layers": 2}),
        (m("pyramidkv", reuse_layers=2, tokens=90), 260, {}), (m("expected-attention", scope="layer", ratio=0.25), 300, {"heads": 4}),
        # pooling
        (m("snapkv", pool=pool("avg", 5), ratio=0.3), 150, {"model": GQA4}), (m("chunkkv", pool=pool("max", 7), ratio=0.3), 411, {"heads": 4}),
        (m("adakv", pool=pool("avg", 7), ratio=0.3), 199, {}), (m("criticalkv", pool=pool("avg", 5), tokens=70), 170, {"model": GQA4}),
        # variants
        (m("chunkkv", variant="raw", ratio=0.3), 350, {"heads": 4}), (m("chunkkv", variant="raw", unit="chunk", ratio=0.3), 351, {"heads": 4}),
        (m("chunkkv", variant="alg3", unit="chunk", ratio=0.2), 353, {"heads": 4}), (m("chunkkv-hybrid", variant="alg3", ratio=0.3), 263, {"heads": 4}),
        (m("chunkkv", variant="mean", unit="chunk", ratio=0.3), 352, {"heads": 4}), (m("chunkkv", variant="mean", unit="chunk", chunk=20, window=64, tokens=100), 347, {"heads": 4}),
        (m("andpro", variant="alg1", ratio=0.35), 213, {}), (m("andpro", variant="plain", ratio=0.35), 214, {}), (m("andpro", variant="plain", unit="page", ratio=0.4), 217, {"model": GQA4}),
        # allocators
        (m("snapkv", allocator="pyramid", tokens=60), 320, {}), (m("chunkkv", allocator="pyramid", tokens=128), 500, {"heads": 4}),
        (m("h2o", allocator="pyramid", tokens=60), 180, {"tokens": 12, "model": GQA4}), (m("snapkv", allocator="adaptive", ratio=0.25), 240, {}),
        (m("andpro", allocator="uniform", ratio=0.3), 190, {"model": GQA4}), (m("chunkkv", scope="head", allocator="adaptive", ratio=0.3), 400, {}),
        (m("keydiff", allocator="adaptive", ratio=0.25), 190, {}), (m("chunkkv-hybrid", ratio=0.25, chunk=6), 420, {"heads": 4}),
        # sinks, windows, raised budgets
        (m("snapkv", sinks=4, window=16, ratio=0.25), 241, {}), (m("chunkkv", sinks=20, ratio=0.25), 431, {"heads": 4}),
        (m("knorm", sinks=3, window=10, tokens=40), 150, {}), (m("chunkkv", ratio=0.01), 333, {"heads": 4}), (m("snapkv", ratio=0.02), 140, {}),
        (m("andpro", ratio=0.05), 150, {}), (m("adakv", ratio=0.05), 150, {}), (m("snapkv", tokens=33), 100, {}), (m("snapkv", window=1, tokens=20), 90, {}),
        (m("snapkv", tokens=400), 120, {}), (m("snapkv", ratio=1.0), 77, {}), (m("chunkkv", unit="chunk", ratio=1.0), 105, {"heads": 4}),
        (m("expected-attention", sinks=0, tokens=60), 310, {"tokens": 1}),
        # schedules
        (m("streaming", tokens=70, interval=7), 100, {"heads": 4, "tokens": 30}), (m("h2o", tokens=50, interval=4), 90, {"tokens": 23, "model": GQA4}),
        (m("snapkv-decode", tokens=60, interval=5), 110, {"tokens": 24}), (m("snapkv-decode", tokens=60, interval=24), 110, {"tokens": 60}),
        (m("andpro-decode", tokens=70, chunk=1), 110, {"tokens": 40}), (m("snapkv", schedule="decode", interval=8, window=8, tokens=64), 100, {"tokens": 30}),
        (m("pyramidinfer", tokens=90), 200, {"tokens": 12, "model": GQA4}), (m("tova", tokens=120), 100, {"heads": 4, "tokens": 40}),
        # SCOPE
        (m("scope-slide", prefill=m("chunkkv", ratio=0.5), decode=decode), 170, {"tokens": 30}),
        (m("scope-slide", prefill=m("h2o", tokens=40), decode=decode), 110, {"tokens": 30, "model": GQA4}),
        (m("scope-adaptive", prefill=m("pyramidkv", tokens=60, window=8), decode=decode), 140, {"tokens": 40}),
        (m("scope-discontinuous", decode=decode), 60, {"tokens": 44}),
        # fields and compositions
        (m("criticalkv", allocator="adaptive", ratio=0.4), 205, {"model": GQA4}), (m("criticalkv", allocator="adaptive", floor=0.6, sinks=3, ratio=0.5), 187, {"model": GQA1, "heads": 1}),
        (m("criticalkv", allocator="pyramid-adaptive", tokens=80), 240, {"model": GQA1}),
        (m("adakv", allocator="pyramid-adaptive", tokens=60), 240, {"model": GQA4}), (m("adakv", allocator="pyramid-adaptive", beta=3, floor=0.5, tokens=80), 210, {"model": GQA1}),
        (m("andpro", bias=0.4, ratio=0.3), 215, {"model": GQA4}), (m("andpro", bias=1000, variant="plain", ratio=0.3), 216, {"model": GQA1}),
        (m("andpro", theta=4, ratio=0.3), 218, {"model": GQA4}), (m("andpro", theta=0.2, bias=-0.1, variant="plain", ratio=0.3), 219, {"model": GQA1}),
        (m("andpro", theta=1e6, variant="alg1", unit="token", ratio=0.3), 221, {"model": GQA4}), (m("andpro-decode", theta=2, bias=0.2, tokens=64), 110, {"model": GQA4, "tokens": 40}),
        (m("andpro", allocator="pyramid-adaptive", tokens=90), 233, {"model": GQA4}), (m("pyramidkv", beta=2.5, tokens=60), 222, {"model": GQA1}),
        (m("adakv", floor=1, ratio=0.3), 200, {"model": GQA4}), (m("snapkv", rows=5, ratio=0.3), 199, {"model": GQA4}), (m("chunkkv", rows=60, ratio=0.3), 399, {"heads": 4}),
        (m("streaming", positions="cache", tokens=50), 90, {"heads": 4, "tokens": 20}), (m("streaming", positions="cache", tokens=60, interval=9), 140, {"model": GQA4, "heads": 2, "tokens": 40}),
        (m("h2o", positions="cache", tokens=50), 90, {"model": GQA4, "tokens": 20}), (m("snapkv", positions="cache", ratio=0.4), 150, {"model": GQA1, "tokens": 12}),
        (m("scope-slide", prefill=m("full"), decode=decode | {"score": "keydiff"}), 90, {"model": GQA4, "tokens": 30}),
        (m("scope-adaptive", prefill=m("snapkv", ratio=0.5), decode=decode | {"score": "projection"}), 120, {"model": GQA4, "tokens": 34}),
        (m("scope-discontinuous", decode=decode | {"score": "vknorm"}), 80, {"model": GQA1, "tokens": 40}),
        (m("scope-slide", prefill=m("full"), decode=decode | {"score": "recency"}), 70, {"model": GQA1, "tokens": 24}),
        # recurrent
        (m("streaming-recurrent", tokens=100, recurrent_chunk=100, sinks=16, window=32), 530, {"heads": 4}),
        (m("tova-recurrent", tokens=100, recurrent_chunk=37, sinks=4, window=8), 301, {"heads": 4}),
        (m("h2o-recurrent", tokens=150, recurrent_chunk=150, sinks=16, window=32, scope="layer"), 640, {"heads": 4}), (m("h2o-recurrent", tokens=110, recurrent_chunk=90, sinks=8, window=16), 220, {"model": GQA4}),
        (m("infinipot", tokens=110, recurrent_chunk=150, sinks=16, window=32), 230, {"model": GQA4}),
        (m("infinipot", tokens=60, recurrent_chunk=40, sinks=4, window=8), 171, {}),
        # pages of 32
        (m("chunkkv", ratio=0.3), 431, {"heads": 4, "page": 32}), (m("snapkv", ratio=0.3), 231, {"page": 32}),
    ]
    return rows + mixtures()


def mixtures():
    """Combinations that no preset has."""
    four, pages = {"model": GQA4}, {"model": GQA4, "heads": 2}
    decode = {"beta1": 4, "beta2": 5, "horizon": 30}
    return [
        # reuse with everything
        (m("tova", reuse_layers=2, tokens=50), 90, {"model": GQA4, "heads": 2, "tokens": 20}), (m("h2o", reuse_layers=2, tokens=50), 90, {**four, "tokens": 20}),
        (m("andpro", reuse_layers=2, ratio=0.3), 190, {"layers": 2}), (m("chunkkv-hybrid", reuse_layers=2, ratio=0.3), 260, {"heads": 4, "layers": 2}),
        (m("pyramidkv", reuse_layers=3, ratio=0.3), 260, {}), (m("snapkv-decode", reuse_layers=3, tokens=60), 100, {**four, "tokens": 40}),
        (m("scope-slide", prefill=m("snapkv", reuse_layers=2, ratio=0.4), decode=decode), 120, {**four, "tokens": 24}),
        # schedules that the preset does not have
        (m("snapkv", schedule="chunk", recurrent_chunk=64, tokens=80), 230, four), (m("chunkkv", schedule="chunk", recurrent_chunk=96, tokens=128), 420, {"heads": 4}),
        (m("h2o", schedule="chunk", recurrent_chunk=50, tokens=70), 170, four), (m("chunkkv", schedule="decode", interval=16, tokens=96), 150, {"heads": 4, "tokens": 50}),
        (m("chunkkv", unit="chunk", schedule="decode", interval=8, tokens=96), 150, {**pages, "tokens": 50}),
        (m("keydiff", schedule="decode", interval=4, tokens=50), 100, {**four, "tokens": 20}), (m("knorm", schedule="decode", interval=8, tokens=45), 60, {"model": GQA1, "prompt": "96 once", "tokens": 12}),
        (m("adakv", schedule="decode", interval=8, window=8, tokens=60), 100, {**four, "tokens": 36}),
        (m("streaming", schedule="prompt", ratio=0.5), 100, {"heads": 4}),
        (m("pyramidkv", schedule="decode", interval=8, window=8, tokens=60), 200, {**four, "tokens": 30}), (m("andpro", schedule="decode", interval=16, window=8, tokens=60), 90, {**four, "tokens": 40}),
        # scores that the preset does not have
        (m("snapkv", score="last", ratio=0.3), 150, four), (m("snapkv", score="accumulated", ratio=0.3), 150, four), (m("snapkv", score="projection", ratio=0.3), 151, four),
        (m("snapkv", score="knorm", ratio=0.3), 90, {"model": GQA1, "prompt": "96 once"}), (m("snapkv", score="keydiff", ratio=0.3), 153, four), (m("tova", score="window", window=8, tokens=60), 120, {**pages, "tokens": 20}),
        (m("chunkkv", score="accumulated", ratio=0.3), 230, pages), (m("chunkkv", score="projection", ratio=0.3), 232, pages), (m("chunkkv", score="last", ratio=0.3), 233, pages),
        (m("chunkkv", score="projection", unit="chunk", ratio=0.3), 232, pages), (m("andpro", score="window", ratio=0.3), 200, four), (m("adakv", score="projection", ratio=0.3), 200, four),
        (m("criticalkv", scope="layer", ratio=0.4), 203, pages), (m("chunkkv", score="critical", unit="token", ratio=0.4), 204, pages),
        (m("keydiff", scope="layer", ratio=0.4), 190, pages), (m("andpro", scope="layer", allocator="uniform", ratio=0.3), 190, pages), (m("knorm", scope="layer", ratio=0.4), 60, {"model": GQA1, "prompt": "96 once", "heads": 3}),
        # variants
        (m("chunkkv", variant="raw", unit="token", ratio=0.3), 200, pages), (m("andpro", variant="alg1", unit="token", ratio=0.3), 201, four), (m("andpro", variant="code", chunk=8, ratio=0.4), 203, four),
        (m("snapkv", variant="raw", ratio=0.3), 180, four),
        # sizes
        (m("adakv", unit="page", ratio=0.3), 240, {"model": GQA4}), (m("adakv", unit="chunk", chunk=3, ratio=0.3), 200, four), (m("andpro", unit="chunk", chunk=4, sinks=5, window=30, ratio=0.3), 207, four),
        (m("pyramidkv", unit="page", tokens=64), 420, {}), (m("pyramidkv", unit="chunk", chunk=4, tokens=64), 200, four), (m("pyramidkv", ratio=0.8), 200, four), (m("pyramidkv", tokens=34), 150, four),
        (m("snapkv", ratio=0.5), 20, four), (m("chunkkv", ratio=0.5), 33, pages), (m("chunkkv", ratio=0.5), 17, pages), (m("tova", ratio=0.5), 2, {**pages, "tokens": 12}), (m("streaming", ratio=0.9), 3, {**pages, "tokens": 12}),
        (m("h2o", ratio=0.5), 1, {**four, "tokens": 12}), (m("truncate", tokens=1), 40, pages), (m("truncate", sinks=9, tokens=64), 100, pages), (m("truncate", sinks=7, ratio=0.01), 90, pages),
        (m("scope-slide", prefill=m("truncate", sinks=5, tokens=40), decode=decode), 120, {**four, "tokens": 24}), (m("snapkv", pool={"kind": "max", "kernel": 1}, ratio=0.3), 150, four),
        (m("snapkv", pool={"kind": "max", "kernel": 63}, ratio=0.3), 150, four), (m("chunkkv", unit="chunk", chunk=1, ratio=0.3), 151, pages), (m("chunkkv", unit="chunk", chunk=64, ratio=0.8), 231, pages),
        # SCOPE over other prompts' selections
        (m("scope-adaptive", prefill=m("andpro", ratio=0.4), decode=decode), 120, {**four, "tokens": 34}), (m("scope-discontinuous", prefill=m("chunkkv-hybrid", ratio=0.4), decode=decode), 120, {**four, "tokens": 34}),
        (m("scope-slide", prefill=m("tova", tokens=60), decode=decode), 100, {**four, "tokens": 24}), (m("scope-adaptive", decode={"beta1": 3, "beta2": 2}), 50, {**four, "tokens": 30}),
        # paged-eviction by other units
        (m("paged-eviction", unit="token", interval=4, ratio=0.4), 120, {**pages, "tokens": 20}), (m("paged-eviction", scope="head", schedule="prompt", ratio=0.4), 230, four),
        (m("adakv", score="vknorm", ratio=0.3), 190, four), (m("chunkkv", score="vknorm", unit="chunk", ratio=0.3), 230, pages),
    ]


def cases():
    out = []
    for model, kv in ALL.items():
        for i, (r, tokens) in enumerate(small(model)):
            r = {k: v for k, v in r.items() if v is not None}
            if (model, r["method"]) in TIED:
                continue
            n = (150 if model == DEMO else 131) + 7 * (i % 5)
            one = r["method"] in HEADWISE
            once = "96 once" if model == GQA1 and r["method"] == "knorm" else None
            out.append(case(f"{model.split('/')[-1]} {r['method']}", r, n if not once else 80, model, tokens, heads=1 if one else kv, prompt=once))
    for i, (r, n, kw) in enumerate(overrides()):
        out.append(case(f"{i} {r['method']}", r, n, **kw))
    return out


HEADWISE = {"infinipot", "h2o-recurrent", "h2o", "snapkv", "pyramidkv", "pyramidinfer", "adakv", "criticalkv", "andpro", "scope-slide", "scope-adaptive", "scope-discontinuous",
            "snapkv-decode", "andpro-decode", "keydiff", "knorm", "expected-attention"}


def prompts():
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(str(ROOT / DEMO / "tokenizer.json"))
    text = {x["id"]: x["prompt"] for x in map(json.loads, open(ROOT / "tests/golden/needle_200.jsonl"))}
    out = {}
    for word in ("niah", "kv"):
        out[word] = [t for i in range(8) for t in tok.encode(text.get(f"{word}-1024-{i:02d}", ""), add_special_tokens=False).ids][:1000]
    for vocab in ("64", "96", "100"):
        rng = random.Random(int(vocab))
        out[vocab] = [rng.randrange(int(vocab)) for _ in range(250)]
    out["96 once"] = random.Random(1).sample(range(96), 96)
    return out


def compact(kept):
    """[layer][head] as rows [first layer, last layer, first head, last head, [from, to, …]]."""
    rows = [[i, i, 0, len(l) - 1, l[0]] for i, l in enumerate(kept)]
    if any(h != l[0] for l in kept for h in l):
        rows = [[i, i, j, j, h] for i, l in enumerate(kept) for j, h in enumerate(l)]
    return [[*r[:4], [x for pair in r[4] for x in pair]] for r in rows]


def settle(model, ids, c):
    """Finds the first place of the prompt where no margin is too small."""
    for at in range(0, min(5 * PLACES, len(ids) - c["n"] + 1), 5):
        r = Request(model, ids[at:at + c["n"]], c["retention"], c["page_tokens"], c["max_tokens"])
        r.margins.bears = MARGIN
        try:
            if r.run().logit_gap >= GAP:
                return at, r
        except TooNear:
            pass
    return None, r


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--only", nargs="*", default=[""], help="cases that have one of these in their name or request")
    ap.add_argument("--keep", action="store_true", help="take the others as they are in FILE")
    ap.add_argument("--out", default=str(ROOT / "tests/golden/retention_methods.json"))
    a = ap.parse_args()
    texts, models, done = prompts(), {name: Llama(ROOT / name) for name in ALL}, []
    asked = lambda c: json.dumps([c[k] for k in ("model", "page_tokens", "layers_per_group", "heads_per_group", "prompt", "n", "max_tokens", "retention")])
    old = {asked(c): c for c in json.load(open(a.out))["cases"]} if a.keep else {}
    for c in cases():
        if not any(word in c["name"] + " " + json.dumps(c["retention"]) for word in a.only):
            done += [old[asked(c)] | {"name": c["name"]}] if asked(c) in old else []
            continue
        at, r = settle(models[c["model"]], texts[c["prompt"]], c)
        print(f"{c['name']} {json.dumps(c['retention'])}: from {at}, margin {r.margins.least:.1e}, gap {r.logit_gap:.1e}, {r.margins.n_cuts} cuts"
              + (f" soft {len(r.margins.soft)}" if r.margins.soft else "") + ("  NEAR" if at is None else ""), flush=True)
        if at is None:
            continue

        done.append(c | {"from": at, "budget_raised": bool(r.raised), "kept": compact(r.kept()), "soft": sorted(r.margins.soft), "token_ids": r.out})
    done.sort(key=lambda c: (c["model"], c["page_tokens"], c["layers_per_group"], c["heads_per_group"]))
    body = ",\n".join(json.dumps(c, separators=(",", ":")) for c in done)
    head = json.dumps({"prompts": texts}, separators=(",", ":"))[:-1]
    pathlib.Path(a.out).write_text(head + ',\n"cases":[\n' + body + "\n]}\n")


if __name__ == "__main__":
    main()
