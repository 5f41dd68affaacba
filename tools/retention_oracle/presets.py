"""The table of docs/retention.md section 6, and the policy that a request makes of one of its
rows."""
import math
from types import SimpleNamespace


def row(score, unit, scope, schedule="prompt", **more):
    base = dict(allocator="uniform", sinks=0, window=0, half=False, pool=None, interval=1, reuse_layers=1, chunk=None,
                variant=None, rows=None, bias=0.0, theta=1.0, slope=20, floor=0.2, contiguous=False, later=None, tokens=None, recurrent_chunk=None)
    return base | dict(score=score, unit=unit, scope=scope, schedule=schedule) | more


MAX7 = {"kind": "max", "kernel": 7}
RECURRENT = dict(sinks=256, window=256, contiguous=True, tokens=32768, recurrent_chunk=32768)
ADAPTIVE = dict(allocator="adaptive")
PRESETS = {
    "full": row("none", "page", "layer", "never"),
    "truncate": row("none", "token", "layer", "input"),
    "streaming": row("recency", "token", "layer", "decode", sinks=4),
    "h2o": row("accumulated", "token", "head", "decode", window=None, half=True),
    "tova": row("last", "token", "layer", "decode", window=1),
    "snapkv": row("window", "token", "head", window=32, pool=MAX7),
    "pyramidkv": row("window", "token", "head", window=32, pool=MAX7, allocator="pyramid"),
    "pyramidinfer": row("accumulated", "token", "head", "decode", window=256, half=True, allocator="pyramid", slope=2, later="last"),
    "adakv": row("window", "token", "head", window=32, pool=MAX7, **ADAPTIVE),
    "criticalkv": row("critical", "token", "head", window=32, pool=MAX7),
    "chunkkv": row("window", "page", "layer", window=32, chunk=10),
    "chunkkv-reuse": row("window", "page", "layer", window=32, chunk=10, reuse_layers=2),
    "chunkkv-hybrid": row("window", "chunk", "layer", window=32, chunk=10, allocator="hybrid", pool=MAX7),
    "andpro": row("projection", "chunk", "head", sinks=1, window=32, chunk=4, floor=0.0, variant="code", **ADAPTIVE),
    "snapkv-decode": row("window", "token", "head", "decode", sinks=1, window=16, pool=MAX7, interval=16),
    "andpro-decode": row("projection", "chunk", "head", "decode", sinks=1, window=16, chunk=4, interval=16, floor=0.0, **ADAPTIVE),
    "streaming-recurrent": row("recency", "token", "layer", "chunk", **RECURRENT),
    "h2o-recurrent": row("window", "token", "head", "chunk", rows=128, **RECURRENT),
    "tova-recurrent": row("last", "token", "layer", "chunk", **RECURRENT),
    "infinipot": row("novelty", "token", "head", "chunk", rows=128, **RECURRENT),
    "keydiff": row("keydiff", "token", "head"),
    "knorm": row("knorm", "token", "head"),
    "expected-attention": row("expected", "token", "head", sinks=4, rows=256),
    "paged-eviction": row("vknorm", "page", "layer", "decode", sinks=1, window=1, interval=16),
}
SCOPE_KINDS = ("scope-slide", "scope-adaptive", "scope-discontinuous")


def share_of(share, whole):
    """floor(share * whole), where a product within 1e-6 of a whole number counts as that
    number."""
    return math.floor(share * whole + 1e-6)


def resolve(retention, prompt_tokens, page, max_tokens=1):
    r = {k: v for k, v in retention.items() if k not in ("report", "pressure")}
    method = r.pop("method")
    if method in SCOPE_KINDS:
        d = {"beta1": 256, "beta2": 256, "horizon": max_tokens, "scope": "head", "score": "last"} | r.get("decode", {})
        p = resolve(r.get("prefill", {"method": "h2o", "tokens": 2048, "window": 8, "scope": d["scope"]}), prompt_tokens, page)
        p.decode = SimpleNamespace(kind=method, **d)
        p.schedule = "never" if p.method in ("full", "truncate") else "prompt"
        return p
    if r.get("tokens") is None and "ratio" in r:
        r["tokens"], r["given_ratio"] = share_of(r["ratio"], prompt_tokens), True
    p = SimpleNamespace(**(dict(given_ratio=False, decode=None) | PRESETS[method] | r))
    p.method, p.prompt_tokens, p.page = method, prompt_tokens, page
    if "variant" not in r and (p.score, p.schedule) != (PRESETS[method]["score"], PRESETS[method]["schedule"]):
        p.variant = None  # a row's variant belongs to its own score and schedule
    if p.variant == "plain":
        p.variant = None
    p.slope = r.get("beta", p.slope)
    if "positions" in r:
        p.contiguous = r["positions"] == "cache"
    p.budget = p.tokens
    if p.half:
        p.window = p.budget // 2 if p.window is None else min(p.window, p.budget // 2)
    p.mean = p.variant == "mean"
    if p.mean and not p.pool:
        p.pool = {"kind": "avg", "kernel": 5}
    if p.budget is not None:
        p.share = p.ratio if p.given_ratio else p.budget / prompt_tokens
    return p


def input_cut(retention, prompt_tokens):
    """The first and the end of the prompt's tokens that `truncate` removes before anything is
    computed."""
    r = retention.get("prefill", {}) if retention["method"] in SCOPE_KINDS else retention
    if r.get("method") != "truncate":
        return 0, 0
    budget, sinks = r.get("tokens") or share_of(r["ratio"], prompt_tokens), r.get("sinks", 0)
    return sinks, max(sinks, prompt_tokens - max(budget - sinks, 1))


def rows_measured(p, score):
    """How many of the last query rows a score reads; None = all."""
    if score == "last":
        return 1
    return p.rows if p.rows is not None else p.window


def prompt_points(p):
    points = {p.prompt_tokens}
    if p.schedule == "chunk":
        points |= set(range(p.recurrent_chunk, p.prompt_tokens, p.recurrent_chunk))
    return sorted(points)


def is_decode_point(p, generated):
    if p.decode:
        d = p.decode
        every = 1
        if d.kind == "scope-discontinuous":
            every = max(1, (d.horizon - d.beta2) // d.beta1)
        return generated % every == 0
    return p.schedule == "decode" and generated % p.interval == 0


def scope_allowance(d, generated):
    """How many of `generated` tokens SCOPE lets a table keep."""
    if d.kind == "scope-slide":
        return d.beta1 + d.beta2
    if d.horizon <= d.beta2:
        return d.beta2
    t = min(max(generated, d.beta2), d.horizon)
    return d.beta2 + (t - d.beta2) * d.beta1 // (d.horizon - d.beta2)


def layer_budgets(p, layers):
    """The budget of each scope of layers."""
    n = -(-layers // p.reuse_layers)
    b, w, t = p.budget, p.window, p.prompt_tokens
    if not p.allocator.startswith("pyramid") or t < 2 * (b - w) or n == 1 or b <= w:
        return [b] * n
    low = math.floor((b - w) / p.slope + 1e-9)
    high = 2 * (b - w) - low
    if high >= t - w:
        high = t - w
        low = 2 * (b - w) - high
    step = (high - low) // (n - 1)
    return [w + high - i * step for i in range(n)]
