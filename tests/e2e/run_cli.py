#!/usr/bin/env python3
"""Drives the octavo executable with the demo model, as a user would: its output, its refusals, its
exit status. usage: run_cli.py OCTAVO [unittest arguments]   (from the source root)"""

import http.client
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

OCTAVO = os.path.abspath(sys.argv[1])
MODEL = "models/demo"
POOL = ["--model", MODEL, "--kv-memory", "64M"]
VOCAB = 1024
PAGE = 16
LAYERS = 4
LIGHT = "OCTAVO_TESTS_LIGHT" in os.environ and "OCTAVO_SOAK" not in os.environ
TIMEOUT = 600 # seconds after which a command hangs: sanitizers on a busy machine are slow

RUN_KEYS = ["id", "index", "text", "token_ids", "finish_reason", "usage", "timings"]


def octavo(*args, stdin="", code=0):
    """Runs the command to its end; returns (stdout, stderr) as text."""
    if isinstance(stdin, str):
        stdin = stdin.encode()
    p = subprocess.run([OCTAVO, *args], input=stdin, capture_output=True, timeout=TIMEOUT)
    out, err = p.stdout.decode("utf-8"), p.stderr.decode("utf-8")
    if p.returncode != code:
        raise AssertionError(f"octavo {' '.join(args)}: exit {p.returncode}, expected {code}\n{err}")
    return out, err


def run_lines(requests, *flags, code=0):
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in requests)
    out, _ = octavo("run", *POOL, "--prompts", "-", *flags, stdin=text, code=code)
    return [json.loads(line) for line in out.splitlines()]


def run_one(request, *flags):
    (line,) = run_lines([request], *flags)
    return line


def tokens(n, seed):
    r = random.Random(seed)
    return [r.randrange(1000) for _ in range(n)]


