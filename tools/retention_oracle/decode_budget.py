"""Checks SCOPE's bound on the generated tokens that a table keeps.

    python3 tools/retention_oracle/decode_budget.py [--octavo build/octavo]

No table keeps more than beta1 + beta2 + max(2 pages, interval) generated tokens of a long answer.
First by counting alone, over 16,384 tokens; then by the oracle's own tables, after each token. With
--octavo the program's report at the end of answers of many lengths must state the number counted
here.
"""
import argparse
import json
import pathlib
import subprocess

import presets
from generate import Request
from model import Llama

ROOT = pathlib.Path(__file__).resolve().parents[2]
BETAS = [(256, 256), (384, 128), (1, 8), (100, 3), (7, 6), (512, 512)]


def policy(kind, beta1, beta2, horizon, page=16):
    return presets.resolve({"method": kind, "decode": {"beta1": beta1, "beta2": beta2, "horizon": horizon}}, 100, page)


def bound(d, page):
    interval = max(1, (d.horizon - d.beta2) // d.beta1) if d.kind == "scope-discontinuous" else 1
    return d.beta1 + d.beta2 + max(2 * page, interval)


def counted(p, n_tokens):
    """Generated tokens that a table keeps after each of n_tokens rows."""
    n, out = 0, []
    for t in range(1, n_tokens + 1):
        n += 1
        if presets.is_decode_point(p, t):
            n = min(n, presets.scope_allowance(p.decode, t))
        out.append(n)
    return out


def check_counts():
    for kind in presets.SCOPE_KINDS:
        for beta1, beta2 in BETAS:
            for horizon in (1024, 16384):
                p = policy(kind, beta1, beta2, horizon)
                most = max(counted(p, 16384))
                assert most <= bound(p.decode, 16), (kind, beta1, beta2, horizon, most)
                print(f"{kind} {beta1}+{beta2} of {horizon}: at most {most}, bound {bound(p.decode, 16)}")


def check_tables():
    model = Llama(ROOT / "tests/golden/models/gqa1_f32")
    for kind in presets.SCOPE_KINDS:
        d = {"beta1": 9, "beta2": 7, "horizon": 90}
        r = Request(model, list(range(40)), {"method": kind, "prefill": {"method": "snapkv", "ratio": 0.5, "window": 8}, "decode": d}, 16, 120)
        want, frozen = counted(r.p, 120), []

        def watch():
            now = [[int((t.pos >= 40).sum()) for t in layer] for layer in r.tables]
            assert all(n == want[r.length - 41] for layer in now for n in layer), (kind, r.length, now)
            prompt = [[sorted(t.pos[t.pos < 40]) for t in layer] for layer in r.tables]
            frozen[:] = frozen or prompt
            assert prompt == frozen

        r.watch = watch
        r.run()
        print(f"{kind}: the oracle's tables keep what is counted after each of 119 tokens, and all of the prompt's")


def check_octavo(octavo):
    lengths, n_prompt, ids = (2, 8, 17, 40, 64, 131, 260, 500), 60, list(range(5, 65))
    for kind in presets.SCOPE_KINDS:
        d = {"beta1": 20, "beta2": 10, "horizon": 300}
        lines = [json.dumps({"id": str(n), "prompt_token_ids": ids, "max_tokens": n, "ignore_eos": True,
                             "retention": {"method": kind, "decode": d, "report": "positions"}}) for n in lengths]
        done = subprocess.run([octavo, "run", "--model", ROOT / "models/demo", "--dtype", "f32", "--threads", "1", "--kv-memory", "64M",
                               "--prompts", "-"], input="\n".join(lines), text=True, capture_output=True)
        answers = list(map(json.loads, done.stdout.splitlines()))
        assert len(answers) == len(lengths), done.stderr + done.stdout
        want = [0] + counted(policy(kind, 20, 10, 300), max(lengths))
        for x in answers:
            for table in x["retention"]["kept"]:
                n = sum(b - max(a, n_prompt) for a, b in table["ranges"] if b > n_prompt)
                assert n == want[int(x["id"]) - 1], (kind, x["id"], n, want[int(x["id"]) - 1])
        print(f"{kind}: octavo keeps what is counted, answers of {lengths} tokens")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--octavo")
    a = ap.parse_args()
    check_counts()
    check_tables()
    if a.octavo:
        check_octavo(a.octavo)


if __name__ == "__main__":
    main()
