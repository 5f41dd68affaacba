#!/usr/bin/env python3
"""The demo model recalls needles in long texts; with every page kept, as often as the oracle
(PyTorch) does, token for token. usage: needle.py OCTAVO   (from the source root)

Takes every 20th of the 200 prompts, or every 50th with OCTAVO_TESTS_LIGHT (sanitizers). With
OCTAVO_SOAK it takes all of them, and also chunkkv at 50, 25 and 10 %, whose table is printed but
not checked."""

import json
import os
import subprocess
import sys
import tempfile

GOLDEN = "tests/golden/needle_200"
NEAR = 0.5  # nats between the oracle's two best tokens: bf16 pages may pick either


def lines(path):
    with open(path) as f:
        return {d["id"]: d for d in map(json.loads, f)}


def answers(octavo, prompts, retention, quantize="none"):
    """Ids mapped to output lines. Few requests at once, so that a small machine's memory
    suffices."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for p in prompts.values():
            f.write(json.dumps(dict(p, retention=retention) if retention else p) + "\n")
        f.flush()
        run = subprocess.run(
            [octavo, "run", "--model", "models/demo", "--prompts", f.name, "--kv-memory", "512M", "--max-batch", "4",
             "--quantize", quantize],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(f"octavo run: exit {run.returncode}\n{run.stderr[-2000:]}")
    return {d["id"]: d for d in map(json.loads, run.stdout.splitlines())}


def main():
    octavo, soak = sys.argv[1], bool(os.environ.get("OCTAVO_SOAK"))
    every = 1 if soak else 50 if os.environ.get("OCTAVO_TESTS_LIGHT") else 20
    prompts, oracle, right = (lines(GOLDEN + end) for end in (".jsonl", ".oracle.jsonl", ".answers.jsonl"))
    prompts = dict(list(prompts.items())[::every])

    def score(outputs):
        return sum(outputs[i]["text"].strip() == right[i]["answer"] for i in prompts)

    full = answers(octavo, prompts, None)
    n_oracle, n_full = sum(oracle[i]["right"] for i in prompts), score(full)
    others = [i for i in prompts if full[i]["token_ids"] != oracle[i]["token_ids"]]
    print(f"oracle {n_oracle}, full {n_full} of {len(prompts)} right; other tokens than the oracle's: {others or 'none'}")
    for ratio in (0.5, 0.25, 0.1) if soak else (0.25,):
        kept = answers(octavo, prompts, {"method": "chunkkv", "ratio": ratio})
        reports = [kept[i]["retention"] for i in prompts]
        share = sum(r["kept_tokens"] for r in reports) / sum(r["logical_tokens"] for r in reports)
        print(f"chunkkv {ratio}: {score(kept)} of {len(prompts)} right, {share:.3f} of the tokens kept")

    for quantize in ("int8", "int4") if soak else ("int8",):
        rounded = answers(octavo, prompts, None, quantize)
        same = sum(rounded[i]["token_ids"] == full[i]["token_ids"] for i in prompts)
        print(f"{quantize}: {score(rounded)} of {len(prompts)} right, {same} the same tokens")
        if same < 0.8 * len(prompts):
            sys.exit(f"{quantize}: only {same} of {len(prompts)} answers have the same tokens")

    wrong = [i for i in others if oracle[i]["gap"] > NEAR]
    if wrong:
        sys.exit(f"not the oracle's tokens, and it was sure of them: {wrong}")
    if n_full < n_oracle:
        sys.exit(f"full is right {n_full} times, the oracle {n_oracle}")


if __name__ == "__main__":
    main()
