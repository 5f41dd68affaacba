"""Writes tests/golden/models: tiny random folders of every family with the logits that
`transformers` computes from them in f32.

    python3 tools/make_model_goldens.py [NAME...]        # needs torch, transformers, safetensors

Deterministic. Each folder is as Hugging Face would save it, plus tokens.jsonl and logits.f32 (see
the README there).
"""
import json
import pathlib
import shutil
import sys

import numpy
import torch
from safetensors.torch import save_file
import transformers
from transformers import LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/models"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
# name: hidden, heads, kv heads, head_dim, ffn, layers, vocab, tied, dtype, shards, theta, rope,
# style of config.json
MODELS = {
    "gqa1_f32":        (48, 3, 3, 16, 72, 2, 96, False, "float32", 1, 10000.0, None, "v4"),
    "gqa4_tied_f32":   (32, 8, 2, 16, 45, 3, 64, True, "float32", 1, 10000.0, None, "v4"),
    "gqa8_bf16":       (48, 8, 1, 48, 51, 2, 100, False, "bfloat16", 2, 500000.0, None, "v4"),
    "llama3_rope_f32": (48, 4, 2, 32, 64, 2, 64, True, "float32", 1, 10000.0, LLAMA3, "v4"),
    "linear_rope_f16": (32, 4, 2, 16, 64, 2, 64, False, "float16", 1, 10000.0, {"type": "linear", "factor": 4.0}, "v4"),
    "v5_config_bf16":  (64, 8, 2, 32, 77, 2, 72, True, "bfloat16", 1, 500000.0, LLAMA3, "v5"),
    "sharded_f32":     (32, 2, 1, 32, 49, 3, 64, False, "float32", 3, 10000.0, None, "v4"),
}
N_TOKENS = 48

LONG = [1.0 + 0.8 * i for i in range(8)]
SHORT = [1.0 + 0.05 * i for i in range(8)]
EXPERTS = {"num_experts": 6, "moe_intermediate_size": 27, "num_experts_per_tok": 3, "norm_topk_prob": True,
           "decoder_sparse_step": 1, "mlp_only_layers": []}
