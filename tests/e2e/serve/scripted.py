"""A model that says what a test wants: which token follows is a table of the token before it, as
weights. The prompt's last token chooses the script."""

import array
import json
import os
import random
import struct

from harness import ROOT

DEMO = os.path.join(ROOT, "models/demo")
BASE = 1024  # tokens of the demo model's tokenizer
END = 1023   # its end token
HIDDEN = 128
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def _matrix(rows, columns, fill=0.0):
    return (rows, columns), array.array("f", [fill]) * (rows * columns)


def _weights(follows, vocabulary):
    """Layers that add nothing, and an output that finds the token which follows."""
    r = random.Random(21)
    codes = {t: [r.choice((-1.0, 1.0)) for _ in range(HIDDEN)] for t in {*follows, *follows.values()}}
    tensors = {EMBED: _matrix(vocabulary, HIDDEN, 0.01), HEAD: _matrix(vocabulary, HIDDEN)}
    for token, code in codes.items():
        tensors[EMBED][1][token * HIDDEN:(token + 1) * HIDDEN] = array.array("f", code)
    head = tensors[HEAD][1]
    for token, after in follows.items():
        for i, sign in enumerate(codes[token]):
            head[after * HIDDEN + i] += sign
    layer = "model.layers.0."
    for name, rows, columns in (("self_attn.q_proj", 64, HIDDEN), ("self_attn.k_proj", 64, HIDDEN),
                                ("self_attn.v_proj", 64, HIDDEN), ("self_attn.o_proj", HIDDEN, 64),
                                ("mlp.gate_proj", 32, HIDDEN), ("mlp.up_proj", 32, HIDDEN),
                                ("mlp.down_proj", HIDDEN, 32)):
        tensors[f"{layer}{name}.weight"] = _matrix(rows, columns)
    for name in (f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm"):
        tensors[f"{name}.weight"] = ((HIDDEN,), array.array("f", [1.0]) * HIDDEN)
    return tensors


def _write_safetensors(path, tensors):
    head, at = {}, 0
    for name, (shape, values) in tensors.items():
        size = len(values) * values.itemsize
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            values.tofile(f)


def _json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f)


def write_model(folder, template, scripts, special=()):
    """scripts: {the last text of the prompt: the pieces of the answer}. A piece is a token; the
    same piece is always followed by the same one. special: the pieces that are special tokens."""
    pieces = list(dict.fromkeys(p for first, rest in scripts.items() for p in (first, *rest)))
    ids = {piece: BASE + i for i, piece in enumerate(pieces)}
    follows = {}
    for first, rest in scripts.items():
        path = [ids[p] for p in (first, *rest)] + [END]
        for token, after in zip(path, path[1:]):
            assert follows.setdefault(token, after) == after, f"{first}: a piece has two successors"
    with open(os.path.join(DEMO, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    assert not set(pieces) & set(tokenizer["model"]["vocab"]), "a piece is a token of the demo model"
    tokenizer["added_tokens"] += [{"id": i, "content": p, "single_word": False, "lstrip": False, "rstrip": False,
                                   "normalized": False, "special": p in special} for p, i in ids.items()]
    _json(folder, "tokenizer.json", tokenizer)
    _json(folder, "tokenizer_config.json", {"bos_token": None, "eos_token": "<|im_end|>", "chat_template": template})
    _json(folder, "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": BASE + len(ids),
        "hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 2048, "tie_word_embeddings": False, "eos_token_id": END,
        "torch_dtype": "float32"})
    _write_safetensors(os.path.join(folder, "model.safetensors"), _weights(follows, BASE + len(ids)))
