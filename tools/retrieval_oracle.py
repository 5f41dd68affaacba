#!/usr/bin/env python3
"""Writes tests/golden/retrieval.json: which blocks a row reads, by an implementation of
docs/retrieval.md that shares nothing with the C code. It represents blocks by their keys, one dim
after the other, knows no pages and no folded queries, and sorts.

    python3 tools/retrieval_oracle.py [--check]

Queries and masses are small multiples of 1/4, made by a generator that the test has too; keys are
multiples of 1/4 or, in "fine" cases, of 1/512, which bf16 does not hold. So every sum of keys and
every score is exact in f32, and equal scores are equal everywhere. --check compares the file with
what would be written.
"""
import json
import math
import pathlib
import sys

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "tests/golden/retrieval.json"
MASK = (1 << 64) - 1
DEFAULTS = dict(block_tokens=128, representative_num=1, group_heads=1, initial_tokens=1, local_windows_len=4096,
                second_block_count=96, preselect_block=False, preselect_block_count=96, dense_layer_num=0, layer_step=1, token_step=1)
PRESETS = {
    "ktransformers": dict(DEFAULTS, representative_type="MEAN", head_select_mode="SHARED"),
    "quest": dict(DEFAULTS, representative_type="QUEST", head_select_mode="SEPARATE", dense_layer_num=2),
    "dynamic": dict(DEFAULTS, representative_type="DYNAMIC", head_select_mode="SHARED"),
}
ALIASES = {"block_size": "block_tokens", "second_select_num": "second_block_count", "anchor_type": "representative_type",
           "anchor_num": "representative_num", "preselect": "preselect_block", "BLOCK_MEAN": "MEAN", "BLOCK_MAX": "MAX", "FIXED": "FIX"}


