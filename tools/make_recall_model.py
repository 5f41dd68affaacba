"""Writes tests/golden/models/recall_f32, a two-layer Llama constructed so that "... A B ... A"
gives B.

    python3 tools/make_recall_model.py          # needs numpy only

Deterministic. 32 tokens (letters and digits), each with a code of 16 signs; codes are rows of a
Hadamard matrix or their negatives, so that two of them are equal (16), opposite (-16) or orthogonal
(0). The residual stream holds

    0        a constant 1
    1..16    the token's own code           written by the embedding
    17..32   the code of the token before   written by layer 0
    33..48   the answer                     written by layer 1, read by lm_head

Layer 0, head 0: the previous-token head. Query and key are constants, rotated by RoPE so that the
score is greatest one token back. Layer 1, head 0: the matching head. The query is the token's own
code, the key the code of the token before, both in the slow half of the rotary pairs, which
positions hardly rotate: token A attends to the token that followed the earlier A, and that token's
value is its own code. Head 1 of both layers has zero weights, even attention and no output. So in
layer 0 a page matters only as long as tokens beside it are to come, while in layer 1 the answer
comes from the page that holds B, and from no other. The feed-forward layers are zero.
"""
import json
import pathlib
import struct

import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/models/recall_f32"
TOKENS = "abcdefghijklmnopqrstuvwxyz012345"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS, POSITIONS = 64, 2, 2, 32, 8, 2, 4096
CODE = 16  # signs of a code
THETA = 1e10
# Offsets of the parts of the residual stream.
ONE, OWN, BEFORE, ANSWER = 0, 1, 1 + CODE, 1 + 2 * CODE
# About how far the right token's score is above the next best.
SHARPNESS_0, SHARPNESS_1 = 40.0, 20.0
EPSILON = 1e-5
PAIRS = HEAD_DIM // 2
FREQUENCIES = THETA ** (-np.arange(PAIRS) / PAIRS)
SLOW = PAIRS // 2  # from this pair on, at most 1e-5 rad a token


def codes():
    h = np.ones((1, 1))
    while len(h) < CODE:
        h = np.block([[h, h], [h, -h]])
    return np.concatenate([h, -h])


def rms(*parts):
    """The divisor of the norm for a residual stream whose parts have these squared sums."""
    return np.sqrt(sum(parts) / HIDDEN + EPSILON)


def previous_token(w, name):
    """Sets head 0 so that its score at a distance is S * sum over fast pairs of cos(f * (distance -
    1))."""
    fast = np.arange(SLOW)
    margins = np.array([np.sum(1 - np.cos(FREQUENCIES[fast] * (d - 1))) for d in range(POSITIONS)])
    margin = min(margins[0], margins[2:].min())
    scale = SHARPNESS_0 / margin * np.sqrt(HEAD_DIM)
    norm = rms(1, CODE)  # of the embedding alone
    q, k = w[name + "q_proj.weight"], w[name + "k_proj.weight"]
    # Rows i and i + PAIRS are a pair (x, y). Query and key rotate by their positions, so the score
    # is cos(f * (i - j) - f).
    q[fast, ONE] = norm * np.sqrt(scale) * np.cos(FREQUENCIES[fast])
    q[fast + PAIRS, ONE] = -norm * np.sqrt(scale) * np.sin(FREQUENCIES[fast])
    k[fast, ONE] = norm * np.sqrt(scale)
    for i in range(CODE):
        w[name + "v_proj.weight"][i, OWN + i] = norm
        w[name + "o_proj.weight"][BEFORE + i, i] = 1
    return margin


def matching(w, name):
    norm = rms(1, CODE, CODE)  # with the code of the token before
    scale = SHARPNESS_1 / CODE * np.sqrt(HEAD_DIM)
    slow = [p for p in range(SLOW, PAIRS)] + [p + PAIRS for p in range(SLOW, PAIRS)]
    for i, row in enumerate(slow):
        w[name + "q_proj.weight"][row, OWN + i] = norm * np.sqrt(scale)
        w[name + "k_proj.weight"][row, BEFORE + i] = norm * np.sqrt(scale)
    for i in range(CODE):
        w[name + "v_proj.weight"][i, OWN + i] = norm
        w[name + "o_proj.weight"][ANSWER + i, i] = 1


