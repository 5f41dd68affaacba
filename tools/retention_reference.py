"""An independent reference for the `chunkkv` row of retention: the pages that each layer keeps.

    python3 tools/retention_reference.py --golden     # writes tests/golden/retention_demo.json
    python3 tools/retention_reference.py --model DIR --prompts FILE.jsonl
        # lines {"id", "prompt" | "prompt_token_ids", "retention"}
    python3 tools/retention_reference.py --check      # its forward pass, with tests/golden/models

Page unit, scope layer, at the prompt's end. Computes in f32 over the stored weights, with none of
Octavo's code:
  T prompt tokens, P tokens a page, w the window; B = `tokens` or floor(ratio * T).
  Forced pages: those that hold one of the last w tokens (the partial last page is among them);
  they are no candidates.
  pages kept = min(all, max(floor(B / P), forced + 1)); the candidates with the largest scores,
  ties to the lower page.
  Score of a page: the sum of softmax(q k / sqrt(d)) over its tokens, the last w query rows and
  all query heads, at layer floor(l / N) * N for N = reuse_layers.
The first token is sampled from the last prompt row, which still attended to everything; later
tokens attend to what was kept.

`kept` has logical token ranges [from, to) of the prompt for each layer. `margin` is the distance
between the lowest score kept and the highest dropped: where it is under 1e-5 another engine may
select otherwise, among `tied` pages only.
"""
import argparse
import json
import math
import pathlib

import torch
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIE = 1e-5

# Needle prompt -> retention: ratios, explicit tokens, reuse and windows over all lengths and tasks.
CASES = [
    ("niah-1024-00", {"method": "chunkkv", "ratio": 0.5}),
    ("niah-1024-03", {"method": "chunkkv", "ratio": 0.1, "reuse_layers": 2}),
    ("passkey-1024-02", {"method": "chunkkv", "tokens": 128}),
    ("kv-1024-05", {"method": "chunkkv", "ratio": 0.25, "window": 16}),
    ("niah-2048-07", {"method": "chunkkv", "ratio": 0.25}),
    ("passkey-2048-01", {"method": "chunkkv", "ratio": 0.01}),
    ("kv-2048-11", {"method": "chunkkv", "ratio": 0.5, "reuse_layers": 4}),
    ("niah-3072-02", {"method": "chunkkv", "tokens": 777, "reuse_layers": 3}),
    ("passkey-3072-09", {"method": "chunkkv", "ratio": 1.0}),
    ("kv-3072-19", {"method": "chunkkv", "ratio": 0.1, "window": 64}),
    ("niah-4000-12", {"method": "chunkkv", "ratio": 0.25, "reuse_layers": 2}),
    ("passkey-4000-04", {"method": "chunkkv", "ratio": 0.1}),
    ("kv-4000-00", {"method": "chunkkv", "ratio": 0.25}),
]