# name: architecture, dtype, hidden, heads, kv heads, head_dim, ffn, layers, vocab, tied, and what
# else config.json has.
FAMILIES = {
    "mistral_f32": ("MistralForCausalLM", "float32", 48, 4, 2, 32, 40, 2, 64, False, {"sliding_window": None, "head_dim": 32}),
    "mistral_window_f32": ("MistralForCausalLM", "float32", 64, 4, 1, 16, 45, 2, 64, True, {"sliding_window": 9}),
    "qwen2_f32": ("Qwen2ForCausalLM", "float32", 48, 6, 2, 16, 40, 2, 72, False,
                  {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 1, "head_dim": 16}),
    "qwen2_window_bf16": ("Qwen2ForCausalLM", "bfloat16", 64, 4, 4, 16, 52, 3, 64, True,
                          {"use_sliding_window": True, "sliding_window": 17, "max_window_layers": 1,
                           "rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0,
                                                               "original_max_position_embeddings": 64}}),
    "qwen3_f32": ("Qwen3ForCausalLM", "float32", 32, 4, 2, 32, 40, 2, 64, True,
                  {"head_dim": 32, "attention_bias": False, "rope_theta": 1e6}),
    "qwen3_layers_bf16": ("Qwen3ForCausalLM", "bfloat16", 48, 8, 1, 16, 56, 3, 64, False,
                          {"head_dim": 16, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 28,
                           "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "mixtral_f32": ("MixtralForCausalLM", "float32", 32, 4, 2, 16, 24, 2, 64, False,
                    {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None, "rope_theta": 1e6}),
    "mixtral_window_bf16": ("MixtralForCausalLM", "bfloat16", 48, 3, 3, 16, 20, 2, 64, True,
                            {"num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": 12}),
    "qwen3_moe_f32": ("Qwen3MoeForCausalLM", "float32", 32, 4, 2, 16, 40, 2, 64, False,
                      {"head_dim": 16, **EXPERTS, "moe_intermediate_size": 24}),
    "qwen3_moe_some_bf16": ("Qwen3MoeForCausalLM", "bfloat16", 48, 6, 1, 16, 44, 4, 64, True,
                            {"head_dim": 16, **EXPERTS, "num_experts": 9, "num_experts_per_tok": 4, "norm_topk_prob": False,
                             "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    "internlm2_f32": ("InternLM2ForCausalLM", "float32", 48, 6, 2, 16, 40, 2, 64, False,
                      {"bias": False, "head_dim": 16, "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "internlm2_long_bf16": ("InternLM2ForCausalLM", "bfloat16", 64, 4, 1, 32, 44, 2, 64, True,
                            {"bias": False, "head_dim": 32, "max_position_embeddings": 32,
                             "rope_scaling": {"type": "dynamic", "factor": 2.5}}),
    "phi3_f32": ("Phi3ForCausalLM", "float32", 64, 4, 2, 16, 40, 2, 64, False,
                 {"sliding_window": 13, "max_position_embeddings": 64, "original_max_position_embeddings": 64,
                  "rope_scaling": {"type": "longrope", "factor": 4.0, "short_factor": SHORT, "long_factor": LONG}}),
    "phi3_long_bf16": ("Phi3ForCausalLM", "bfloat16", 64, 4, 4, 16, 45, 2, 64, True,
                       {"sliding_window": 100000, "original_max_position_embeddings": 32,
                        "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}}),
    "yarn_rope_f32": ("LlamaForCausalLM", "float32", 32, 4, 2, 32, 40, 2, 64, True,
                      {"head_dim": 32, "rope_parameters": {
                          "rope_type": "yarn", "rope_theta": 5e4, "factor": 3.0, "original_max_position_embeddings": 40,
                          "beta_fast": 8.0, "beta_slow": 0.5, "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.4}}),
    "mistral_odd_bf16": ("MistralForCausalLM", "bfloat16", 40, 6, 2, 16, 43, 2, 61, False, {"sliding_window": 7, "head_dim": 16}),
    "qwen3_yarn_bf16": ("Qwen3ForCausalLM", "bfloat16", 40, 6, 3, 16, 33, 2, 63, True,
                        {"head_dim": 16, "attention_bias": False, "rope_theta": 1e6, "max_position_embeddings": 128,
                         "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}),
    "mixtral_three_bf16": ("MixtralForCausalLM", "bfloat16", 32, 8, 2, 16, 19, 2, 63, False,
                           {"head_dim": 16, "num_local_experts": 7, "num_experts_per_tok": 3, "sliding_window": None,
                            "rope_theta": 1e6}),
    "internlm2_equal_bf16": ("InternLM2ForCausalLM", "bfloat16", 48, 3, 3, 16, 37, 2, 63, False,
                             {"bias": False, "head_dim": 16, "rope_scaling": None}),
    "phi3_odd_bf16": ("Phi3ForCausalLM", "bfloat16", 48, 3, 1, 16, 35, 2, 63, False,
                      {"sliding_window": 10, "original_max_position_embeddings": 256, "rope_scaling": None}),
    "qwen2_moe_f32": ("Qwen2MoeForCausalLM", "float32", 32, 4, 2, 16, 40, 2, 64, False,
                      {**EXPERTS, "moe_intermediate_size": 12, "num_experts_per_tok": 2, "norm_topk_prob": False,
                       "shared_expert_intermediate_size": 28, "head_dim": 16}),
    "qwen2_moe_some_bf16": ("Qwen2MoeForCausalLM", "bfloat16", 48, 6, 1, 16, 41, 4, 63, True,
                            {**EXPERTS, "num_experts": 7, "moe_intermediate_size": 13, "num_experts_per_tok": 4,
                             "shared_expert_intermediate_size": 27, "head_dim": 16, "decoder_sparse_step": 2,
                             "mlp_only_layers": [1], "use_sliding_window": False, "qkv_bias": False}),
    "gemma3_f32": ("Gemma3ForCausalLM", "float32", 32, 4, 2, 16, 36, 4, 64, True,
                   {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 11, "sliding_window_pattern": 2,
                    "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "gemma3_layers_bf16": ("Gemma3ForCausalLM", "bfloat16", 48, 6, 1, 32, 45, 3, 63, False,
                           {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 6,
                            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5},
                                                "sliding_attention": {"rope_type": "default", "rope_theta": 3e3}}}),
}


def config(hidden, heads, kv, head_dim, ffn, layers, vocab, tied, dtype, shards, theta, rope, style):
    c = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden,
         "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
         "hidden_act": "silu", "rms_norm_eps": 1e-05, "max_position_embeddings": 256, "tie_word_embeddings": tied,
         "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2}
    if head_dim * heads != hidden or style == "v5":
        c["head_dim"] = head_dim
    if style == "v5":
        c["dtype"] = dtype
        c["rope_parameters"] = {"rope_theta": theta, **(rope or {"rope_type": "default"})}
    else:
        c["torch_dtype"] = dtype
        c["rope_theta"] = theta
        c["rope_scaling"] = rope
    return c


def tensors(g, hidden, heads, kv, head_dim, ffn, layers, vocab, tied, dtype):
    def normal(*shape, std=0.12, mean=0.0):
        return (torch.randn(*shape, generator=g) * std + mean).to(getattr(torch, dtype))

    t = {"model.embed_tokens.weight": normal(vocab, hidden, std=0.7), "model.norm.weight": normal(hidden, mean=1.0)}
    for i in range(layers):
        p = f"model.layers.{i}."
        t[p + "input_layernorm.weight"] = normal(hidden, mean=1.0)
        t[p + "post_attention_layernorm.weight"] = normal(hidden, mean=1.0)
        t[p + "self_attn.q_proj.weight"] = normal(heads * head_dim, hidden, std=0.3)
        t[p + "self_attn.k_proj.weight"] = normal(kv * head_dim, hidden, std=0.3)
        t[p + "self_attn.v_proj.weight"] = normal(kv * head_dim, hidden)
        t[p + "self_attn.o_proj.weight"] = normal(hidden, heads * head_dim)
        t[p + "mlp.gate_proj.weight"] = normal(ffn, hidden)
        t[p + "mlp.up_proj.weight"] = normal(ffn, hidden)
        t[p + "mlp.down_proj.weight"] = normal(hidden, ffn)
    if not tied:
        t["lm_head.weight"] = normal(vocab, hidden, std=0.3)
    return t


def family_config(architecture, dtype, hidden, heads, kv, head_dim, ffn, layers, vocab, tied, extra):
    return {"architectures": [architecture], "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "hidden_act": "silu",
            "rms_norm_eps": 1e-05, "max_position_embeddings": 256, "tie_word_embeddings": tied, "bos_token_id": 1,
            "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": dtype, "model_type": MODEL_TYPES[architecture],
            **({"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"} if "Gemma" in architecture else {}),
            **extra}


MODEL_TYPES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2",
               "Qwen3ForCausalLM": "qwen3", "MixtralForCausalLM": "mixtral", "Qwen3MoeForCausalLM": "qwen3_moe",
               "InternLM2ForCausalLM": "internlm2", "Phi3ForCausalLM": "phi3", "Qwen2MoeForCausalLM": "qwen2_moe",
               "Gemma3ForCausalLM": "gemma3_text"}


def is_sparse(c, layer):
    if "num_local_experts" in c:
        return True
    return "num_experts" in c and layer not in c["mlp_only_layers"] and (layer + 1) % c["decoder_sparse_step"] == 0


def family_tensors(g, c, head_dim, dtype):
    """Random tensors under the names that the family's files use."""
    def normal(*shape, std=0.12, mean=0.0):
        return (torch.randn(*shape, generator=g) * std + mean).to(getattr(torch, dtype))

    kind, hidden, ffn = c["model_type"], c["hidden_size"], c["intermediate_size"]
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    # Gemma's norms are stored less 1.
    internlm, one = kind == "internlm2", 0.0 if kind == "gemma3_text" else 1.0
    t = {("model.tok_embeddings.weight" if internlm else "model.embed_tokens.weight"): normal(c["vocab_size"], hidden, std=0.7),
         "model.norm.weight": normal(hidden, mean=one)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        attn = p + ("attention." if internlm else "self_attn.")
        norms = ("attention_norm", "ffn_norm") if internlm else ("input_layernorm", "post_attention_layernorm")
        if kind == "gemma3_text":
            norms += ("pre_feedforward_layernorm", "post_feedforward_layernorm")
        for name in norms:
            t[f"{p}{name}.weight"] = normal(hidden, mean=one)
        if internlm:
            t[attn + "wqkv.weight"] = normal((heads + 2 * kv) * head_dim, hidden, std=0.25)
        elif kind == "phi3":
            t[attn + "qkv_proj.weight"] = normal((heads + 2 * kv) * head_dim, hidden, std=0.25)
        else:
            for name, rows, std in (("q", heads, 0.3), ("k", kv, 0.3), ("v", kv, 0.12)):
                t[f"{attn}{name}_proj.weight"] = normal(rows * head_dim, hidden, std=std)
                if kind == "qwen2" or kind == "qwen2_moe" and c.get("qkv_bias", True):
                    t[f"{attn}{name}_proj.bias"] = normal(rows * head_dim, std=0.5)
        if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
            for name in ("q_norm", "k_norm"):
                t[f"{attn}{name}.weight"] = normal(head_dim, mean=one + 0.3, std=0.3)
        t[attn + ("wo.weight" if internlm else "o_proj.weight")] = normal(hidden, heads * head_dim)
        if is_sparse(c, i):
            mixtral = kind == "mixtral"
            moe = p + ("block_sparse_moe." if mixtral else "mlp.")
            width, names = (ffn, "w1 w3 w2") if mixtral else (c["moe_intermediate_size"], "gate_proj up_proj down_proj")
            n = c["num_local_experts"] if mixtral else c["num_experts"]
            t[moe + "gate.weight"] = normal(n, hidden, std=0.5)
            for e in range(n):
                for name, shape in zip(names.split(), ((width, hidden), (width, hidden), (hidden, width))):
                    t[f"{moe}experts.{e}.{name}.weight"] = normal(*shape)
            shared = c.get("shared_expert_intermediate_size")
            if shared:
                t[moe + "shared_expert_gate.weight"] = normal(1, hidden, std=0.5)
                for name, shape in zip(names.split(), ((shared, hidden), (shared, hidden), (hidden, shared))):
                    t[f"{moe}shared_expert.{name}.weight"] = normal(*shape)
        elif kind == "phi3":
            t[p + "mlp.gate_up_proj.weight"] = normal(2 * ffn, hidden)
            t[p + "mlp.down_proj.weight"] = normal(hidden, ffn)
        else:
            names = "feed_forward.w1 feed_forward.w3 feed_forward.w2" if internlm else "mlp.gate_proj mlp.up_proj mlp.down_proj"
            for name, shape in zip(names.split(), ((ffn, hidden), (ffn, hidden), (hidden, ffn))):
                t[f"{p}{name}.weight"] = normal(*shape)
    if not c["tie_word_embeddings"]:
        t["output.weight" if internlm else "lm_head.weight"] = normal(c["vocab_size"], hidden, std=0.3)
    return t


def llama_of_internlm2(c, t, head_dim):
    """The same model as a Llama, because transformers has no InternLM2."""
    names = {"tok_embeddings": "embed_tokens", "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj",
             "feed_forward.w3": "mlp.up_proj", "feed_forward.w2": "mlp.down_proj", "attention_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm", "output.weight": "lm_head.weight"}
    kv, state = c["num_key_value_heads"], {}
    group = c["num_attention_heads"] // kv
    for name, x in t.items():
        if "wqkv" in name:
            rows = x.float().view(kv, group + 2, head_dim, -1)
            for which, part in (("q", rows[:, :group]), ("k", rows[:, group]), ("v", rows[:, group + 1])):
                state[name.replace("attention.wqkv", f"self_attn.{which}_proj")] = part.reshape(-1, x.shape[1])
            continue
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = x.float()
    config = transformers.LlamaConfig(**{k: v for k, v in c.items() if k not in ("architectures", "model_type", "torch_dtype", "bias")})
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(c["tie_word_embeddings"] and m == "lm_head.weight" for m in missing), (missing, unexpected)
    return model.float().eval()


def write_family(name, seed, spec):
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    g = torch.Generator().manual_seed(2000 + seed)
    c, head_dim = family_config(*spec), spec[5]
    (folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    t = family_tensors(g, c, head_dim, spec[1])
    save(folder, t, 1)
    ids = torch.randint(0, c["vocab_size"], (1, N_TOKENS), generator=g)
    (folder / "tokens.jsonl").write_text(json.dumps({"token_ids": ids[0].tolist()}) + "\n")
    if c["model_type"] == "internlm2":
        model = llama_of_internlm2(c, t, head_dim)
    else:
        oracle = getattr(transformers, spec[0])
        model, info = oracle.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                             output_loading_info=True, experts_implementation="eager")
        assert not any(info.get(k) for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    with torch.no_grad():
        logits = model(ids).logits[0].float().numpy()
    logits.astype("<f4").tofile(folder / "logits.f32")
    for file in folder.iterdir():
        file.chmod(0o644)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: logits std {numpy.std(logits):.2f}, {size >> 10} KiB, cosines times {getattr(model.model.rotary_emb, 'attention_scaling', 1):.4f}")


def save(folder, t, shards):
    if shards == 1:
        save_file(t, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(t)
    weight_map, per = {}, -(-len(names) // shards)
    for s in range(shards):
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        part = names[s * per:(s + 1) * per]
        save_file({n: t[n] for n in part}, folder / file, metadata={"format": "pt"})
        weight_map |= {n: file for n in part}
    total = sum(x.numel() * x.element_size() for x in t.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def main():
    wanted = sys.argv[1:] or [*MODELS, *FAMILIES]
    for seed, (name, spec) in enumerate(MODELS.items()):
        if name not in wanted:
            continue
        folder = ROOT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        g = torch.Generator().manual_seed(1000 + seed)
        (folder / "config.json").write_text(json.dumps(config(*spec), indent=1) + "\n")
        save(folder, tensors(g, *spec[:9]), spec[9])
        ids = torch.randint(0, spec[6], (1, N_TOKENS), generator=g)
        (folder / "tokens.jsonl").write_text(json.dumps({"token_ids": ids[0].tolist()}) + "\n")
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            logits = model(ids).logits[0].float().numpy()
        logits.astype("<f4").tofile(folder / "logits.f32")
        for file in folder.iterdir():
            file.chmod(0o644)
        rope = model.model.rotary_emb
        print(f"{name}: logits std {numpy.std(logits):.2f}, head_dim {model.config.head_dim}, "
              f"inv_freq {rope.inv_freq[0]:.4f}..{rope.inv_freq[-1]:.3g}, "
              f"tied {model.lm_head.weight is model.model.embed_tokens.weight}")
    for seed, (name, spec) in enumerate(FAMILIES.items()):
        if name in wanted:
            write_family(name, seed, spec)


if __name__ == "__main__":
    main()