class Run(unittest.TestCase):
    def check_line(self, line, also=()):
        self.assertEqual(sorted(line), sorted(RUN_KEYS + list(also)))
        usage = line["usage"]
        self.assertEqual(sorted(usage), ["completion_tokens", "prompt_tokens", "prompt_tokens_details"])
        self.assertEqual(list(usage["prompt_tokens_details"]), ["cached_tokens"])
        self.assertEqual(usage["completion_tokens"], len(line["token_ids"]))
        times = line["timings"]
        self.assertEqual(sorted(times), ["queue_ms", "total_ms", "ttft_ms"])
        self.assertTrue(0 <= times["queue_ms"] <= times["ttft_ms"] <= times["total_ms"])

    def test_prompt_prints_text(self):
        flags = [*POOL, "--prompt", "O Romeo, Romeo", "--max-tokens", "20"]
        text, err = octavo("run", *flags)
        line = json.loads(octavo("run", *flags, "--json")[0])
        self.check_line(line)
        self.assertEqual(text.rstrip("\n"), line["text"].rstrip("\n"))
        self.assertEqual(line["finish_reason"], "length")
        self.assertEqual(line["usage"]["completion_tokens"], 20)
        self.assertIn("KV pool 64.0 MiB", err)
        self.assertNotIn("60 %", err)
        default = octavo("run", "--model", MODEL, "--prompt", "O", "--max-tokens", "1")[1]
        self.assertIn("60 % of what the cgroup leaves after the weights", default)

    def test_good_and_bad_lines(self):
        lines = run_lines([
            {"id": "good", "prompt": "O Romeo", "max_tokens": 5},
            "this is no JSON",
            "",
            {"prompt": "Hello", "max_tokens": 3},
            {"id": 7, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
            {"id": {}, "prompt": "x"},
            {"id": "field", "prompt": "x", "bananas": 1},
            {"id": "two", "prompt": "x", "messages": []},
            {"id": "none"},
            {"id": "range", "prompt": "x", "top_p": 0},
            {"id": "vocab", "prompt_token_ids": [1, 5000]},
            {"id": "method", "prompt": "x", "retention": {"method": "bananas"}},
            {"id": "ratio", "prompt": "x", "retention": {"method": "chunkkv", "ratio": 2}},
            {"id": "long", "prompt": "x", "max_tokens": 5000},
            {"id": "role", "messages": [{"content": "x"}]},
            "[1]",
            {"id": 1.5, "prompt": "caf\u00e9 \U0001f600", "max_tokens": 2},
        ], code=1)
        by_id = {str(line["id"]): line for line in lines}
        self.assertEqual(len(by_id), len(lines))
        for good in ("good", "4", "7", "1.5"):
            self.check_line(by_id.pop(good))
        said = {"2": "not JSON", "6": "id", "field": "bananas", "two": "prompt", "none": "prompt",
                "range": "top_p", "vocab": "prompt_token_ids[1]", "method": "bananas", "ratio": "ratio",
                "long": "5000", "role": "messages[0]", "16": "JSON object"}
        at = {"2": 2, "6": 6, "field": 7, "two": 8, "none": 9, "range": 10, "vocab": 11, "method": 12,
              "ratio": 13, "long": 14, "role": 15, "16": 16}
        self.assertEqual(set(by_id), set(said))
        for key, words in said.items():
            self.assertEqual(sorted(by_id[key]), ["error", "id"])
            self.assertIn(words, by_id[key]["error"]["message"])
            self.assertNotIn("\n", by_id[key]["error"]["message"])
            self.assertEqual(by_id[key]["error"]["line"], at[key])

    def test_flags_are_defaults_of_lines(self):
        lines = run_lines([{"id": "a", "prompt": "O"}, {"id": "b", "prompt": "O", "max_tokens": 2}],
                          "--max-tokens", "4", "--ignore-eos")
        self.assertEqual({line["id"]: line["usage"]["completion_tokens"] for line in lines}, {"a": 4, "b": 2})

    def test_too_long_line(self):
        lines = run_lines(['{"prompt":"' + "x" * (17 << 20) + '"}', {"prompt": "O", "max_tokens": 1}], code=1)
        self.assertEqual([line["id"] for line in lines], [1, 2]) # refused at once, answered later
        self.assertIn("longer than 16 MiB", lines[0]["error"]["message"])

    def test_choices(self):
        request = {"prompt": "The king", "max_tokens": 12, "n": 3, "temperature": 1.0, "seed": 5,
                   "ignore_eos": True}
        first, again = run_lines([request]), run_lines([request])
        self.assertEqual(sorted(line["index"] for line in first), [0, 1, 2])
        texts = {line["index"]: line["text"] for line in first}
        self.assertEqual(texts, {line["index"]: line["text"] for line in again})
        self.assertEqual(len(set(texts.values())), 3)
        other = run_lines([dict(request, seed=6)])
        self.assertNotEqual(texts, {line["index"]: line["text"] for line in other})
        plain = octavo("run", *POOL, "--prompt", "The king", "--max-tokens", "3", "--n", "2")[0]
        self.assertEqual(plain.count("[choice "), 2)

    def test_logprobs(self):
        line = run_one({"prompt": "O Romeo caf\u00e9", "max_tokens": 6, "logprobs": 3})
        self.check_line(line, ["logprobs"])
        self.assertEqual(list(line["logprobs"]), ["content"])
        content = line["logprobs"]["content"]
        self.assertEqual(len(content), 6)
        for token in content:
            self.assertEqual(sorted(token), ["bytes", "logprob", "rank", "token", "top_logprobs"])
            self.assertEqual(token["rank"], 1) # greedy
            self.assertEqual(len(token["top_logprobs"]), 3)
            tops = [top["logprob"] for top in token["top_logprobs"]]
            self.assertEqual(tops, sorted(tops, reverse=True))
            self.assertEqual(tops[0], token["logprob"])
            self.assertLessEqual(sum(map(math.exp, tops)), 1.0001)
            self.assertEqual(sorted(token["top_logprobs"][0]), ["bytes", "logprob", "token"])
        self.assertEqual(bytes(b for t in content for b in t["bytes"]).decode(), line["text"])
        self.assertNotIn("logprobs", run_one({"prompt": "O", "max_tokens": 1}))

    def test_priorities(self):
        request = {"prompt": "The king", "max_tokens": 2, "priority": -1}
        said = run_lines([request], code=1)[0]["error"]["message"]
        self.assertEqual(said, "priority: -1 is not 0, and requests run in order of arrival "
                               "(--scheduling-policy fcfs)")
        line = run_lines([request], "--scheduling-policy", "priority")[0]
        self.assertEqual(line["usage"]["completion_tokens"], 2)

    def test_stop_strings(self):
        whole = run_one({"prompt": "O Romeo, Romeo", "max_tokens": 30})["text"]
        stop = whole[7:11]
        cut = run_one({"prompt": "O Romeo, Romeo", "max_tokens": 30, "stop": ["\u2603", stop]})
        self.assertEqual(cut["text"], whole[:whole.index(stop)])
        self.assertEqual(cut["finish_reason"], "stop")
        held = run_one({"prompt": "O Romeo, Romeo", "max_tokens": 30, "stop": stop,
                        "include_stop_str_in_output": True})
        self.assertEqual(held["text"], whole[:whole.index(stop)] + stop)
        flag = octavo("run", *POOL, "--prompt", "O Romeo, Romeo", "--max-tokens", "30", "--stop", stop)[0]
        self.assertEqual(flag.rstrip("\n"), cut["text"].rstrip("\n"))

    def test_prefix_cache(self):
        ids = tokens(200, 1)
        requests = [{"id": i, "prompt_token_ids": ids, "max_tokens": 2} for i in range(2)]
        # The first line is the request that ended first, whichever of the two was tokenized first.
        first, second = run_lines(requests, "--max-batch", "1")
        self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], 192)
        self.assertEqual(first["token_ids"], second["token_ids"])
        for line in run_lines(requests, "--max-batch", "1", "--no-prefix-cache"):
            self.assertEqual(line["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            self.assertEqual(line["token_ids"], first["token_ids"])

    def test_model_flags_change_no_tokens(self):
        request = {"prompt_token_ids": tokens(150, 2), "max_tokens": 8, "ignore_eos": True}
        expected = run_one(request)["token_ids"]
        for flags in (["--page-tokens", "32"], ["--prefill-chunk", "64"], ["--threads", "1"]):
            self.assertEqual(run_one(request, *flags)["token_ids"], expected, flags)

    def test_dtype_and_dummy(self):
        request = {"prompt": "O", "max_tokens": 4, "ignore_eos": True}
        self.assertEqual(len(run_one(request, "--dtype", "f32")["token_ids"]), 4)
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "tokenizer.json"):
                shutil.copy(os.path.join(MODEL, name), folder)
            flags = ["run", "--model", folder, "--kv-memory", "8M", "--prompt", "O", "--max-tokens", "4"]
            self.assertIn("safetensors", octavo(*flags, code=1)[1])
            dummy = [*flags, "--json", "--load-format", "dummy", "--ignore-eos"]
            first, again = (json.loads(octavo(*dummy)[0])["token_ids"] for _ in range(2))
            self.assertEqual(first, again)
            other = json.loads(octavo(*dummy, "--dummy-seed", "1")[0])["token_ids"]
            self.assertNotEqual(first, other)
            err = octavo(*dummy, "--override", "num_hidden_layers=2")[1]
            self.assertIn("room for 8176 tokens", err) # of 8 MiB: 4080 with 4 layers


class Ending(unittest.TestCase):
    def start(self, max_tokens):
        """Starts 200 requests that all run at once; request i makes max_tokens(i) tokens."""
        lines = [{"id": i, "prompt_token_ids": tokens(50, i), "max_tokens": max_tokens(i), "ignore_eos": True}
                 for i in range(200)]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as f:
            f.write("".join(json.dumps(line) + "\n" for line in lines))
        self.addCleanup(os.unlink, f.name)
        p = subprocess.Popen([OCTAVO, "run", *POOL, "--max-batch", "200", "--prompts", f.name],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.stderr.close)
        return p

    def test_interrupt(self):
        p = self.start(lambda i: 2 if i < 4 else 3900)
        first = [json.loads(p.stdout.readline()) for _ in range(4)]
        self.assertEqual(sorted(line["id"] for line in first), [0, 1, 2, 3])
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=TIMEOUT)
        self.assertEqual(p.returncode, 130, err)
        self.assertIn(b"interrupted: 4 requests answered", err)
        self.assertEqual(out, b"")

    def test_reader_goes_away(self):
        p = self.start(lambda i: 2 + 10 * i)
        p.stdout.readline()
        p.stdout.close()
        err = p.stderr.read() # to the end of the output: the process is about to exit
        self.assertEqual(p.wait(TIMEOUT), 1, err)
        self.assertNotIn(b"200/200 done", err)

    def test_full_disk(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        with open("/dev/full", "wb") as full:
            p = subprocess.run([OCTAVO, "methods"], stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT)
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"cannot write to stdout", p.stderr)

    def test_closed_stdin(self):
        """It is no input, and not a file that a library has opened meanwhile."""
        for args in (["run", *POOL, "--prompts", "-"], ["run", *POOL, "--chat"], ["tokenize", "--model", MODEL]):
            with self.subTest(args[-1]):
                p = subprocess.run([OCTAVO, *args], preexec_fn=lambda: os.close(0), capture_output=True, timeout=TIMEOUT)
                self.assertEqual(p.returncode, 1, p.stderr)
                self.assertIn(b"stdin: Bad file descriptor", p.stderr)

    @unittest.skipUnless(os.path.isdir("/proc/self/fd"), "no /proc")
    def test_closed_stderr(self):
        """No file takes its place, into which messages would go."""
        with subprocess.Popen([OCTAVO, "tokenize", "--model", MODEL], preexec_fn=lambda: os.close(2),
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
            p.stdin.write(b'"a"\n')
            p.stdin.flush()
            self.assertEqual(p.stdout.readline(), b"[64]\n")
            self.assertEqual(os.readlink(f"/proc/{p.pid}/fd/2"), "/dev/null")
            p.stdin.close()
            self.assertEqual(p.wait(TIMEOUT), 0)


class Text(unittest.TestCase):
    LINES = ["", "Hello world", "caf\u00e9 \U0001f600 \u4f60\u597d\tx", "<|im_start|>user\nhi<|im_end|>",
             "a\u0000b", "   spaces   ", "\r\n", "\u202e\ufeff"]

    def test_round_trip(self):
        text = "".join(json.dumps(line) + "\n" for line in self.LINES)
        ids = octavo("tokenize", "--model", MODEL, stdin=text)[0]
        self.assertEqual(len(ids.splitlines()), len(self.LINES))
        self.assertTrue(all(isinstance(json.loads(line), list) for line in ids.splitlines()))
        back = octavo("detokenize", "--model", MODEL, stdin=ids)[0]
        self.assertEqual([json.loads(line) for line in back.splitlines()], self.LINES)
        special = json.loads(ids.splitlines()[3])
        skipped = octavo("detokenize", "--model", MODEL, "--skip-special", stdin=json.dumps(special))[0]
        self.assertEqual(json.loads(skipped), "user\nhi")

    def test_bad_lines(self):
        out, err = octavo("tokenize", "--model", MODEL, stdin='"a"\n5\n"b\n"c"\n', code=1)
        self.assertEqual([json.loads(line) is None for line in out.splitlines()], [False, True, True, False])
        self.assertIn("line 2: must be a JSON string", err)
        out, err = octavo("detokenize", "--model", MODEL, stdin="[1,2]\n[-1]\n[99999999]\n{}\n", code=1)
        self.assertEqual([json.loads(line) is None for line in out.splitlines()], [False, True, True, True])

    def test_inspect_and_methods(self):
        out = octavo("inspect", MODEL)[0]
        self.assertIn("architecture: LlamaForCausalLM\n", out)
        table = octavo("methods")[0]
        rows = json.loads(octavo("methods", "--json")[0])
        names = [row["method"] for row in rows]
        self.assertEqual(names[0], "full")
        self.assertIn("chunkkv", names)
        self.assertEqual(len(set(names)), len(names))
        for row in rows:
            self.assertIn(row["method"], table)
            self.assertIn(row["summary"], table)
            one = octavo("methods", row["method"])[0]
            self.assertTrue(one.startswith(f"{row['method']}: {row['summary']}\n{row['source']}\n"))
            # No method needs a flag of the server; these two let it do more.
            self.assertLessEqual(set(re.findall(r"--[a-z-]+", one)), {"--swap-memory", "--pressure-retention"})
            self.assertEqual(json.loads(octavo("methods", "--json", row["method"])[0]), [row])
        for name in ("ktransformers", "quest", "dynamic"):
            self.assertRegex(table, rf"(?m)^{name} +[A-Z]+ +[A-Z]+ +128 ")
            row = json.loads(octavo("methods", "--json", name)[0])[0]
            self.assertEqual((row["method"], row["second_block_count"]), (name, 96))
            one = octavo("methods", name)[0]
            self.assertTrue(one.startswith(f"{name}: {row['summary']}\n{row['source']}\n"))
            self.assertRegex(one, rf"representative_type +{row['representative_type']}\n")
        self.assertIn("there is no method", octavo("methods", "nothing", code=2)[1])


class Score(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def logits(self, sequences, *flags):
        with open(self.path("ids.jsonl"), "w", encoding="utf-8") as f:
            for ids in sequences:
                f.write(json.dumps({"token_ids": ids}) + "\n")
        octavo("score", *POOL, "--tokens", self.path("ids.jsonl"), "--logits", self.path("out"), *flags)
        with open(self.path("out"), "rb") as f:
            raw = f.read()
        n = sum(map(len, sequences))
        self.assertEqual(len(raw), 4 * VOCAB * n)
        flat = struct.unpack(f"<{VOCAB * n}f", raw)
        return [flat[i * VOCAB:(i + 1) * VOCAB] for i in range(n)]

    @staticmethod
    def log_softmax(row, token):
        top = max(row)
        return row[token] - top - math.log(sum(math.exp(v - top) for v in row))

    def test_agrees_with_run(self):
        a, b = tokens(700, 20), tokens(5, 21)
        rows = self.logits([a, b])
        for ids, row in ((a, rows[699]), (b, rows[704])):
            line = run_one({"prompt_token_ids": ids, "max_tokens": 1, "logprobs": 0, "ignore_eos": True})
            best = max(range(VOCAB), key=lambda i: row[i])
            self.assertEqual(line["token_ids"], [best])
            self.assertAlmostEqual(line["logprobs"]["content"][0]["logprob"], self.log_softmax(row, best),
                                   places=5)
        self.assertEqual(self.logits([a, b], "--prefill-chunk", "64"), rows)

    def test_whole_context(self):
        self.assertEqual(len(self.logits([tokens(128, 22)], "--max-model-len", "128")), 128)
        with open(self.path("ids.jsonl"), "w", encoding="utf-8") as f:
            f.write(json.dumps({"token_ids": tokens(129, 22)}))
        err = octavo("score", *POOL, "--max-model-len", "128", "--tokens", self.path("ids.jsonl"),
                     "--logits", self.path("out"), code=1)[1]
        self.assertIn("line 1: ", err)

    @unittest.skipIf(LIGHT, "arithmetic")
    def test_perplexity(self):
        with open("LICENSE", encoding="utf-8") as f:
            text = f.read()[:1200]
        with open(self.path("text"), "w", encoding="utf-8") as f:
            f.write(text)
        ids = json.loads(octavo("tokenize", "--model", MODEL, stdin=json.dumps(text))[0])
        score = ["score", *POOL, "--text", self.path("text")]
        whole = json.loads(octavo(*score)[0])
        rows = self.logits([ids])
        nll = -sum(self.log_softmax(rows[i], ids[i + 1]) for i in range(len(ids) - 1)) / (len(ids) - 1)
        self.assertEqual(whole["tokens"], len(ids) - 1)
        self.assertAlmostEqual(whole["nll_per_token"], nll, places=4)
        self.assertAlmostEqual(whole["perplexity"] / math.exp(nll), 1, places=3)
        # Windows score the same tokens, each once, with less context.
        cut = json.loads(octavo(*score, "--window", "256", "--stride", "100")[0])
        self.assertEqual((cut["tokens"], cut["window"], cut["stride"]), (len(ids) - 1, 256, 100))
        expected = 0.0
        scored = 0
        for begin in range(0, len(ids), 100):
            window = ids[begin:begin + 256]
            rows = self.logits([window])
            for i in range(scored - begin, len(window) - 1):
                expected -= self.log_softmax(rows[i], window[i + 1])
            scored = begin + len(window) - 1
            if scored + 1 >= len(ids):
                break
        self.assertAlmostEqual(cut["nll_per_token"], expected / (len(ids) - 1), places=4)

    @unittest.skipIf(LIGHT, "arithmetic")
    def test_perplexity_of_fewer_bits(self):
        """A text like those the model was trained on. The cost of 4 bits is reported, and bounded
        as measured."""
        with open("tests/golden/needle_200.jsonl", encoding="utf-8") as f:
            prompts = [json.loads(next(f))["prompt"] for _ in range(2)]
        with open(self.path("text"), "w", encoding="utf-8") as f:
            f.write("".join(prompts))
        score = ["score", *POOL, "--text", self.path("text"), "--window", "1024"]
        exact = json.loads(octavo(*score)[0])["perplexity"]
        self.assertLess(exact, 10)
        for flags, limit in ((["--quantize", "int8"], 0.01), (["--quantize", "int4"], 0.06), (["--kv-dtype", "int8"], 0.01)):
            change = json.loads(octavo(*score, *flags)[0])["perplexity"] / exact - 1
            print(f"perplexity {exact:.4f}, {' '.join(flags)}: {change:+.2%}")
            self.assertLess(abs(change), limit, flags)


class Ranks(unittest.TestCase):
    """Tensor parallelism by threads: sums differ in their last bits, answers do not."""

    def setUp(self):
        with open("LICENSE", encoding="utf-8") as f:
            self.text = f.read()[1000:4000]

    def test_tokens_and_pages(self):
        request = {"prompt": self.text, "max_tokens": 12, "ignore_eos": True,
                   "retention": {"method": "chunkkv", "ratio": 0.3, "report": "positions"}}
        expected = run_one(request, "--dtype", "f32")
        self.assertGreater(expected["retention"]["pages_dropped"], 0)
        for tp in ("2", "4", "8"):
            line = run_one(request, "--dtype", "f32", "--tp", tp)
            self.assertEqual(line["token_ids"], expected["token_ids"], tp)
            self.assertEqual(line["retention"]["kept"], expected["retention"]["kept"], tp)

    def test_score_and_summary(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "text")
            with open(path, "w", encoding="utf-8") as f:
                f.write(self.text)
            score = ["score", *POOL, "--dtype", "f32", "--text", path]
            alone, err_alone = octavo(*score)
            ranks, err = octavo(*score, "--tp", "4", "--threads", "8")
        self.assertAlmostEqual(json.loads(ranks)["nll_per_token"], json.loads(alone)["nll_per_token"], places=5)
        self.assertIn("4 ranks, 8 threads", err)
        self.assertNotIn("ranks", err_alone)
        room = "room for 16368 tokens" # the slices together take --kv-memory
        self.assertIn(room, err_alone)
        self.assertIn(room, err)

    @unittest.skipIf(LIGHT, "no allocations are counted")
    def test_bench(self):
        memory = json.loads(octavo("bench", "engine", *POOL, "--tp", "2", "--batch", "1", "--context", "64", "--prefill",
                                   "64", "--rounds", "1", "--json")[0])["rows"][-1]
        self.assertIn(memory["steady_heap_bytes"], (0, -1))
        self.assertEqual(memory["pool"], 64 << 20)


class Bench(unittest.TestCase):
    def test_engine(self):
        """Every part of the benchmark runs and reports; speed is not checked here."""
        rows, drawn = octavo("bench", "engine", *POOL, "--batch", "1,2", "--context", "64", "--prefill", "100",
                             "--rounds", "1", "--json", "--plot", "/dev/stderr")
        rows = json.loads(rows)["rows"]
        self.assertEqual([row["what"] for row in rows], ["prefill", "decode", "decode", "scheduler", "memory"])
        self.assertEqual((drawn.count("<circle"), drawn.count("</svg>")), (3, 1))
        for row in rows[:3]:
            self.assertTrue(len(row) == 15 and all(value > 0 for key, value in row.items() if key != "what"), row)
            self.assertAlmostEqual(row["read_share"] * row["read_limit_gb_s"], row["gb_s"], delta=0.01 * row["gb_s"])
            # Not 1: a round's steps read more and more.
            self.assertGreaterEqual(row["best_read_share"], 0.9 * row["read_share"])
        # Steady steps allocate nothing; -1 where allocations are not counted (sanitizers).
        self.assertIn(rows[-1]["steady_heap_bytes"], (0, -1))
        self.assertEqual(rows[-1]["pool"], 64 << 20)

    @unittest.skipIf(LIGHT, "arithmetic")
    def test_retention_at_depth(self):
        """A pool for two whole contexts holds more of a tenth each, by pages or by slots."""
        rows = json.loads(octavo("bench", "retention", *POOL, "--tokens", "0", "--context", "512", "--full", "2",
                                 "--method", "chunkkv", "--method", "snapkv", "--retrieval", "quest:384", "--rounds", "1", "--json")[0])["rows"]
        depth = {row["method"]: row for row in rows if row["what"] == "depth"}
        self.assertIn("quest:384", depth)
        for method in ("chunkkv", "snapkv"):
            self.assertGreater(depth[method]["sequences"], 2 * depth["full"]["sequences"], rows)
            self.assertLess(depth[method]["kept_tokens"], depth["full"]["kept_tokens"] / 4, rows)

    def test_null_backend(self):
        """Every call is timed and every closed loop answers; how fast is not checked here."""
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "report.json")
            table = octavo("bench", "engine", "--backend", "null", "--layers", "4", "--step-us", "200", "--running", "2,5",
                           "--prompt-tokens", "40", "--output-tokens", "9", "--seconds", "1", "--rounds", "1",
                           "--sessions", "30", "--arrivals", "20", "--long-tokens", "4096", "--out", out)[0]
            with open(out) as f:
                report = json.load(f)
        self.assertEqual((report["backend"], report["tables"], report["page_tokens"]), ("null", 4 * 8, 16))
        calls, loops = report["rows"][:-2], report["rows"][-2:]
        self.assertEqual([row["what"] for row in calls],
                         ["sched_step", "mirror", "sched_get_stats", "arrivals", "sched_step_sessions",
                          "sched_get_stats_sessions", "close", "open_hit", "swap_out", "swap_in", "blocked_head",
                          "select_chunkkv", "select_snapkv"])
        self.assertTrue(all(row["us"] > 0 for row in calls), calls)
        self.assertEqual([row["running"] for row in loops], [2, 5])
        for row in loops:
            self.assertEqual(row["what"], "closed_loop")
            self.assertGreater(row["requests"], 0)
            self.assertGreater(row["tokens_s"], 0)
            self.assertTrue(0 <= row["ready"] <= 1 and 0 <= row["ahead"] <= 1, row)
            self.assertTrue(0 < row["schedule_us"] and 0 < row["tell_us"] and 0 < row["mirror_us"], row)
        self.assertIn("blocked head of line", table)

    @unittest.skipIf("workers" not in octavo("bench", "--help")[0], "this build has no servers")
    def test_null_backend_serves(self):
        """Clients of its servers are what is measured."""
        body = json.dumps({"prompt": tokens(20, 1), "max_tokens": 100, "ignore_eos": True})
        bench = subprocess.Popen(
            [OCTAVO, "bench", "engine", "--backend", "null", "--layers", "4", "--step-us", "300", "--running", "2",
             "--prompt-tokens", "40", "--output-tokens", "100", "--seconds", "1", "--http", "127.0.0.1:0", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        port = int(re.search(r"HTTP at port (\d+)", bench.stderr.readline()).group(1))

        def ask():
            while bench.poll() is None:
                client = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
                try:
                    client.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                    client.getresponse().read()
                except (OSError, http.client.HTTPException):
                    pass # the bench is over
                finally:
                    client.close()

        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        out, err = bench.communicate(timeout=TIMEOUT)
        for client in clients:
            client.join()
        self.assertEqual(bench.returncode, 0, err)
        (row,) = json.loads(out)["rows"]
        self.assertEqual((row["what"], row["running"]), ("served", 2))
        self.assertGreater(row["tokens_s"], 0)
        self.assertGreater(row["engine_us"], 0)


class Refusals(unittest.TestCase):
    """One line on stderr that names the cause; exit status 2 for the command line, 1 for what it
    points to."""

    def refuses(self, args, code, *words):
        out, err = octavo(*args, code=code)
        self.assertEqual(out, "")
        (last,) = [line for line in err.splitlines() if " ready in " not in line]
        for word in words:
            self.assertIn(word, last)

    def test_command_line(self):
        run = ["run", "--model", MODEL]
        for args, *words in (
            [["run", "--prompt", "x"], "--model is missing"],
            [run, "--prompt", "--chat", "--prompts"],
            [[*run, "--prompt", "x", "--prompts", "y"], "--prompts excludes"],
            [[*run, "--prompt", "x", "--system", "y"], "--system needs --chat"],
            [[*run, "--bananas", "x"], "unknown flag '--bananas'"],
            [[*run, "--prompt"], "--prompt: its value (TEXT) is missing"],
            [[*run, "--prompt", "x", "y"], "unexpected argument 'y'"],
            [[*run, "--prompt", "x", "--top-p", "3"], "--top-p: '3'"],
            [[*run, "--prompt", "x", "--page-tokens", "300"], "--page-tokens: '300'"],
            [[*run, "--prompt", "x", "--kv-memory", "lots"], "--kv-memory: 'lots'"],
            [[*run, "--prompt", "x", "--tp", "0"], "--tp: '0'"],
            [[*run, "--prompt", "x", "--dtype", "int3"], "--dtype: 'int3' is not one of auto, f32, bf16"],
            [[*run, "--prompt", "x", "--retention", "{"], "--retention: "],
            [[*run, "--prompt", "x", "--retention", "chunkkv"], "--retention: ", "METHOD:RATIO"],
            [[*run, "--prompt", "x", "--retention", '{"method":"chunkkv","bananas":1}'], "bananas"],
            [[*run, "--prompt", "x", "--retention", '{"method":"chunkkv"}'], "ratio", "tokens"],
            [[*run, "--prompt", "x", "--retention", '{"method":"chunkkv","ratio":0}'], "ratio"],
            [[*run, "--prompt", "x", "--retention", "chunkkv:0x1p-1"], "--retention: ", "METHOD:RATIO"],
            [[*run, "--prompt", "x", "--retrieval", "{"], "--retrieval: "],
            [[*run, "--prompt", "x", "--retrieval", "quest:0"], "--retrieval: ", "METHOD:TOKENS"],
            [[*run, "--prompt", "x", "--retrieval", "banana"], "banana", "quest"],
            [[*run, "--prompt", "x", "--retrieval", '{"method":"quest","bananas":1}'], "bananas"],
            [[*run, "--prompt", "x", "--session", ""], "session: must have 1 to 256 bytes"],
            [[*run, "--prompt", "x", "--session-ttl", "-1"], "--session-ttl: '-1'"],
            [[*run, "--prompt", "x", "--pressure-retention", "chunkkv"], "--pressure-retention: ", "METHOD:RATIO"],
            [[*run, "--prompt", "x", "--pressure-retention", "chunkkv:2"], "--pressure-retention: ", "METHOD:RATIO"],
            [[*run, "--prompt", "x", "--pressure-retention", "[]"], "--pressure-retention: ", "METHOD:RATIO"],
            [["score", "--model", MODEL], "--tokens and --text"],
            [["score", "--model", MODEL, "--tokens", "x"], "--tokens and --logits"],
            [["tokenize"], "--model is missing"],
            [["inspect"], "PATH is missing"],
            [["methods", "--bananas"], "--bananas"],
            [["bench", "kernels", "--bananas"], "--bananas"],
            [["bench", "engine"], "--model and --shape"],
            [["bench", "engine", "--model", MODEL, "--batch", "1,x"], "--batch"],
            [["bench", "engine", "--backend", "null", "--shape", "1.1b"], "--backend null excludes"],
            [["bench", "engine", "--backend", "null", "--plot", "x"], "excludes --plot"],
            [["bench", "engine", "--backend", "null", "--running", "0"], "--running"],
            [["bananas"], "unknown command 'bananas'"],
        ):
            with self.subTest(args=args):
                self.refuses(args, 2, *words)

    def test_files(self):
        run = ["run", "--kv-memory", "8M", "--prompt", "x", "--model"]
        self.refuses([*run, "no/such/folder"], 1, "no/such/folder/config.json")
        self.refuses(["bench", "engine", "--backend", "null", "--http", "127.0.0.1:0"], 1, "--running", "one number")
        self.refuses([*run, MODEL, "--override", 'architectures=["BananaForCausalLM"]'], 1, "BananaForCausalLM")
        self.refuses([*run, MODEL, "--override", 'rope_scaling={"rope_type":"banana"}'], 1, "banana")
        self.refuses([*run, MODEL, "--override", "hidden_size=255"], 1, "config.json")
        self.refuses([*run, MODEL, "--isa", "banana"], 1, "banana")
        self.refuses([*run, MODEL, "--max-model-len", "5000"], 1, "--max-model-len", "4096")
        self.refuses([*run, MODEL, "--tp", "3"], 1, "--tp", "num_attention_heads", "8", "3 ranks")
        self.refuses([*run, MODEL, "--tp", "16"], 1, "--tp", "16 ranks", "8 query heads")
        self.refuses([*run, MODEL, "--tp", "2", "--isa", "banana"], 1, "banana")
        self.refuses([*run, MODEL, "--page-tokens", "17"], 1, "page_tokens")
        self.refuses([*run, MODEL, "--kv-dtype", "int4", "--page-tokens", "48"], 1, "page-tokens: 48 is not a multiple of 32")
        residual = [*run, MODEL, "--no-prefix-cache", "--kv-residual"]
        self.refuses([*residual, "48", "--kv-dtype", "int4"], 1, "kv-residual: 48 is not a multiple of the 32 tokens of a page")
        self.refuses([*residual, "64", "--kv-dtype", "int2", "--page-tokens", "128"], 1, "kv-residual: 64", "128 tokens of a page")
        self.refuses([*residual, "128", "--kv-dtype", "int8"], 1, "kv-residual: it goes with int4 and int2 pages, and these are int8")
        self.refuses([*residual, "1024", "--kv-dtype", "int4"], 2, "--kv-residual")
        self.refuses([*run, MODEL, "--kv-dtype", "int4", "--kv-residual", "64"], 1, "--kv-residual", "--no-prefix-cache")
        self.refuses(["run", "--model", MODEL, "--prompts", "no/such/file"], 1, "no/such/file")
        self.refuses(["run", "--model", MODEL, "--prompts", "models"], 1, "models", "folder")
        self.assertIn("no/such/folder/config.json", octavo("inspect", "no/such/folder", code=1)[1])
        self.refuses(["tokenize", "--model", "no/such/folder"], 1, "no/such/folder/tokenizer.json")
        self.refuses(["score", "--model", MODEL, "--text", "no/such/file"], 1, "no/such/file")
        self.refuses(["score", "--model", MODEL, "--max-model-len", "1", "--text", "LICENSE"], 1, "--text", "one token")

    def test_broken_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(MODEL):
                shutil.copy(os.path.join(MODEL, name), folder)
            weights = os.path.join(folder, "model.safetensors")
            os.truncate(weights, os.path.getsize(weights) // 2)
            run = ["run", "--model", folder, "--kv-memory", "8M", "--prompt", "x"]
            self.refuses(run, 1, "model.safetensors")
            with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
                f.write('{"model":{"type":"Banana"}}')
            self.refuses(run, 1, "tokenizer.json")

    def test_numbers_that_overflow(self):
        """Weights that are finite, with scales by which the first layer's scores are not."""
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(MODEL):
                shutil.copy(os.path.join(MODEL, name), folder)
            with open(os.path.join(folder, "model.safetensors"), "r+b") as f:
                (n,) = struct.unpack("<Q", f.read(8))
                begin, end = json.loads(f.read(n))["model.layers.0.input_layernorm.weight"]["data_offsets"]
                f.seek(8 + n + begin)
                f.write(b"\x96\x7e" * ((end - begin) // 2)) # 1e38 in bf16
            model = ["--model", folder, "--kv-memory", "8M"]
            words = "output token 1 of choice 0: the model's logits are not finite"
            for flags in ([], ["--temperature", "0.7"], ["--tp", "2"], ["--tp", "2", "--logprobs", "2"]):
                with self.subTest(flags=flags):
                    out, err = octavo("run", *model, "--prompt", "x", *flags, code=1)
                    self.assertEqual(out, "")
                    self.assertIn(words, err.splitlines()[-1])
            lines = '{"prompt": "x"}\n{"prompt": "x y", "prompt_logprobs": 0, "max_tokens": 0}\n'
            out = octavo("run", *model, "--prompts", "-", stdin=lines, code=1)[0].splitlines()
            for line, part in zip(out, (words, "the score of prompt token 1"), strict=True):
                self.assertIn(part, json.loads(line)["error"]["message"])
            self.refuses(["score", *model, "--text", "LICENSE", "--window", "64"], 1, "not finite", "perplexity")

    def test_what_does_not_fit(self):
        ids = {"prompt_token_ids": tokens(500, 30), "max_tokens": 4}
        (line,) = run_lines([ids], "--max-model-len", "400", code=1)
        self.assertIn("400", line["error"]["message"])
        self.refuses(["run", "--model", MODEL, "--prompt", "x", "--kv-memory", "20K"], 1, "kv-memory")
        # 2 pages for each layer: room for 32 tokens.
        (line,) = run_lines([ids], "--kv-memory", "72K", code=1)
        self.assertIn("pages", line["error"]["message"])
        self.refuses(["run", "--model", MODEL, "--kv-memory", "72K", "--prompt", "Romeo " * 60], 1, "pages")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