def resolve(request):
    given = {ALIASES.get(k, k): ALIASES.get(v, v) for k, v in request.items()}
    spec = dict(PRESETS[given.pop("method")])
    if given.get("representative_type") == "FIX":
        spec["representative_num"] = 5
    spec.update(given)
    if "tokens" in given:
        size = spec["block_tokens"]
        free = spec.pop("tokens") // size - -(-spec["initial_tokens"] // size)
        local = max(free // 4, 1)
        spec.update(local_windows_len=local * size, second_block_count=free - local)
    return spec


def mix(x):
    """The finaliser of splitmix64."""
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    return x ^ x >> 31


def value(seed, what, i):
    """A number in -2, -1.75, ... 2."""
    return (mix(seed << 48 | what << 40 | i) % 17 - 8) / 4


def fine_value(seed, what, i):
    """A number in -2, -2 + 1/512, ... 2."""
    return (mix(seed << 48 | what << 40 | i) % 2049 - 1024) / 512


def bf16(x, rounding):
    """x as the nearest of the numbers with 8 bits: `rounding` of the last bit."""
    if x == 0:
        return 0.0
    unit = 2.0 ** (math.frexp(x)[1] - 8)
    return rounding(x / unit) * unit


class Tables:
    """Queries [KV head, query head, dim], keys [KV head, slot, dim] and masses [KV head, slot]."""

    def __init__(self, c):
        self.n_prompt = c["n_prompt"]
        self.n, self.heads, self.g, self.dim = c["n_slots"], c["n_kv_heads"], c["q_heads"], c["head_dim"]
        seed, n, g, dim = c["seed"], self.n, self.g, self.dim
        self.q = [[[value(seed, 1, (h * g + i) * dim + d) for d in range(dim)] for i in range(g)] for h in range(self.heads)]
        key = fine_value if c.get("fine") else value
        self.k = [[[key(seed, 2, (h * n + s) * dim + d) for d in range(dim)] for s in range(n)] for h in range(self.heads)]
        self.mass = [[value(seed, 3, h * n + s) for s in range(n)] for h in range(self.heads)]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def score(spec, tables, head, block):
    """The block's score for one KV head: a sum over its query heads."""
    size, kind, n = spec["block_tokens"], spec["representative_type"], spec["representative_num"]
    slots = range(block * size, (block + 1) * size)
    keys = [tables.k[head][s] for s in slots]
    columns = list(zip(*keys))
    if kind in ("QUEST", "MAX"):
        most = [bf16(max(c), math.ceil) for c in columns]
        least = [bf16(min(c), math.floor) for c in columns] if kind == "QUEST" else most
        return sum(sum(max(x * m, x * l) for x, m, l in zip(q, most, least)) for q in tables.q[head])
    if kind == "FIX":
        keys = [keys[(2 * j + 1) * size // (2 * n)] for j in range(n)]
    is_late = (block + 1) * size > tables.n_prompt
    if kind == "DYNAMIC" and not is_late:
        best = sorted(range(size), key=lambda i: (-tables.mass[head][slots[i]], i))[:n]
        keys = [keys[i] for i in best]
    sums = [bf16(sum(c), round) for c in zip(*keys)]
    return sum(dot(q, sums) for q in tables.q[head]) * (n / size if kind == "DYNAMIC" and is_late else 1)


def blocks_between(spec, n_slots):
    size = spec["block_tokens"]
    full = n_slots // size
    initial, local = -(-spec["initial_tokens"] // size), -(-spec["local_windows_len"] // size)
    return list(range(min(initial, full), max(full - local, 0)))


def left_out(spec, tables, heads):
    """The blocks of the prompt that no later row may select."""
    size, n = spec["block_tokens"], tables.n_prompt
    if not spec["preselect_block"]:
        return set()

    def mass(block):
        slots = range(max(block * size - size // 4, 0), min((block + 1) * size + size // 4, n))
        return sum(tables.mass[h][s] for h in heads for s in slots)

    between = blocks_between(spec, n)
    return set(sorted(between, key=lambda b: (-mass(b), b))[spec["preselect_block_count"]:])


def select(spec, tables, heads, n_slots):
    """The blocks that the KV heads read together, ascending."""
    blocks = -(-n_slots // spec["block_tokens"])
    between = blocks_between(spec, n_slots)
    candidates = [b for b in between if b not in left_out(spec, tables, heads)]
    scores = {b: sum(score(spec, tables, h, b) for h in heads) for b in candidates} if len(candidates) > spec["second_block_count"] else {}
    best = sorted(candidates, key=lambda b: (-scores.get(b, 0), b))[:spec["second_block_count"]]
    return sorted((set(range(blocks)) - set(between)) | set(best))


def together(spec, n_kv_heads):
    return {"SHARED": n_kv_heads, "SEPARATE": 1, "GROUP": spec["group_heads"]}[spec["head_select_mode"]]


def leaders(spec, window_layers):
    """For each layer the layer whose selection it reads by, or None."""
    out, selecting = [], [i for i, w in enumerate(window_layers) if not w]
    for layer, window in enumerate(window_layers):
        index = selecting.index(layer) if not window else -1
        if window or index < spec["dense_layer_num"]:
            out.append(None)
        else:
            index -= (index - spec["dense_layer_num"]) % spec["layer_step"]
            out.append(selecting[index])
    return out


def tokens(spec, n_prompt, n_generated):
    """The blocks, in a world where the selection of token i takes the first candidates: only sizes
    and followers are of interest. Row i is at slot n_prompt + i."""
    size, lists, kept = spec["block_tokens"], [], None
    for i in range(n_generated):
        n = n_prompt + i + 1
        blocks, full = -(-n // size), n // size
        if i % spec["token_step"] == 0:
            initial, local = -(-spec["initial_tokens"] // size), -(-spec["local_windows_len"] // size)
            between = range(min(initial, full), max(full - local, 0))
            kept = [b for b in range(blocks) if b not in between or b in between[:spec["second_block_count"]]]
            first = blocks
        lists.append(kept + list(range(first, blocks)))
    return lists


def selections():
    shape = dict(page_tokens=16, n_kv_heads=4, q_heads=2, head_dim=16)
    small = dict(block_tokens=32, initial_tokens=1, local_windows_len=64, second_block_count=4)
    rows = []
    for i, kind in enumerate(["MEAN", "MAX", "QUEST", "FIX", "DYNAMIC"]):
        for j, mode in enumerate(["SHARED", "SEPARATE", "GROUP"]):
            request = dict(method="ktransformers", representative_type=kind, head_select_mode=mode, **small)
            if mode == "GROUP":
                request["group_heads"] = 2
            if kind == "DYNAMIC":
                request["representative_num"] = 3
            rows.append(dict(shape, retrieval=request, n_slots=640 + 13 * i + 7 * j, seed=10 * i + j))
    quest = dict(method="quest", block_size=48, initial_tokens=0, local_windows_len=1, second_select_num=3)
    rows += [
        dict(shape, retrieval=quest, n_slots=576, seed=101),
        dict(shape, retrieval=quest, n_slots=577, seed=102),
        dict(shape, retrieval=quest, n_slots=5, seed=103),
        dict(shape, retrieval=dict(quest, anchor_type="BLOCK_MAX", block_size=16), n_slots=400, seed=104),
        dict(shape, retrieval=dict(method="dynamic", anchor_type="FIXED", anchor_num=7, block_size=16, local_windows_len=33,
                                   second_select_num=5), n_slots=500, seed=105),
        dict(shape, retrieval=dict(method="dynamic", anchor_num=2, **small), n_slots=384, seed=106),
        dict(shape, retrieval=dict(method="ktransformers", block_size=32, initial_tokens=96, local_windows_len=64, second_select_num=1),
             n_slots=192, seed=107),
        dict(shape, retrieval=dict(method="ktransformers", block_size=32, initial_tokens=9999, local_windows_len=64, second_select_num=1),
             n_slots=320, seed=108),
        dict(dict(shape, n_kv_heads=1, q_heads=8, head_dim=48, page_tokens=64), n_slots=1500, seed=109,
             retrieval=dict(method="quest", block_size=128, initial_tokens=64, local_windows_len=256, second_select_num=4)),
        dict(shape, fine=True, n_slots=700, seed=111, retrieval=dict(quest, block_size=32)),
        dict(shape, fine=True, n_slots=700, seed=112, retrieval=dict(method="ktransformers", anchor_type="BLOCK_MAX", **small)),
        dict(shape, fine=True, n_slots=700, seed=113, retrieval=dict(method="ktransformers", **small)),
        dict(dict(shape, n_kv_heads=2, page_tokens=32), n_slots=4900, seed=110, retrieval=dict(method="ktransformers", second_select_num=2)),
    ]
    rows += [
        dict(shape, retrieval=dict(method="quest", block_tokens=32, tokens=419), n_slots=900, seed=118),
        dict(shape, retrieval=dict(method="ktransformers", block_tokens=16, initial_tokens=40, tokens=80), n_slots=300, seed=119),
        dict(dict(shape, n_kv_heads=1, page_tokens=64), retrieval=dict(method="quest", tokens=640), n_slots=2600, seed=120),
    ]
    preselect = dict(method="ktransformers", preselect_block=True, preselect_block_count=6, **small)
    rows += [
        dict(shape, retrieval=preselect, n_slots=640, n_prompt=600, seed=111),
        dict(shape, retrieval=dict(preselect, representative_type="QUEST", head_select_mode="SEPARATE"), n_slots=700, n_prompt=577, seed=112),
        dict(shape, retrieval=dict(preselect, head_select_mode="GROUP", group_heads=2, second_block_count=7), n_slots=650, n_prompt=640, seed=113),
        dict(shape, retrieval=dict(preselect, second_block_count=99, block_tokens=48, initial_tokens=0), n_slots=900, n_prompt=500, seed=114),
        dict(shape, retrieval=dict(preselect, preselect_block_count=99), n_slots=600, n_prompt=590, seed=115),
        dict(shape, retrieval=dict(method="dynamic", anchor_num=2, **small), n_slots=640, n_prompt=390, seed=116),
        dict(shape, retrieval=dict(preselect, method="dynamic", head_select_mode="SEPARATE"), n_slots=800, n_prompt=513, seed=117),
    ]
    for c in rows:
        c.setdefault("n_prompt", c["n_slots"] - 1)
        spec, tables = resolve(c["retrieval"]), Tables(c)
        step = together(spec, c["n_kv_heads"])
        c["blocks"] = [select(spec, tables, range(h, h + step), c["n_slots"]) for h in range(0, c["n_kv_heads"], step)]
    return rows


class Clusters(Tables):
    """Tables whose keys lie around a point of their block, so that boxes are small."""

    def __init__(self, c, size):
        super().__init__(dict(c, n_prompt=0))
        seed, n, dim, blocks = c["seed"], self.n, self.dim, -(-c["n_slots"] // size)
        self.k = [[[value(seed, 4, (h * blocks + s // size) * dim + d) + value(seed, 2, (h * n + s) * dim + d) / 16
                    for d in range(dim)] for s in range(n)] for h in range(self.heads)]


def examine(spec, tables, heads, c):
    """The blocks that the KV heads read together, and the bound on what a query head misses."""
    size, n, scale = spec["block_tokens"], c["n_slots"], c["scale"]
    blocks, full = -(-n // size), n // size
    initial, local = -(-spec["initial_tokens"] // size), -(-spec["local_windows_len"] // size)
    between = [b for b in range(min(initial, full), max(full - local, 0)) if b < c["sure"]]
    queries = [(h, q) for h in heads for q in tables.q[h]]

    def mass(head, q, block):
        slots = range(block * size, min((block + 1) * size, n))
        return math.fsum(math.exp(scale * dot(q, tables.k[head][s])) for s in slots)

    def most(head, q, block):
        columns = zip(*[tables.k[head][s] for s in range(block * size, (block + 1) * size)])
        return size * math.exp(scale * sum(max(x * max(c), x * min(c)) for x, c in zip(q, columns)))

    read = [b for b in range(blocks) if b not in between]
    held = [math.fsum(mass(h, q, b) for b in read) for h, q in queries]
    bounds = {b: [most(h, q, b) for h, q in queries] for b in between}
    order = sorted(between, key=lambda b: (-max(x / y for x, y in zip(bounds[b], held)), b))

    def missed():
        rest = [math.fsum(bounds[b][i] for b in order) for i in range(len(queries))]
        return max(r / (r + z) for r, z in zip(rest, held))

    limit = spec["second_block_count"] if "limit" in c else len(order)
    while missed() > spec["epsilon"] * (1 - 1 / 128) and order and limit > 0:
        block = order.pop(0)
        limit -= 1
        read.append(block)
        held = [z + mass(h, q, block) for z, (h, q) in zip(held, queries)]
    return sorted(read), min(1.0, missed() / (1 - 1 / 128))


def exam_cases():
    shape = dict(page_tokens=16, n_kv_heads=4, q_heads=2, head_dim=16)
    small = dict(method="quest", block_tokens=32, initial_tokens=1, local_windows_len=64)
    rows = []
    for i, (mode, epsilon, scale) in enumerate([("SEPARATE", 0.02, 0.5), ("SEPARATE", 0.3, 0.25), ("SHARED", 0.02, 1), ("SHARED", 0.5, 0.25),
                                                ("GROUP", 0.1, 0.5), ("GROUP", 0.001, 1)]):
        request = dict(small, head_select_mode=mode, epsilon=epsilon)
        if mode == "GROUP":
            request["group_heads"] = 2
        rows.append(dict(shape, retrieval=request, n_slots=700 + 41 * i, seed=200 + i, scale=scale, sure=10000))
    rows.append(dict(shape, retrieval=dict(small, epsilon=0.02, second_block_count=2), limit=True, n_slots=640, seed=210, scale=0.5, sure=10000))
    rows.append(dict(shape, retrieval=dict(small, epsilon=0.1), n_slots=650, seed=211, scale=0.5, sure=9))
    rows.append(dict(shape, retrieval=dict(small, epsilon=0.1), n_slots=650, seed=212, scale=0.5, sure=0))
    for c in rows:
        spec = resolve(c["retrieval"])
        tables, step = Clusters(c, spec["block_tokens"]), together(spec, c["n_kv_heads"])
        found = [examine(spec, tables, range(h, h + step), c) for h in range(0, c["n_kv_heads"], step)]
        c["blocks"], c["missed"] = [blocks for blocks, _ in found], [missed for _, missed in found]
    return rows


def layer_cases():
    rows = []
    for windows in ("000000", "101010", "110110", "0001000"):
        for dense, step in ((0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (2, 1)):
            if step > windows.count("0") - dense or dense >= windows.count("0"):
                continue
            request = dict(method="ktransformers", dense_layer_num=dense, layer_step=step)
            rows.append(dict(retrieval=request, windows=windows, leaders=leaders(resolve(request), [w == "1" for w in windows])))
    return rows


def token_cases():
    rows = []
    for step, prompt, n in ((1, 150, 40), (4, 150, 40), (16, 159, 50), (100, 150, 130), (7, 20, 60)):
        request = dict(method="ktransformers", block_tokens=16, local_windows_len=32, second_block_count=3, token_step=step)
        rows.append(dict(retrieval=request, n_prompt=prompt, blocks=tokens(resolve(request), prompt, n)))
    return rows


def main():
    golden = dict(selections=selections(), exams=exam_cases(), layers=layer_cases(), tokens=token_cases())
    lists = ",\n".join(f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]" for name, rows in golden.items())
    text = "{\n" + lists + "\n}\n"
    if "--check" not in sys.argv[1:]:
        GOLDEN.write_text(text)
    elif GOLDEN.read_text() != text:
        sys.exit(f"{GOLDEN}: is not what this program writes")


if __name__ == "__main__":
    main()
