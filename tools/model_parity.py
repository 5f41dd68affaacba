"""A model folder through `octavo score` and through `transformers`, as a table of how near they
are.

    python3 tools/model_parity.py DIR [--octavo PATH] [--tokens FILE.jsonl] [--n 256]
        [--flags "--tp 2"]

Needs torch and transformers. The oracle computes in f32, whatever type is stored. Each line of the
table is one way to run Octavo:

    NMSE      sum((ours - oracle)^2) / sum(oracle^2) over all logits
    greedy    share of tokens for which both have the same likeliest token
    nats      the most by which our likeliest token is less likely to the oracle than its own
    ppl       perplexity of the tokens, ours and the oracle's
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

# name of the way: flags, most NMSE, most nats (None: only printed)
WAYS = {"f32": (["--dtype", "f32"], 1e-9, None), "bf16": (["--dtype", "bf16"], 1e-4, 0.5),
        "f32, int8 weights": (["--dtype", "f32", "--quantize", "int8"], None, None),
        "f32, int8 pages": (["--dtype", "f32", "--kv-dtype", "int8"], None, None)}


def oracle(folder):
    config = json.loads((folder / "config.json").read_text())
    if config["architectures"][0] == "InternLM2ForCausalLM":
        from make_model_goldens import llama_of_internlm2
        from safetensors.torch import load_file
        tensors = {name: x for file in sorted(folder.glob("*.safetensors")) for name, x in load_file(file).items()}
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return llama_of_internlm2(config, tensors, head_dim)
    flags = {"dtype": torch.float32, "attn_implementation": "eager"}
    if any(key in config for key in ("num_experts", "num_local_experts")):
        flags["experts_implementation"] = "eager"
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **flags).eval()


def log_softmax(logits):
    x = logits.astype(numpy.float64)
    x -= x.max(-1, keepdims=True)
    return x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))


def perplexity(logits, ids):
    return numpy.exp(-log_softmax(logits)[numpy.arange(len(ids) - 1), ids[1:]].mean())


def ours(args, flags, line, shape):
    with tempfile.TemporaryDirectory() as place:
        tokens, logits = pathlib.Path(place) / "tokens", pathlib.Path(place) / "logits"
        tokens.write_text(line + "\n")
        command = [args.octavo, "score", "--model", args.dir, "--tokens", tokens, "--logits", logits,
                   *flags, *args.flags.split()]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            return None, run.stderr.strip().splitlines()[-1]
        return numpy.fromfile(logits, "<f4").reshape(shape), None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("--octavo", default="octavo")
    p.add_argument("--tokens", help='a line {"token_ids": [...]}; default: DIR/tokens.jsonl, or random ids')
    p.add_argument("--n", type=int, default=256, help="random ids")
    p.add_argument("--flags", default="", help="more flags of octavo score")
    args = p.parse_args()
    folder = pathlib.Path(args.dir)
    model = oracle(folder)
    file = pathlib.Path(args.tokens) if args.tokens else folder / "tokens.jsonl"
    if file.exists():
        ids = json.loads(file.read_text().splitlines()[0])["token_ids"]
    else:
        ids = numpy.random.default_rng(0).integers(0, model.config.vocab_size, args.n).tolist()
    with torch.no_grad():
        due = model(torch.tensor([ids])).logits[0].float().numpy()
    sure, best, failed = log_softmax(due), due.argmax(-1), False
    print(f"{folder.name}: {len(ids)} tokens, transformers {transformers.__version__} in f32\n")
    print("| octavo | NMSE | greedy | nats | ppl | transformers' | |\n| --- | --- | --- | --- | --- | --- | --- |")
    for name, (flags, most_nmse, most_nats) in WAYS.items():
        got, error = ours(args, flags, json.dumps({"token_ids": ids}), due.shape)
        if error:
            failed = True
            print(f"| {name} | {error} | | | | | failed |")
            continue
        nmse = float(((got - due).astype(numpy.float64) ** 2).sum() / (due.astype(numpy.float64) ** 2).sum())
        mine, rows = got.argmax(-1), numpy.arange(len(ids))
        nats = float((sure[rows, best] - sure[rows, mine]).max())
        good = (most_nmse is None or nmse < most_nmse) and (most_nats is None or nats <= most_nats)
        failed = failed or not good
        says = "" if most_nmse is None and most_nats is None else "passed" if good else "failed"
        print(f"| {name} | {nmse:.2e} | {int((mine == best).sum())}/{len(ids)} | {nats:.4f} | "
              f"{perplexity(got, ids):.4f} | {perplexity(due, ids):.4f} | {says} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
