"""A Llama forward pass in float64 with numpy, which the retention oracle is built on.

It uses none of Octavo's code. A sequence is a grid of tables, one for each (layer, KV head); a
table may have lost any of its tokens, and attention reads those that are left. Keys are stored
unrotated beside their positions, so that new positions need no second rotation.
"""
import json
import math
import pathlib

import numpy as np

STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    head_bytes = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:8 + head_bytes])
    out = {}
    for name, t in head.items():
        if name == "__metadata__":
            continue
        a, b = (8 + head_bytes + x for x in t["data_offsets"])
        x = np.frombuffer(raw[a:b], STORED[t["dtype"]])
        if t["dtype"] == "BF16":
            x = (x.astype(np.uint32) << 16).view(np.float32)
        out[name] = x.reshape(t["shape"]).astype(np.float64)
    return out


def frequencies(dim, theta, rope):
    kind = rope.get("rope_type", rope.get("type", "default"))
    f = theta ** (-np.arange(0, dim, 2) / dim)
    if kind == "linear":
        return f / rope["factor"]
    if kind == "llama3":
        wavelength, original = 2 * math.pi / f, rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        s = np.clip((original / wavelength - low) / (high - low), 0, 1)
        return (1 - s) * f / rope["factor"] + s * f
    assert kind == "default", kind
    return f


class Table:
    """What one KV head of one layer holds of a sequence; slots in the order of the table."""

    def __init__(self, dim):
        self.pos = np.empty(0, int)      # logical positions
        self.at = np.empty(0, int)       # RoPE positions
        self.raw = np.empty((0, dim))    # keys before RoPE
        self.k = np.empty((0, dim))      # keys as cached
        self.v = np.empty((0, dim))
        self.sum = np.empty(0)           # attention received from all rows so far

    def append(self, pos, at, raw, k, v):
        for name, x in (("pos", pos), ("at", at), ("raw", raw), ("k", k), ("v", v), ("sum", np.zeros(len(pos)))):
            setattr(self, name, np.concatenate((getattr(self, name), x)))

    def take(self, order):
        for name in ("pos", "at", "raw", "k", "v", "sum"):
            setattr(self, name, getattr(self, name)[order])


class Rows:
    """The query rows of a layer since the last retention point."""

    def __init__(self, pos, raw, q):
        self.pos, self.raw, self.q = pos, raw, q  # [R], [R, heads, dim] twice

    def last(self, n):
        n = min(n, len(self.pos))
        return Rows(self.pos[-n:], self.raw[-n:], self.q[-n:]) if n else Rows(self.pos[:0], self.raw[:0], self.q[:0])


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def attention(q, rows_pos, table):
    """Softmax attention of q [R, G, dim] to the slots of a table: [R, G, n]."""
    x = np.einsum("rgd,nd->rgn", q, table.k) / math.sqrt(q.shape[-1])
    x = np.where((table.pos[None, :] <= rows_pos[:, None])[:, None], x, -np.inf)
    return softmax(x)


class Llama:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        c = json.load(open(folder / "config.json"))
        self.layers, self.heads = c["num_hidden_layers"], c["num_attention_heads"]
        self.kv = c.get("num_key_value_heads") or self.heads
        self.group = self.heads // self.kv
        self.dim = c.get("head_dim") or c["hidden_size"] // self.heads
        self.eps, self.vocab = c["rms_norm_eps"], c["vocab_size"]
        self.w = {}
        for f in sorted(folder.glob("*.safetensors")):
            self.w |= read_safetensors(f)
        self.head = self.w["model.embed_tokens.weight"] if c.get("tie_word_embeddings") else self.w["lm_head.weight"]
        rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
        self.freq = frequencies(self.dim, rope.get("rope_theta") or c.get("rope_theta") or 10000.0, rope)

    def rotate(self, x, at):
        """Rotates x [rows, heads, dim] to RoPE positions `at`."""
        angle = np.asarray(at)[:, None, None] * self.freq
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = np.split(x, 2, -1)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name]

    def output_columns(self, layer, head):
        """W_o of one query head: [hidden, dim]."""
        return self.w[f"model.layers.{layer}.self_attn.o_proj.weight"][:, head * self.dim:(head + 1) * self.dim]

    def new_sequence(self):
        return [[Table(self.dim) for _ in range(self.kv)] for _ in range(self.layers)]

    def forward(self, ids, pos, at, tables, summing=False):
        """Returns the logits of the rows, and each layer's query rows. pos, at: logical and RoPE
        positions. Appends to `tables`."""
        x, rows, n = self.w["model.embed_tokens.weight"][ids], [], len(ids)
        for layer in range(self.layers):
            p = f"model.layers.{layer}."
            h = self.norm(x, p + "input_layernorm.weight")
            q, k, v = ((h @ self.w[f"{p}self_attn.{m}_proj.weight"].T).reshape(n, -1, self.dim) for m in "qkv")
            qr, kr = self.rotate(q, at), self.rotate(k, at)
            out = np.empty((n, self.heads, self.dim))
            for g, table in enumerate(tables[layer]):
                table.append(pos, at, k[:, g], kr[:, g], v[:, g])
                mine = slice(g * self.group, (g + 1) * self.group)
                a = attention(qr[:, mine], pos, table)
                out[:, mine] = np.einsum("rgn,nd->rgd", a, table.v)
                if summing:
                    table.sum = table.sum + a.sum((0, 1))
            rows.append(Rows(pos, q, qr))
            x = x + out.reshape(n, -1) @ self.w[p + "self_attn.o_proj.weight"].T
            h = self.norm(x, p + "post_attention_layernorm.weight")
            gate, up = h @ self.w[p + "mlp.gate_proj.weight"].T, h @ self.w[p + "mlp.up_proj.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.w[p + "mlp.down_proj.weight"].T
        return self.norm(x, "model.norm.weight") @ self.head.T, rows


def check(root):
    """Compares the forward pass with the stored logits of the tiny models."""
    for folder in sorted((root / "tests/golden/models").glob("*/")):
        ids = json.loads(open(folder / "tokens.jsonl").readline())["token_ids"]
        want = np.fromfile(folder / "logits.f32", "<f4").reshape(len(ids), -1)
        model, at = Llama(folder), np.arange(len(ids))
        got, _ = model.forward(ids, at, at, model.new_sequence())
        nmse = ((got - want) ** 2).sum() / (want ** 2).sum()
        print(f"{folder.name}: NMSE {nmse:.1e}")
        assert nmse < 1e-11


if __name__ == "__main__":
    check(pathlib.Path(__file__).resolve().parents[2])
