"""Writes tests/golden/models: tiny random Llama folders with the logits that `transformers` computes from them in f32.

    python3 tools/make_model_goldens.py          # needs torch, transformers, safetensors

Deterministic. Each folder is what Hugging Face would save, plus tokens.jsonl and logits.f32 (see the README there).
"""
import json
import pathlib
import shutil

import numpy
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/models"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
# name: hidden, heads, kv heads, head_dim, ffn, layers, vocab, tied, dtype, shards, theta, rope, style of config.json
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
    for seed, (name, spec) in enumerate(MODELS.items()):
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


if __name__ == "__main__":
    main()
