#!/usr/bin/env python3
"""Writes tests/golden/pooling.json: pooled last hidden states of some token lists, in float32 with
transformers.

    python3 tools/pooling_oracle.py [--check]

It uses none of Octavo's code. Each case has a model's folder, token ids, the last token's hidden
state behind the final norm ("last"), and the mean over the tokens ("mean", summed in float64).
--check compares the file with what would be written. Needs torch and transformers.
"""
import argparse
import json
import pathlib

import numpy as np
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUT = ROOT / "tests/golden/pooling.json"
MODELS = ("models/demo", "tests/golden/models/linear_rope_f16", "tests/golden/models/mixtral_f32",
          "tests/golden/models/qwen3_f32", "tests/golden/models/gemma3_f32")
TOKENS = 48
TOLERANCE = 1e-5  # between two versions of torch


def make_case(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(ROOT / folder, dtype=torch.float32).model
    rng = np.random.default_rng(5)
    ids = rng.integers(0, model.config.vocab_size, TOKENS).tolist()
    with torch.no_grad():
        states = model(torch.tensor([ids])).last_hidden_state[0].double().numpy()
    return {"model": folder, "token_ids": ids, "last": states[-1].astype(np.float32).tolist(),
            "mean": states.mean(0).astype(np.float32).tolist()}


def differs(new, old):
    if len(new) != len(old):
        return True
    return any(a["model"] != b["model"] or a["token_ids"] != b["token_ids"] or
               np.abs(np.subtract(a[kind], b[kind])).max() > TOLERANCE
               for a, b in zip(new, old) for kind in ("last", "mean"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    cases = [make_case(folder) for folder in MODELS]
    if check:
        if differs(cases, json.loads(OUT.read_text(encoding="utf-8"))):
            raise SystemExit(f"{OUT}: differs")
        return
    rows = ",\n".join(json.dumps({k: [float(f"{x:.7g}") for x in v] if k in ("last", "mean") else v
                                  for k, v in case.items()}) for case in cases)
    OUT.write_text(f"[\n{rows}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
