"""Random weights of one shape: GGUF files for the peer and a safetensors folder for Octavo. Also
contexts of any length for the peer, so that a decode at depth costs no prefill (Octavo's bench
copies pages)."""

import json
import os
import random
import struct

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 22, 2048, 32, 4, 64, 5632, 32000
POSITIONS = 40960
SHAPE = f"{LAYERS} layers, hidden {HIDDEN}, {HEADS}/{KV_HEADS} heads of {HEAD_DIM}, ffn {FFN}, vocabulary {VOCAB}"
FIRST_WORD = 259  # in the peer's vocabulary special tokens and bytes come before it

# (name in GGUF, name in safetensors, rows, columns) of a layer's matrices
MATRICES = (
    ("attn_q", "self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN),
    ("attn_k", "self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
    ("attn_v", "self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN),
    ("attn_output", "self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM),
    ("ffn_gate", "mlp.gate_proj", FFN, HIDDEN),
    ("ffn_up", "mlp.up_proj", FFN, HIDDEN),
    ("ffn_down", "mlp.down_proj", HIDDEN, FFN),
)
NORMS = (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"))


def tensors():
    """(name in GGUF, name in safetensors, shape) of each tensor of the model."""
    yield "token_embd", "model.embed_tokens", (VOCAB, HIDDEN)
    for i in range(LAYERS):
        for gguf, name, rows, columns in MATRICES:
            yield f"blk.{i}.{gguf}", f"model.layers.{i}.{name}", (rows, columns)
        for gguf, name in NORMS:
            yield f"blk.{i}.{gguf}", f"model.layers.{i}.{name}", (HIDDEN,)
    yield "output_norm", "model.norm", (HIDDEN,)
    yield "output", "lm_head", (VOCAB, HIDDEN)


# ---- random blocks -------------------------------------------------------------------------------

# Each pool holds blocks of a type. Their values have a size that keeps activations in a real
# model's range.
POOL_BLOCKS = 1 << 17


def bf16_pool(rng):
    """BF16 values of either sign, from 2^-7 to 2^-5."""
    n = POOL_BLOCKS * 32
    out = bytearray(2 * n)
    out[0::2] = rng.randbytes(n)
    out[1::2] = rng.randbytes(n).translate(bytes(0x3C | (b & 0x80) for b in range(256)))
    return bytes(out)


def scaled_pool(scale, n_bytes):
    """Blocks of a 16-bit float, the scale, and n_bytes of random integers."""
    def make(rng):
        size = 2 + n_bytes
        out = bytearray(rng.randbytes(size * POOL_BLOCKS))
        low, high = struct.pack("<e", scale)
        out[0::size] = bytes([low]) * POOL_BLOCKS
        out[1::size] = bytes([high]) * POOL_BLOCKS
        return bytes(out)
    return make


# By the peer's name: (GGML's number of the type, values of a block, its bytes, its pool). "bytes"
# are integers of 8 or 4 bits in safetensors.
FORMATS = {
    "bytes": (None, 1, 1, lambda rng: rng.randbytes(POOL_BLOCKS * 32)),
    "BF16": (30, 1, 2, bf16_pool),
    "Q8_0": (8, 32, 34, scaled_pool(2e-4, 32)),
    "Q4_0": (2, 32, 18, scaled_pool(3e-3, 16)),
}
F32 = 0


class Pool:
    """Random blocks that repeat; each tensor begins at another place."""

    def __init__(self, kind):
        self.type, self.block_values, self.block_bytes, make = FORMATS[kind]
        self.rng = random.Random(1)
        self.bytes = make(self.rng)

    def write(self, f, n_values):
        left = n_values // self.block_values * self.block_bytes
        at = self.rng.randrange(len(self.bytes) // self.block_bytes) * self.block_bytes
        while left:
            piece = self.bytes[at:at + left]
            f.write(piece)
            left -= len(piece)
            at = 0


def whole(path, write):
    """Writes a file under a temporary name first, so that a file that exists is whole."""
    if not os.path.exists(path):
        print(f"peer: writing {path}", flush=True)
        with open(path + ".part", "wb") as f:
            write(f)
        os.rename(path + ".part", path)
    return path


# ---- GGUF ----------------------------------------------------------------------------------------

ALIGNMENT = 32
U32, FLOAT, STRING, ARRAY, I32 = 4, 6, 8, 9, 5


def packed_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def packed_value(kind, value):
    if kind == STRING:
        return packed_string(value)
    return struct.pack({U32: "<I", FLOAT: "<f", I32: "<i"}[kind], value)


def packed_field(key, kind, value):
    if isinstance(value, list):
        body = struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(packed_value(kind, v) for v in value)
    else:
        body = struct.pack("<I", kind) + packed_value(kind, value)
    return packed_string(key) + body


def vocabulary():
    """Texts and types: unknown, two control tokens, the bytes, then words of plain letters."""
    special, byte, word = ["<unk>", "<s>", "</s>"], [f"<0x{b:02X}>" for b in range(256)], range(FIRST_WORD, VOCAB)
    return special + byte + [f"\u2581w{i}" for i in word], [2, 3, 3] + [6] * 256 + [1] * len(word)


def fields():
    texts, types = vocabulary()
    llama = {"context_length": POSITIONS, "embedding_length": HIDDEN, "block_count": LAYERS,
             "feed_forward_length": FFN, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
             "rope.dimension_count": HEAD_DIM, "vocab_size": VOCAB}
    return [packed_field("general.architecture", STRING, "llama"),
            packed_field("general.name", STRING, "random"),
            *(packed_field(f"llama.{key}", U32, value) for key, value in llama.items()),
            packed_field("llama.attention.layer_norm_rms_epsilon", FLOAT, 1e-5),
            packed_field("llama.rope.freq_base", FLOAT, 10000.0),
            packed_field("tokenizer.ggml.model", STRING, "llama"),
            packed_field("tokenizer.ggml.tokens", STRING, texts),
            packed_field("tokenizer.ggml.scores", FLOAT, [-float(i) for i in range(VOCAB)]),
            packed_field("tokenizer.ggml.token_type", I32, types),
            packed_field("tokenizer.ggml.bos_token_id", U32, 1),
            packed_field("tokenizer.ggml.eos_token_id", U32, 2)]


def padding(n):
    return -n % ALIGNMENT


def write_gguf(f, kind):
    pool = Pool(kind)
    entries, plan, at = [], [], 0
    for name, _, shape in tensors():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        norm = len(shape) == 1
        size = 4 * n if norm else n // pool.block_values * pool.block_bytes
        # GGUF names the fastest dimension first.
        entries.append(packed_string(name + ".weight") + struct.pack("<I", len(shape)) +
                       b"".join(struct.pack("<Q", d) for d in reversed(shape)) +
                       struct.pack("<IQ", F32 if norm else pool.type, at))
        plan.append((n, norm, size))
        at += size + padding(size)
    all_fields = fields()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(all_fields)) + b"".join(all_fields + entries)
    f.write(head + bytes(padding(len(head))))
    for n, norm, size in plan:
        if norm:
            f.write(struct.pack("<f", 1.0) * n)
        else:
            pool.write(f, n)
        f.write(bytes(padding(size)))


def gguf(work, kind):
    """Returns a GGUF file's path; writes the file if it is missing."""
    return whole(os.path.join(work, f"1.1b-{kind}.gguf"), lambda f: write_gguf(f, kind))


# ---- safetensors ---------------------------------------------------------------------------------

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "max_position_embeddings": POSITIONS, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
}


QUANTIZED_GROUP = 64  # columns that share a scale in 4 bits, as in OpenVINO's models


def quantization(kind):
    """The configuration of compressed-tensors. int8 has a scale for each row, and x is quantised
    token by token; int4 has one for each group of columns, and x stays as it is. The embedding and
    the head are bf16."""
    weights = {"num_bits": int(kind[3:]), "type": "int", "symmetric": True, "dynamic": False}
    weights |= {"strategy": "channel"} if kind == "int8" else {"strategy": "group", "group_size": QUANTIZED_GROUP}
    x = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
    return {"quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": ["lm_head"],
            "format": "int-quantized" if kind == "int8" else "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                          "input_activations": x if kind == "int8" else None}}}


def stored(name, shape, kind):
    """(name, type, shape, content) of each entry that a tensor has in the file: a pool's name and
    how many of its values, or bytes."""
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    if len(shape) == 1:
        return [(f"{name}.weight", "BF16", shape, b"\x80\x3f" * n)]
    if kind == "bf16" or "layers" not in name:
        return [(f"{name}.weight", "BF16", shape, ("BF16", n))]
    if kind == "int8":
        return [(f"{name}.weight", "I8", shape, ("bytes", n)),
                (f"{name}.weight_scale", "BF16", (shape[0], 1), struct.pack("<f", 2e-4)[2:] * shape[0])]
    return [(f"{name}.weight_packed", "I32", (shape[0], shape[1] // 8), ("bytes", n // 2)),
            (f"{name}.weight_scale", "BF16", (shape[0], shape[1] // QUANTIZED_GROUP),
             struct.pack("<f", 3e-3)[2:] * (n // QUANTIZED_GROUP)),
            (f"{name}.weight_shape", "I64", (2,), struct.pack("<qq", *shape))]


def write_safetensors(f, kind):
    pools = {name: Pool(name) for name in ("BF16", "bytes")}
    entries = [entry for _, name, shape in tensors() for entry in stored(name, shape, kind)]
    head, at = {}, 0
    for name, dtype, shape, content in entries:
        size = len(content) if isinstance(content, bytes) else content[1] * pools[content[0]].block_bytes
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    f.write(struct.pack("<Q", len(text)) + text)
    for *_, content in entries:
        if isinstance(content, bytes):
            f.write(content)
        else:
            pools[content[0]].write(f, content[1])


def byte_letters():
    """The characters by which byte-level BPE writes the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(others))]


def tokenizer():
    """The peer's vocabulary in Hugging Face's form: special tokens, bytes, words of plain
    letters."""
    special = ["<unk>", "<s>", "</s>"]
    texts = special + byte_letters() + [f"\u0120w{i}" for i in range(FIRST_WORD, VOCAB)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True} for i, text in enumerate(special)],
            "normalizer": None, "pre_tokenizer": level, "post_processor": level, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": {text: i for i, text in enumerate(texts)}, "merges": []}}


def folder(work, kind="bf16"):
    """Returns a Hugging Face folder's path; writes the folder if it is missing."""
    config, path = CONFIG, os.path.join(work, "1.1b")
    if kind != "bf16":
        config, path = {**CONFIG, "quantization_config": quantization(kind)}, f"{path}-{kind}"
    os.makedirs(path, exist_ok=True)
    for name, tree in (("config.json", config), ("tokenizer.json", tokenizer())):
        with open(os.path.join(path, name), "w", encoding="utf-8") as f:
            json.dump(tree, f)
    whole(os.path.join(path, "model.safetensors"), lambda f: write_safetensors(f, kind))
    return path


# ---- the peer's saved contexts -------------------------------------------------------------------


def stretch_state(data, length, f):
    """Writes a saved sequence of the peer that repeats the keys and values of its tokens up to
    `length`, piece by piece: a long one takes gigabytes. Layout: magic, version, tokens; streams
    (1), cells, each (position, 1, sequence); V transposed (no), layers; K of each layer: type,
    bytes of a row, rows; then V in the same form."""
    magic, version, n = struct.unpack_from("<III", data, 0)
    at = 12 + 4 * n
    tokens = struct.unpack_from(f"<{n}i", data, 12)
    streams, cells = struct.unpack_from("<II", data, at)
    at += 8 + 12 * cells
    transposed, layers = struct.unpack_from("<II", data, at)
    if (streams, transposed, layers) != (1, 0, LAYERS) or cells > n:
        raise ValueError("a saved context of another layout")
    at += 8
    many = [tokens[i % cells] for i in range(length)]
    f.write(struct.pack("<III", magic, version, length) + struct.pack(f"<{length}i", *many) +
            struct.pack("<II", 1, length) + b"".join(struct.pack("<iIi", i, 1, 0) for i in range(length)) +
            struct.pack("<II", 0, layers))
    for _ in range(2 * layers):
        kind, row = struct.unpack_from("<iQ", data, at)
        rows = data[at + 12:at + 12 + row * cells]
        f.write(struct.pack("<iQ", kind, row) + (rows * (length // cells + 1))[:row * length])
        at += 12 + row * cells
    if at != len(data):
        raise ValueError("a saved context with more in it than is known")
