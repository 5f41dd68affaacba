"""Writes tests/golden/models/transformers_X_Y: folders of every family as this version of
transformers saves them.

    python3 tools/make_saved_goldens.py        # needs torch, transformers, safetensors

Each is a folder of tools/make_model_goldens.py, loaded and saved again, with the logits that
transformers computes from the saved folder in f32. The names and layout of config.json and of the
tensors are the library's own.
"""
import json
import pathlib
import shutil

import numpy
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/models"
# transformers has no InternLM2
NAMES = ["llama3_rope_f32", "yarn_rope_f32", "linear_rope_f16", "mistral_window_f32", "qwen2_window_bf16",
         "qwen3_layers_bf16", "mixtral_f32", "qwen3_moe_f32", "qwen3_moe_some_bf16", "phi3_f32", "phi3_long_bf16",
         "qwen2_moe_f32", "gemma3_f32", "gemma3_layers_bf16"]


def load(folder, dtype):
    c = json.loads((folder / "config.json").read_text())
    model, info = getattr(transformers, c["architectures"][0]).from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    assert not any(info.get(k) for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model


def write(name, folder):
    source = ROOT / name
    load(source, "auto").save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    shutil.copyfile(source / "tokens.jsonl", folder / "tokens.jsonl")
    ids = torch.tensor([json.loads((folder / "tokens.jsonl").read_text())["token_ids"]])
    with torch.no_grad():
        logits = load(folder, torch.float32)(ids).logits[0].float().numpy()
    logits.astype("<f4").tofile(folder / "logits.f32")
    for file in folder.iterdir():
        file.chmod(0o644)
    before = numpy.fromfile(source / "logits.f32", "<f4").reshape(logits.shape)
    error = ((logits - before) ** 2).sum() / (before ** 2).sum()
    print(f"{name}: {sum(f.stat().st_size for f in folder.iterdir()) >> 10} KiB, NMSE to {name} as first saved {error:.1e}")


def main():
    version = "_".join(transformers.__version__.split(".")[:2])
    root = ROOT / f"transformers_{version}"
    shutil.rmtree(root, ignore_errors=True)
    for name in NAMES:
        (root / name).mkdir(parents=True)
        write(name, root / name)


if __name__ == "__main__":
    main()
