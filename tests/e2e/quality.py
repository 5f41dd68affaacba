#!/usr/bin/env python3
"""`octavo bench quality` as a user meets it, on the model that recalls. usage: quality.py OCTAVO   (from
the source root)"""

import json
import os
import subprocess
import sys
import tempfile
import xml.dom.minidom

RECALL = ["--model", "tests/golden/models/recall_f32", "--kv-memory", "32M"]


def bench(octavo, *flags, status=0):
    run = subprocess.run([octavo, "bench", "quality", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode != status:
        sys.exit(f"{flags}: exit {run.returncode}, not {status}\n{run.stderr[-2000:]}")
    return run


def refused(octavo, says, *flags):
    run = bench(octavo, *flags, status=2 if "is missing" in says or "must be given" in says else 1)
    if says not in run.stderr:
        sys.exit(f"{flags}: {run.stderr!r} lacks {says!r}")


def check_drawings(folder):
    names = [n for n in os.listdir(folder) if n.endswith(".svg")]
    assert {n.split("-")[0] for n in names} == {"curves", "niah", "jaccard"}, names
    for name in names:
        xml.dom.minidom.parse(os.path.join(folder, name))


def recall(octavo, folder):
    flags = [*RECALL, "--tasks", "recall", "--lengths", "512,1024", "--samples", "8", "--budgets", "0.25", "--out", folder]
    table = bench(octavo, *flags, "--method", "chunkkv").stdout
    assert "| chunkkv | 0.25 |" in table, table
    check_drawings(folder)
    with open(os.path.join(folder, "results.json")) as f:
        task = json.load(f)["tasks"][0]
    assert [x["length"] for x in task["lengths"]] == [512, 1024]
    assert all(c["score"]["mean"] == 1 for c in task["all"]["cells"]["single"]), task["all"]

    lines = os.path.getsize(os.path.join(folder, "records.jsonl"))
    refused(octavo, "--resume", *flags, "--method", "chunkkv")
    again = bench(octavo, *flags, "--method", "chunkkv", "--resume")
    assert again.stdout == table and "0 answers (32 before)" in again.stderr, again.stderr
    # A method that is added is asked alone; what is there is reported without asking.
    more = bench(octavo, *flags, "--method", "chunkkv", "--method", "rag-bm25", "--resume")
    assert "16 answers (32 before)" in more.stderr, more.stderr
    assert os.path.getsize(os.path.join(folder, "records.jsonl")) > lines
    assert bench(octavo, *flags, "--method", "chunkkv", "--report").stdout == table
    # A line that was cut off is asked again.
    with open(os.path.join(folder, "records.jsonl"), "r+") as f:
        f.truncate(os.path.getsize(f.name) - 20)
    cut = bench(octavo, *flags, "--method", "chunkkv", "--method", "rag-bm25", "--resume")
    assert "1 answers (47 before)" in cut.stderr, cut.stderr
    assert cut.stdout == more.stdout
    refused(octavo, "other settings", *flags, "--resume", "--seed", "1")


def user_data(octavo, folder):
    data = os.path.join(folder, "passkey.jsonl")
    with open(data, "w") as f:
        for i in range(4):
            print(json.dumps({"context": f"{i}abc" * 20, "input": "x", "answer": ["7"]}), file=f)
    # The model knows 32 letters: their answers are wrong, and counted.
    table = bench(octavo, *RECALL, "--data", data + ":infinitebench", "--method", "full", "--out", os.path.join(folder, "out"),
                  "--samples", "3").stdout
    assert "0.000 (0.000 to 0.561, 3 prompts of 3 contexts)" in table, table


def main():
    octavo = sys.argv[1]
    assert "demo_niah" in bench(octavo, "--help").stdout
    with tempfile.TemporaryDirectory() as root:
        recall(octavo, os.path.join(root, "recall"))
        user_data(octavo, root)
        out = ["--out", os.path.join(root, "never")]
        refused(octavo, "--model is missing", "--tasks", "recall", *out)
        refused(octavo, "--out is missing", *RECALL, "--tasks", "recall")
        refused(octavo, "must be given", *RECALL, *out)
        refused(octavo, "'reca' is unknown", *RECALL, "--tasks", "reca", *out)
        refused(octavo, "--lengths", *RECALL, "--tasks", "recall", "--lengths", "9999", *out)
        refused(octavo, "'nonesuch' is unknown", *RECALL, "--tasks", "recall", "--method", "nonesuch", *out)
        refused(octavo, "--budgets", *RECALL, "--tasks", "recall", "--budgets", "2.5", *out)
        refused(octavo, "is not there", *RECALL, "--tasks", "recall", "--report", *out)
        refused(octavo, "--chat", *RECALL, "--tasks", "recall", "--chat", *out)
        assert not os.path.exists(out[1])
    print("bench quality: as documented")


if __name__ == "__main__":
    main()
