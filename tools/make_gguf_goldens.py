"""Writes tests/golden/gguf: tiny models in GGUF files, made by the public `gguf` package, and the
results that are expected of them.

    python3 tools/make_gguf_goldens.py          # needs gguf, numpy, torch, transformers, tokenizers

Deterministic. For each NAME.gguf, `transformers` computes NAME.logits.f32 in f32 from the values to
which the package dequantises the file's matrices; tokens.jsonl is the prompt of all. types.gguf has
one tensor of each type, two rows of 512 from random bytes, and types.f32 holds the package's values
of them. Also writes the fuzzer's seeds.
"""
import json
import pathlib

import gguf
import numpy
import torch
import transformers
from gguf import GGMLQuantizationType as T

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/gguf"
SEEDS = ROOT.parent.parent / "fuzz/corpus/model_gguf_fuzz"
VOCAB, N_TOKENS = 64, 40
FREQS = [1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]
# architecture, hidden, heads, kv heads, head_dim, ffn, layers, tied, type of matrices, of
# embeddings and head, rope
MODELS = {
    "llama_f16": ("llama", 48, 3, 1, 16, 72, 2, False, T.F16, T.F32, None),
    "llama_q8_0": ("llama", 64, 4, 2, 32, 96, 2, True, T.Q8_0, T.Q8_0, "factors"),
    "llama_q4_0": ("llama", 64, 4, 2, 16, 96, 2, False, T.Q4_0, T.Q8_0, "linear"),
    "llama_k": ("llama", 256, 8, 2, 32, 256, 1, False, T.Q4_K, T.Q6_K, None),
    "qwen2_bf16": ("qwen2", 48, 6, 2, 16, 40, 2, True, T.BF16, T.BF16, None),
    "qwen3_mixed": ("qwen3", 64, 4, 2, 32, 64, 2, True, T.Q5_0, T.Q8_0, "yarn"),
}
CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
TYPES = [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K]


def halves(r, n, low=0.002, high=0.02):
    return r.uniform(low, high, n).astype("<f2").view(numpy.uint8).reshape(n, 2)


def blocks(r, kind, rows, cols, exact=None):
    """Random blocks with scales of a trained model's size, quantised from `exact` where the package
    can."""
    if kind in (T.F32, T.F16, T.BF16, T.Q4_0, T.Q8_0, T.Q5_0) and exact is not None:
        return gguf.quants.quantize(exact, kind)
    size, bytes_ = gguf.GGML_QUANT_SIZES[kind]
    n = rows * cols // size
    data = r.integers(0, 256, (n, bytes_), dtype=numpy.uint8)
    for at in {T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,), T.Q4_1: (0, 2), T.Q5_1: (0, 2)}.get(kind, (0,)):
        data[:, at:at + 2] = halves(r, n, 0.00002, 0.0002) if kind in (T.Q4_K, T.Q5_K, T.Q6_K) else halves(r, n)
    if kind == T.F16:
        data = r.normal(0, 0.1, (rows, cols)).astype("<f2").view(numpy.uint8)
    return data.reshape(rows, -1)


