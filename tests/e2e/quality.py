#!/usr/bin/env python3
"""`octavo bench quality` as a user meets it, on the model that recalls. usage: quality.py OCTAVO
(from the source root)"""

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
    # Only an added method is run; results that exist are reported without running.
    more = bench(octavo, *flags, "--method", "chunkkv", "--method", "rag-bm25", "--resume")
    assert "16 answers (32 before)" in more.stderr, more.stderr
    assert os.path.getsize(os.path.join(folder, "records.jsonl")) > lines
    assert bench(octavo, *flags, "--method", "chunkkv", "--report").stdout == table
    # A truncated line is run again.
    with open(os.path.join(folder, "records.jsonl"), "r+") as f:
        f.truncate(os.path.getsize(f.name) - 20)
    cut = bench(octavo, *flags, "--method", "chunkkv", "--method", "rag-bm25", "--resume")
    assert "1 answers (47 before)" in cut.stderr, cut.stderr
    assert cut.stdout == more.stdout
    refused(octavo, "other settings: seed was 42, now it is 1", *flags, "--resume", "--seed", "1")


def analyses(octavo, folder):
    """A method that keeps everything shows no change, chunkkv shows one, and the answers are
    unchanged."""
    flags = [*RECALL, "--tasks", "recall", "--lengths", "512", "--samples", "4", "--measure", "2", "--budgets", "0.25"]
    methods = ["--method", "chunkkv", "--method", 'all={"method":"chunkkv","tokens":4096}', "--method", "rag-bm25"]
    table = bench(octavo, *flags, *methods, "--analyses", "--out", folder).stdout
    assert "| eviction loss |" in table and "| step 300 |" in table, table
    plain = bench(octavo, *flags, *methods, "--out", folder + "-plain").stdout
    assert table.split("\nAttention over")[0] == plain.split("\nLabels:")[0], plain
    with open(os.path.join(folder, "results.json")) as f:
        found = {a["method"].split("=")[0]: a for a in json.load(f)["tasks"][0]["analyses"]["methods"]}
    assert set(found) == {"full", "chunkkv", "all"}, found.keys()
    whole, part = found["all"], found["chunkkv"]
    for layer in range(2):
        assert whole["kv_l1_loss"][layer] == 0 and whole["eviction_loss"][layer] < 1e-6, whole
        assert whole["attention_cosine"][layer] > 1 - 1e-6 and whole["heavy_hitters_kept"][layer] == 1, whole
        assert 0.6 < part["kv_l1_loss"][layer] < 0.8, part
        assert 0 < part["attention_l1"][layer] < 2 and part["heavy_hitters_kept"][layer] < 1, part
        assert found["full"]["eviction_loss"][layer] is None
    names = os.listdir(folder)
    for name in ("attention-recall.svg", "heavy-recall-full.svg", "heavy-recall-chunkkv.svg"):
        assert name in names, names
        xml.dom.minidom.parse(os.path.join(folder, name))
    assert bench(octavo, *flags, *methods, "--report", "--out", folder).stdout == table
    out = ["--analyses", "--out", os.path.join(folder, "never")]
    refused(octavo, "one rank", *flags, "--tp", "2", *out)
    refused(octavo, "--turns 2", *flags, "--turns", "2", *out)


def user_data(octavo, folder):
    data = os.path.join(folder, "passkey.jsonl")
    with open(data, "w") as f:
        for i in range(4):
            print(json.dumps({"context": f"{i}abc" * 20, "input": "x", "answer": ["7"]}), file=f)
    # The model knows 32 letters: its answers to these questions are wrong, and counted.
    table = bench(octavo, *RECALL, "--data", data + ":infinitebench", "--method", "full", "--out", os.path.join(folder, "out"),
                  "--samples", "3").stdout
    assert "0.000 (0.000 to 0.561, 3 prompts of 3 contexts)" in table, table


def main():
    octavo = sys.argv[1]
    assert "demo_niah" in bench(octavo, "--help").stdout
    with tempfile.TemporaryDirectory() as root:
        recall(octavo, os.path.join(root, "recall"))
        analyses(octavo, os.path.join(root, "analyses"))
        user_data(octavo, root)
        out = ["--out", os.path.join(root, "never")]
        refused(octavo, "--model is missing", "--tasks", "recall", *out)
        refused(octavo, "--out is missing", *RECALL, "--tasks", "recall")
        refused(octavo, "must be given", *RECALL, *out)
        refused(octavo, "'reca' is unknown", *RECALL, "--tasks", "reca", *out)
        refused(octavo, "--lengths", *RECALL, "--tasks", "recall", "--lengths", "9999999", *out)
        refused(octavo, "'nonesuch' is unknown", *RECALL, "--tasks", "recall", "--method", "nonesuch", *out)
        refused(octavo, "--budgets", *RECALL, "--tasks", "recall", "--budgets", "2.5", *out)
        refused(octavo, "is not there", *RECALL, "--tasks", "recall", "--report", *out)
        refused(octavo, "--chat", *RECALL, "--tasks", "recall", "--chat", *out)
        assert not os.path.exists(out[1])
    print("bench quality: as documented")


if __name__ == "__main__":
    main()