class Llama:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        c = json.load(open(folder / "config.json"))
        self.layers, self.heads = c["num_hidden_layers"], c["num_attention_heads"]
        self.kv = c.get("num_key_value_heads") or self.heads
        self.dim = c.get("head_dim") or c["hidden_size"] // self.heads
        self.eps = c["rms_norm_eps"]
        self.w = {}
        for f in sorted(folder.glob("*.safetensors")):
            self.w |= {k: v.float() for k, v in load_file(f).items()}
        self.head = self.w["model.embed_tokens.weight"] if c.get("tie_word_embeddings") else self.w["lm_head.weight"]
        rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
        self.freq = self.frequencies(rope.get("rope_theta", c.get("rope_theta", 10000.0)), rope)

    def frequencies(self, theta, rope):
        kind = rope.get("rope_type", rope.get("type", "default"))
        out = []
        for i in range(0, self.dim, 2):
            f = theta ** (-i / self.dim)
            if kind == "linear":
                f /= rope["factor"]
            elif kind == "llama3":
                wavelength, original = 2 * math.pi / f, rope["original_max_position_embeddings"]
                low, high = rope["low_freq_factor"], rope["high_freq_factor"]
                if wavelength > original / low:
                    f /= rope["factor"]
                elif wavelength >= original / high:
                    s = (original / wavelength - low) / (high - low)
                    f = (1 - s) * f / rope["factor"] + s * f
            else:
                assert kind == "default", kind
            out.append(f)
        return torch.tensor(out, dtype=torch.float64)

    def rotate(self, x, positions):
        angle = positions.double()[:, None] * self.freq
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.w[name]

    def forward(self, ids, start, cache, observe=0):
        """Returns the logits of the last row (of all rows without a cache) and, for the last
        `observe` rows, each layer's attention mass of every key: [layers][keys]. cache: a list of
        (k, v) for each layer, [kv, tokens, dim], extended in place."""
        positions = torch.arange(start, start + len(ids))
        x = self.w["model.embed_tokens.weight"][torch.tensor(ids)]
        masses, n = [], len(ids)
        for layer in range(self.layers):
            p = f"model.layers.{layer}."
            h = self.norm(x, p + "input_layernorm.weight")
            q, k, v = ((h @ self.w[p + f"self_attn.{m}_proj.weight"].T).view(n, -1, self.dim).transpose(0, 1) for m in "qkv")
            q, k = self.rotate(q, positions), self.rotate(k, positions)
            if layer < len(cache):
                k, v = torch.cat((cache[layer][0], k), 1), torch.cat((cache[layer][1], v), 1)
                cache[layer] = (k, v)
            else:
                cache.append((k, v))
            keys, out, mass = k.shape[1], torch.empty(self.heads, n, self.dim), torch.zeros(k.shape[1])
            visible = torch.ones(n, keys, dtype=torch.bool).tril(keys - n)
            for head in range(self.heads):
                g = head * self.kv // self.heads
                a = (q[head] @ k[g].T / math.sqrt(self.dim)).masked_fill(~visible, -torch.inf).softmax(-1)
                out[head] = a @ v[g]
                if observe:
                    mass += a[-observe:].sum(0)
            masses.append(mass)
            x = x + out.transpose(0, 1).reshape(n, -1) @ self.w[p + "self_attn.o_proj.weight"].T
            h = self.norm(x, p + "post_attention_layernorm.weight")
            gate, up = h @ self.w[p + "mlp.gate_proj.weight"].T, h @ self.w[p + "mlp.up_proj.weight"].T
            x = x + (torch.nn.functional.silu(gate) * up) @ self.w[p + "mlp.down_proj.weight"].T
        return self.norm(x, "model.norm.weight") @ self.head.T, masses


