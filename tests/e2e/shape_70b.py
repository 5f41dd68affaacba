#!/usr/bin/env python3
"""Llama-3-70B's shape cut to 2 layers, with random bf16 weights: eight processes on this machine
compared with one rank in logits, log-probabilities, tokens and kept pages. usage: shape_70b.py
OCTAVO   (from the source root; a part of `./dev soak`)"""

import array
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

LAYERS, RANKS = 2, 8
NEEDS = 9 << 30  # bytes: 7.4 GiB were used
TIMEOUT = 3600
VOCAB = 128256
PROMPT, OUTPUTS, SCORED = 96, 8, 16
NMSE, NATS = 1e-9, 1e-4

# With AVX2, bf16 weights are multiplied with f32 activations, as on one rank.
FLAGS = ["--load-format", "dummy", "--override", f"num_hidden_layers={LAYERS}", "--kv-dtype", "f32", "--isa", "avx2",
         "--kv-memory", "64M", "--swap-memory", "0", "--max-batch", "4", "--max-model-len", "256",
         "--prefill-chunk", "128"]
ALONE, TOGETHER = ["--tp", "1"], ["--tp", str(RANKS), "--workers", "local"]
RETENTIONS = [None, {"method": "chunkkv", "ratio": 0.5, "window": 16, "report": "positions"},
              {"method": "h2o", "ratio": 0.5, "report": "positions"}]


def bytes_left():
    with open("/proc/meminfo") as f:
        left = {line.split(":")[0]: int(line.split()[1]) << 10 for line in f}["MemAvailable"]
    try:
        with open("/sys/fs/cgroup/memory.max") as most, open("/sys/fs/cgroup/memory.current") as now:
            left = min(left, int(most.read()) - int(now.read()))
    except (OSError, ValueError):
        pass  # no limit
    return left


class Memory(threading.Thread):
    """The peak memory of a session of processes, with shared pages counted once."""

    def __init__(self, session):
        super().__init__(daemon=True)
        self.session, self.most, self.over = session, 0, threading.Event()

    def run(self):
        while not self.over.wait(0.5):
            self.most = max(self.most, sum(self.taken(int(p)) for p in os.listdir("/proc") if p.isdigit()))

    def taken(self, pid):
        try:
            if os.getsid(pid) != self.session:
                return 0
            with open(f"/proc/{pid}/smaps_rollup") as f:
                return sum(int(line.split()[1]) << 10 for line in f if line.startswith("Pss:"))
        except OSError:
            return 0


def octavo(*args):
    began = time.monotonic()
    process = subprocess.Popen([os.path.abspath(sys.argv[1]), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
    memory = Memory(process.pid)
    memory.start()
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
        memory.over.set()
    if process.returncode != 0:
        sys.exit(f"octavo {' '.join(args)}: exit {process.returncode}\n{err}{out[-2000:]}")
    print(f"octavo {args[0]} --tp {args[args.index('--tp') + 1]}: {time.monotonic() - began:.0f} s, "
          f"{memory.most / (1 << 30):.1f} GiB", flush=True)
    return out


def answers(folder, ranks):
    draw, path = random.Random(70), os.path.join(folder, "prompts.jsonl")
    with open(path, "w") as f:
        for i, retention in enumerate(RETENTIONS):
            line = {"id": str(i), "prompt_token_ids": [draw.randrange(VOCAB) for _ in range(PROMPT)],
                    "max_tokens": OUTPUTS, "temperature": 0, "ignore_eos": True, "logprobs": 20}
            f.write(json.dumps({**line, "retention": retention} if retention else line) + "\n")
    out = octavo("run", "--model", folder, "--prompts", path, *FLAGS, *ranks)
    return {a["id"]: a for a in map(json.loads, out.splitlines())}


def logits(folder, ranks):
    draw, out = random.Random(71), os.path.join(folder, "logits")
    path = os.path.join(folder, "tokens.jsonl")
    with open(path, "w") as f:
        f.write(json.dumps({"token_ids": [draw.randrange(VOCAB) for _ in range(SCORED)]}) + "\n")
    octavo("score", "--model", folder, "--tokens", path, "--logits", out, *FLAGS, *ranks)
    with open(out, "rb") as f:
        return array.array("f", f.read())


def compare_logits(want, got):
    assert len(want) == len(got) == SCORED * VOCAB, (len(want), len(got))
    nmse = sum((a - b) ** 2 for a, b in zip(want, got)) / sum(a * a for a in want)
    print(f"NMSE of {len(want)} logits: {nmse:.1e} (< {NMSE:.0e})")
    assert nmse < NMSE


def compare_answers(want, got):
    worst, ties = 0.0, 0
    assert sorted(want) == sorted(got) == [str(i) for i in range(len(RETENTIONS))]
    for name, a in want.items():
        b, same = got[name], True
        assert len(a["token_ids"]) == len(b["token_ids"]) == OUTPUTS
        for t, (x, y) in enumerate(zip(a["logprobs"]["content"], b["logprobs"]["content"])):
            tops = [[top["logprob"] for top in one["top_logprobs"]] for one in (x, y)]
            assert len(tops[0]) == len(tops[1]) == 20
            worst = max([worst] + [abs(p - q) for p, q in zip(*tops)])
            same = a["token_ids"][t] == b["token_ids"][t]
            if not same:  # the two most likely tokens changed places
                assert tops[0][0] - tops[0][1] < NATS, f"request {name}: token {t} is another one"
                ties += 1
                break
        if same and "retention" in a:
            x, y = a["retention"], b["retention"]
            assert x["pages_dropped"] == y["pages_dropped"] > 0, (x, y)
            assert x["kept"] == y["kept"], f"request {name} keeps other pages"
    print(f"{len(want)} answers of {OUTPUTS} tokens: log-probabilities within {worst:.1e} (< {NATS:.0e}), {ties} ties, "
          "kept pages equal")
    assert worst < NATS


def main():
    if bytes_left() < NEEDS:
        print(f"SKIPPED shape_70b: needs {NEEDS >> 30} GiB of free memory, {bytes_left() / (1 << 30):.1f} GiB are")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy("tests/data/plan/llama-3-70b.json", os.path.join(folder, "config.json"))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join("models/demo", name), folder)
        compare_answers(answers(folder, ALONE), answers(folder, TOGETHER))
        compare_logits(logits(folder, ALONE), logits(folder, TOGETHER))


main()