def weights():
    shapes = {"model.embed_tokens.weight": (len(TOKENS), HIDDEN), "model.norm.weight": (HIDDEN,),
              "lm_head.weight": (len(TOKENS), HIDDEN)}
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        shapes |= {p + "input_layernorm.weight": (HIDDEN,), p + "post_attention_layernorm.weight": (HIDDEN,),
                   p + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
                   p + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
                   p + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
                   p + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
                   p + "mlp.gate_proj.weight": (FFN, HIDDEN), p + "mlp.up_proj.weight": (FFN, HIDDEN),
                   p + "mlp.down_proj.weight": (HIDDEN, FFN)}
    w = {name: np.ones(s) if name.endswith("norm.weight") else np.zeros(s) for name, s in shapes.items()}
    w["model.embed_tokens.weight"][:, ONE] = 1
    w["model.embed_tokens.weight"][:, OWN:OWN + CODE] = codes()
    w["lm_head.weight"][:, ANSWER:ANSWER + CODE] = codes()
    margin = previous_token(w, "model.layers.0.self_attn.")
    matching(w, "model.layers.1.self_attn.")
    return w, margin


# ---- the same in numpy, to check that the model recalls ------------------------------------------


def rotate(x):
    angles = np.arange(len(x))[:, None] * FREQUENCIES[None, :]
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[:, :PAIRS], x[:, PAIRS:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], 1)


def forward(w, ids):
    x = w["model.embed_tokens.weight"][ids]
    n, mass = len(ids), []
    future = np.triu(np.full((n, n), -np.inf), 1)

    def normed(x):
        return x / np.sqrt((x * x).mean(1, keepdims=True) + EPSILON)

    for layer in range(LAYERS):
        p = f"model.layers.{layer}.self_attn."
        h, heads = normed(x), []
        for head in range(HEADS):
            rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            q, k = (rotate(h @ w[p + f"{c}_proj.weight"][rows].T) for c in "qk")
            s = q @ k.T / np.sqrt(HEAD_DIM) + future
            a = np.exp(s - s.max(1, keepdims=True))
            a /= a.sum(1, keepdims=True)
            heads.append(a @ (h @ w[p + "v_proj.weight"][rows].T))
            mass.append(a)
        x = x + np.concatenate(heads, 1) @ w[p + "o_proj.weight"].T
    return normed(x) @ w["lm_head.weight"].T, mass


def check(w):
    rng = np.random.default_rng(1)
    right = 0
    for _ in range(20):
        ids = rng.integers(1, len(TOKENS), 600)  # token 0 is kept for the key
        at = int(rng.integers(0, 590))
        ids[at] = ids[-1] = 0
        logits, mass = forward(w, ids)
        right += int(logits[-1].argmax()) == ids[at + 1]
        # Layer 1, head 0, the last row.
        assert mass[HEADS][-1, at + 1] > 0.99, mass[HEADS][-1, at + 1]
        assert all(mass[0][i, i - 1] > 0.99 for i in range(1, 600))
    assert right == 20, right


# ---- files ---------------------------------------------------------------------------------------


def save_tensors(path, w):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, x in w.items():
        raw = x.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    w, margin = weights()
    check(w)
    OUT.mkdir(parents=True, exist_ok=True)
    save_tensors(OUT / "model.safetensors", w)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(TOKENS),
              "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu", "rms_norm_eps": EPSILON,
              "rope_theta": THETA, "rope_scaling": None, "max_position_embeddings": POSITIONS,
              "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "bos_token_id": None,
              "eos_token_id": None, "torch_dtype": "float32"}
    (OUT / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                           "vocab": {c: i for i, c in enumerate(TOKENS)}, "merges": []}}
    (OUT / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1) + "\n")
    size = sum(f.stat().st_size for f in OUT.iterdir())
    print(f"{OUT.name}: {size} bytes; layer 0 tells the previous token by {margin:.3f} of {SLOW}")


if __name__ == "__main__":
    main()
