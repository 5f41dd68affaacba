"""Prints a table of right answers by task and length, from the lines of `octavo run --prompts`.

    build/octavo run --model models/demo --prompts tests/golden/needle_200.jsonl > out.jsonl
    python3 tools/needle_score.py out.jsonl [more.jsonl ...]      # one row for each file

An answer is right when its text, without white space around it, is the number that was hidden. The
first row is the oracle's. Needs the standard library only.
"""
import argparse
import collections
import json
import pathlib

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"


def lines(path):
    with open(path) as f:
        return [json.loads(x) for x in f if x.strip()]


def kept_share(outputs):
    """Kept tokens over logical tokens, or None when everything was kept."""
    reports = [x["retention"] for x in outputs.values() if x.get("retention")]
    logical = sum(r["logical_tokens"] for r in reports)
    return sum(r["kept_tokens"] for r in reports) / logical if logical else None


def row(name, right, cases, columns, kept):
    cells = []
    for column in columns:
        ids = [c["id"] for c in cases if column in (c["task"], c["length"], "all", f"{c['task']} {c['length']}")]
        cells.append(f"{sum(right.get(i, False) for i in ids)}/{len(ids)}")
    print("| " + " | ".join([name, "-" if kept is None else f"{kept:.3f}", *cells]) + " |")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("outputs", nargs="*", help="what octavo run wrote; NAME=FILE names the row")
    ap.add_argument("--answers", default=GOLDEN / "needle_200.answers.jsonl")
    ap.add_argument("--oracle", default=GOLDEN / "needle_200.oracle.jsonl")
    a = ap.parse_args()
    cases = lines(a.answers)
    wanted = {c["id"]: c["answer"] for c in cases}
    oracle = {x["id"]: x for x in lines(a.oracle)}
    tasks = list(dict.fromkeys(c["task"] for c in cases))
    lengths = list(dict.fromkeys(c["length"] for c in cases))
    columns = ["all", *tasks, *lengths, *(f"{t} {n}" for t in tasks for n in lengths)]
    print("| run | kept | " + " | ".join(map(str, columns)) + " |")
    print("| --- | --- |" + " --- |" * len(columns))
    row("oracle", {i: x["right"] for i, x in oracle.items()}, cases, columns, None)
    notes = []
    for argument in a.outputs:
        name, _, path = argument.rpartition("=")
        outputs = {x["id"]: x for x in lines(path) if x.get("index", 0) == 0}
        missing = collections.Counter(i in outputs for i in wanted)[False]
        right = {i: x.get("text", "").strip() == wanted[i] for i, x in outputs.items() if i in wanted}
        row(name or pathlib.Path(path).stem, right, cases, columns, kept_share(outputs))
        other = [i for i in outputs if i in oracle and outputs[i].get("token_ids") != oracle[i]["token_ids"]]
        notes.append(f"{name or path}: {len(outputs)} answers, {missing} missing, {len(other)} with other tokens than the oracle's")
    print("\n" + "\n".join(notes) if notes else "")


if __name__ == "__main__":
    main()