def permuted(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def unpermuted(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def vocabulary():
    return [f"t{i}" for i in range(VOCAB - 11)] + list("abcdefghij") + ["ab"]


def write_head(w, arch, hidden, heads, kv, head_dim, ffn, layers, rope):
    w.add_block_count(layers)
    w.add_context_length(256)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_dimension_count(head_dim)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    if rope in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR if rope == "linear" else gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(4.0)
        w.add_rope_scaling_orig_ctx_len(64)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(vocabulary())
    w.add_token_merges(["a b"])
    w.add_token_types([gguf.TokenType.NORMAL] * VOCAB)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_eot_token_id(3)
    w.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")


def config(arch, hidden, heads, kv, head_dim, ffn, layers, tied, rope):
    scaling = {None: None, "linear": {"rope_type": "linear", "factor": 4.0},
               "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
               "factors": {"rope_type": "longrope", "factor": 1.0, "short_factor": FREQS, "long_factor": FREQS,
                           "original_max_position_embeddings": 256}}[rope]
    c = getattr(transformers, CLASSES[arch] + "Config")
    return c(vocab_size=VOCAB, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
             num_attention_heads=heads, num_key_value_heads=kv, head_dim=head_dim, rms_norm_eps=1e-5,
             max_position_embeddings=256, tie_word_embeddings=tied, rope_theta=10000.0, rope_scaling=scaling,
             bos_token_id=1, eos_token_id=2)


def make(name, spec, ids, seed):
    arch, hidden, heads, kv, head_dim, ffn, layers, tied, kind, outer, rope = spec
    r = numpy.random.default_rng(seed)
    w = gguf.GGUFWriter(ROOT / f"{name}.gguf", arch)
    write_head(w, arch, hidden, heads, kv, head_dim, ffn, layers, rope)
    state = {}

    def matrix(to, key, rows, cols, kind, std, turn=0):
        exact = r.normal(0, std, (rows, cols)).astype(numpy.float32)
        data = blocks(r, kind, rows, cols, permuted(exact, turn) if turn else exact)
        values = gguf.quants.dequantize(data, kind)
        w.add_tensor(to, data, raw_dtype=kind)
        state[key] = torch.from_numpy(numpy.ascontiguousarray(unpermuted(values, turn) if turn else values))

    def vector(to, key, n, mean=0.0):
        values = r.normal(mean, 0.12, n).astype(numpy.float32)
        w.add_tensor(to, values)
        state[key] = torch.from_numpy(values)

    turn = (lambda n: n) if arch == "llama" else (lambda n: 0)
    matrix("token_embd.weight", "model.embed_tokens.weight", VOCAB, hidden, outer, 0.7)
    if not tied:
        matrix("output.weight", "lm_head.weight", VOCAB, hidden, outer, 0.3)
    vector("output_norm.weight", "model.norm.weight", hidden, 1.0)
    if rope == "factors":
        w.add_tensor("rope_freqs.weight", numpy.array(FREQS, numpy.float32))
    for i in range(layers):
        b, m = f"blk.{i}.", f"model.layers.{i}."
        vector(b + "attn_norm.weight", m + "input_layernorm.weight", hidden, 1.0)
        vector(b + "ffn_norm.weight", m + "post_attention_layernorm.weight", hidden, 1.0)
        matrix(b + "attn_q.weight", m + "self_attn.q_proj.weight", heads * head_dim, hidden, kind, 0.3, turn(heads))
        matrix(b + "attn_k.weight", m + "self_attn.k_proj.weight", kv * head_dim, hidden, kind, 0.3, turn(kv))
        matrix(b + "attn_v.weight", m + "self_attn.v_proj.weight", kv * head_dim, hidden, kind, 0.12)
        matrix(b + "attn_output.weight", m + "self_attn.o_proj.weight", hidden, heads * head_dim, kind, 0.12)
        matrix(b + "ffn_gate.weight", m + "mlp.gate_proj.weight", ffn, hidden, kind, 0.12)
        matrix(b + "ffn_up.weight", m + "mlp.up_proj.weight", ffn, hidden, kind, 0.12)
        matrix(b + "ffn_down.weight", m + "mlp.down_proj.weight", hidden, ffn, kind, 0.12)
        if arch == "qwen2":
            for x, n in (("q", heads), ("k", kv), ("v", kv)):
                vector(b + f"attn_{x}.bias", m + f"self_attn.{x}_proj.bias", n * head_dim)
        if arch == "qwen3":
            for x in "qk":
                vector(b + f"attn_{x}_norm.weight", m + f"self_attn.{x}_norm.weight", head_dim, 1.0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    c = config(arch, hidden, heads, kv, head_dim, ffn, layers, tied, rope)
    c._attn_implementation = "eager"
    model = getattr(transformers, CLASSES[arch] + "ForCausalLM")(c).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and (not missing or missing == ["lm_head.weight"] and tied), (missing, unexpected)
    model.tie_weights()
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float().numpy()
    logits.astype("<f4").tofile(ROOT / f"{name}.logits.f32")
    print(f"{name}: logits std {logits.std():.2f}, {(ROOT / f'{name}.gguf').stat().st_size} bytes")


def make_types():
    r = numpy.random.default_rng(5)
    w = gguf.GGUFWriter(ROOT / "types.gguf", "llama")
    expected = []
    for kind in TYPES:
        data = blocks(r, kind, 2, 512)
        w.add_tensor(f"{kind.name}.weight", data, raw_dtype=kind)
        expected.append(gguf.quants.dequantize(data, kind).astype("<f4"))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    numpy.concatenate(expected).tofile(ROOT / "types.f32")


def make_seeds():
    """Seeds of the fuzzer: every key that the readers know, both kinds of vocabulary, a few
    tensors."""
    SEEDS.mkdir(parents=True, exist_ok=True)
    for name, arch, rope in (("llama", "llama", "linear"), ("qwen", "qwen3", "yarn"), ("pieces", "llama", None)):
        w = gguf.GGUFWriter(SEEDS / name, arch)
        write_head(w, arch, 64, 4, 2, 16, 96, 2, rope)
        if name == "pieces":
            w.kv_data[0].clear()
            w.add_architecture()
            w.add_tokenizer_model("llama")
            pieces = ["<unk>", "<s>", "<0x0A>", "a", "b", "ab", "\u2581", "\u2581a"]
            w.add_token_list(pieces)
            w.add_token_scores([-float(i) for i in range(len(pieces))])
            w.add_token_types([2, 3, 6, 1, 1, 1, 1, 4])
            w.add_bos_token_id(1)
            w.add_unk_token_id(0)
            w.add_add_space_prefix(True)
            w.add_add_bos_token(True)
        w.add_tensor("token_embd.weight", numpy.zeros((2, 32), numpy.float32))
        w.add_tensor("rope_freqs.weight", numpy.ones(8, numpy.float32))
        w.add_tensor("blk.0.attn_q.weight", numpy.zeros((1, 34), numpy.uint8), raw_dtype=T.Q8_0)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


def main():
    ROOT.mkdir(parents=True, exist_ok=True)
    ids = numpy.random.default_rng(1).integers(0, VOCAB, N_TOKENS).tolist()
    (ROOT / "tokens.jsonl").write_text(json.dumps({"token_ids": ids}) + "\n")
    for seed, (name, spec) in enumerate(MODELS.items()):
        make(name, spec, ids, seed)
    make_types()
    make_seeds()


if __name__ == "__main__":
    main()