def budget(t, retention, page, window):
    """Returns (pages in all, forced pages at the end, pages kept, whether the budget was
    raised)."""
    b = retention["tokens"] if "tokens" in retention else math.floor(retention["ratio"] * t)
    pages = -(-t // page)
    forced = pages - max(0, t - window) // page
    if "tokens" in retention and b // page < forced:
        raise SystemExit(f"tokens {b}: the {forced} protected pages need more")
    return pages, forced, min(pages, max(b // page, forced + 1)), b // page < forced + 1


def ranges(pages, page, t):
    out = []
    for p in pages:
        a, b = p * page, min((p + 1) * page, t)
        if out and out[-1][1] == a:
            out[-1][1] = b
        else:
            out.append([a, b])
    return out


@torch.no_grad()
def run(model, ids, retention, page, stops, max_tokens):
    assert retention["method"] == "chunkkv" and retention.get("unit", "page") == "page"
    t, window, reuse = len(ids), retention.get("window", 32), retention.get("reuse_layers", 1)
    pages, forced, kept_pages, raised = budget(t, retention, page, window)
    cache = []
    logits, masses = model.forward(ids, 0, cache, observe=min(window, t))
    kept, margins, selected = [], [], None
    for layer in range(model.layers):
        if layer % reuse == 0:
            padded = torch.nn.functional.pad(masses[layer], (0, pages * page - t)).view(pages, page).sum(1)
            candidates = sorted(range(pages - forced), key=lambda i: (-padded[i].item(), i))
            take = kept_pages - forced
            selected = sorted(candidates[:take]) + list(range(pages - forced, pages))
            entry = {"layer": layer, "margin": None, "tied": []}
            if take < len(candidates):
                low, high = padded[candidates[take - 1]].item(), padded[candidates[take]].item()
                near = [p for p in candidates if abs(padded[p].item() - (low + high) / 2) <= (low - high) / 2 + TIE]
                entry = {"layer": layer, "margin": float(f"{low - high:.3g}"), "tied": sorted(near) if low - high < TIE else []}
            margins.append(entry)
        kept.append({"layers": [layer, layer], "heads": [0, model.kv - 1], "ranges": ranges(selected, page, t)})
        index = torch.tensor([i for a, b in kept[-1]["ranges"] for i in range(a, b)])
        cache[layer] = tuple(x[:, index] for x in cache[layer])
    out, gap = [], float("inf")
    while len(out) < max_tokens:
        best = logits[-1].topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        out.append(best.indices[0].item())
        if out[-1] in stops:
            break
        logits, _ = model.forward(out[-1:], t + len(out) - 1, cache)
    return {"prompt_tokens": t, "pages": pages, "pages_kept": kept_pages, "budget_raised": raised, "kept": kept,
            "margins": margins, "token_ids": out, "logit_gap": round(gap, 4)}


def check():
    import numpy
    for folder in sorted((ROOT / "tests/golden/models").glob("*/")):
        ids = json.loads(open(folder / "tokens.jsonl").readline())["token_ids"]
        want = torch.from_numpy(numpy.fromfile(folder / "logits.f32", dtype="<f4").reshape(len(ids), -1))
        with torch.no_grad():
            got, _ = Llama(folder).forward(ids, 0, [])
            cache, rows = [], []  # token by token, through the cache
            model = Llama(folder)
            for i, t in enumerate(ids):
                rows.append(model.forward([t], i, cache)[0])
        nmse = [((x - want).double().pow(2).sum() / want.double().pow(2).sum()).item() for x in (got, torch.cat(rows))]
        print(f"{folder.name}: NMSE {nmse[0]:.1e} whole, {nmse[1]:.1e} by token")
        assert max(nmse) < 1e-11


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", default=str(ROOT / "models/demo"))
    ap.add_argument("--prompts")
    ap.add_argument("--page-tokens", type=int, default=16)
    ap.add_argument("--max-tokens", type=int, default=8)
    ap.add_argument("--golden", action="store_true")
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    if a.check:
        return check()
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(a.model + "/tokenizer.json")
    stops = json.load(open(a.model + "/generation_config.json"))["eos_token_id"]
    if a.golden:
        prompts = {x["id"]: x for x in map(json.loads, open(ROOT / "tests/golden/needle_200.jsonl"))}
        lines = [{**prompts[i], "retention": r} for i, r in CASES]
    else:
        lines = map(json.loads, open(a.prompts))
    model, results = Llama(a.model), []
    for x in lines:
        ids = x.get("prompt_token_ids") or tok.encode(x["prompt"], add_special_tokens=False).ids
        r = run(model, ids, x["retention"], a.page_tokens, stops, x.get("max_tokens", a.max_tokens))
        results.append({"id": x["id"], "retention": x["retention"], **r})
        if not a.golden:
            print(json.dumps(results[-1]), flush=True)
            continue
        least = min((m["margin"] for m in r["margins"] if m["margin"] is not None), default=None)
        print(f"{x['id']} {x['retention']}: {r['pages_kept']} of {r['pages']} pages, least margin {least}, "
              f"answer {tok.decode(r['token_ids'])!r}", flush=True)
    if a.golden:
        head = json.dumps({"page_tokens": a.page_tokens, "dtype": "f32"})[:-1]
        body = ",\n".join(json.dumps(r) for r in results)
        (ROOT / "tests/golden/retention_demo.json").write_text(head + ', "cases": [\n' + body + "\n]}\n")


if __name__ == "__main__":
    main()
