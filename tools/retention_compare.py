"""Compares what `octavo run` kept with tests/golden/retention_demo.json.

    python3 tools/retention_compare.py --write prompts.jsonl
    build/octavo run --model models/demo --prompts prompts.jsonl --dtype f32 > out.jsonl
    python3 tools/retention_compare.py out.jsonl             # exits with 1 when anything differs

tools/retention_reference.py writes the golden file. Kept ranges are compared up to the prompt's
end; pages whose scores tie within 1e-5 may differ. Needs the standard library only.
"""
import argparse
import json
import pathlib
import sys

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"


def tokens(ranges, end):
    return {i for a, b in ranges for i in range(a, min(b, end))}


def differences(case, report, page, reuse):
    excused = {m["layer"]: set(m["tied"]) for m in case["margins"]}
    for want, got in zip(case["kept"], report["kept"]):
        layer = want["layers"][0]
        if (want["layers"], want["heads"]) != (got["layers"], got["heads"]):
            yield f"table {got['layers']} {got['heads']} where {want['layers']} {want['heads']} is due"
            continue
        other = tokens(want["ranges"], case["prompt_tokens"]) ^ tokens(got["ranges"], case["prompt_tokens"])
        pages = sorted({i // page for i in other} - excused[layer // reuse * reuse])
        if pages:
            yield f"layer {layer}: pages {pages}"
    if len(case["kept"]) != len(report["kept"]):
        yield f"{len(report['kept'])} tables, not {len(case['kept'])}"
    if report["budget_raised"] != case["budget_raised"]:
        yield f"budget_raised {report['budget_raised']}"


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("output", nargs="?")
    ap.add_argument("--write", metavar="FILE")
    a = ap.parse_args()
    golden = json.load(open(GOLDEN / "retention_demo.json"))
    if a.write:
        prompts = {x["id"]: x for x in map(json.loads, open(GOLDEN / "needle_200.jsonl"))}
        with open(a.write, "w") as f:
            for c in golden["cases"]:
                f.write(json.dumps({**prompts[c["id"]], "retention": {**c["retention"], "report": "positions"}}) + "\n")
        return 0
    outputs = {x["id"]: x for x in map(json.loads, open(a.output))}
    wrong = 0
    for c in golden["cases"]:
        x = outputs.get(c["id"])
        found = ["missing"] if not x else list(differences(c, x["retention"], golden["page_tokens"], c["retention"].get("reuse_layers", 1)))
        if x and x["token_ids"] != c["token_ids"]:
            found.append(f"tokens {x['token_ids']}, not {c['token_ids']} (smallest logit gap {c['logit_gap']})")
        wrong += bool(found)
        print(f"{c['id']} {json.dumps(c['retention'])}: {'; '.join(found) or 'equal'}")
    print(f"{len(golden['cases']) - wrong} of {len(golden['cases'])} equal")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
