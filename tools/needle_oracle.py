"""Writes the greedy answers of the demo model, by transformers: needle_200.oracle.jsonl.

    nice -n 5 python3 tools/needle_oracle.py --threads 2

The prompts are those of tests/golden/needle_200.jsonl; f32 arithmetic on the bf16 weights, full
cache. For each prompt: the tokens that are generated (the end token included), whether the answer
is entirely right, and the smallest gap between the two best logits on the way (a gap near zero
excuses another token of another engine).
"""
import argparse
import json
import pathlib

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent


@torch.no_grad()
def answer(model, ids, max_tokens, stops):
    out, gap, past, x = [], float("inf"), None, torch.tensor([ids])
    for _ in range(max_tokens):
        r = model(x, past_key_values=past, use_cache=True, logits_to_keep=1)
        past, best = r.past_key_values, r.logits[0, -1].topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        out.append(best.indices[0].item())
        if out[-1] in stops:
            break
        x = torch.tensor([[out[-1]]])
    return out, gap


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", type=pathlib.Path, default=ROOT / "models/demo")
    ap.add_argument("--set", default=str(ROOT / "tests/golden/needle_200"))
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    model = LlamaForCausalLM.from_pretrained(a.model, dtype=torch.float32, attn_implementation="sdpa")
    tok = Tokenizer.from_file(str(a.model / "tokenizer.json"))
    stops = json.load(open(a.model / "generation_config.json"))["eos_token_id"]
    wanted = {x["id"]: x["answer"] for x in map(json.loads, open(a.set + ".answers.jsonl"))}
    right = 0
    with open(a.set + ".oracle.jsonl", "w") as f:
        for n, line in enumerate(map(json.loads, open(a.set + ".jsonl"))):
            out, gap = answer(model, tok.encode(line["prompt"], add_special_tokens=False).ids, line["max_tokens"], stops)
            text = tok.decode([t for t in out if t not in stops])
            ok = text.strip() == wanted[line["id"]]
            right += ok
            f.write(json.dumps({"id": line["id"], "right": ok, "token_ids": out, "text": text, "gap": round(gap, 4)}) + "\n")
            f.flush()
            print(f"{n + 1} {line['id']}: {text!r} {'right' if ok else 'wrong, ' + wanted[line['id']]}  ({right} right)", flush=True)


if __name__ == "__main__":
    main()
