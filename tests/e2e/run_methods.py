#!/usr/bin/env python3
"""Retention and retrieval of `octavo run`: flags, fields of lines, reports. usage: run_methods.py
OCTAVO [unittest arguments]   (from the source root)"""

import json
import re
import sys
import unittest

from run_cli import LAYERS, PAGE, POOL, octavo, run_lines, run_one, tokens


class Methods(unittest.TestCase):
    T = 1000 # 62 full pages and one of 8 tokens

    def run_retained(self, retention, *flags, max_tokens=10):
        return run_one({"prompt_token_ids": tokens(self.T, 3), "max_tokens": max_tokens, "ignore_eos": True,
                        "retention": retention}, *flags)

    def test_report(self):
        line = self.run_retained({"method": "chunkkv", "ratio": 0.25, "report": "positions"})
        report = line["retention"]
        self.assertEqual(report["method"], "chunkkv")
        # floor(0.25 * 1000) = 250 tokens = 15 pages of the 63, in each layer; 9 tokens follow.
        self.assertEqual(report["pages_dropped"], (63 - 15) * LAYERS)
        self.assertEqual(report["logical_tokens"], self.T + 9)
        self.assertEqual(report["kept_tokens"], 14 * PAGE + 8 + 9)
        self.assertIs(report["budget_raised"], False)
        self.assertGreaterEqual(report["scoring_ms"], 0)
        layers = []
        for table in report["kept"]:
            self.assertEqual(table["heads"], [0, 3])
            layers += range(table["layers"][0], table["layers"][1] + 1)
            at = -1
            for start, end in table["ranges"]:
                self.assertTrue(at < start < end and start % PAGE == 0)
                at = end
            self.assertEqual(at, self.T + 9)
            self.assertLessEqual(table["ranges"][-1][0], self.T - 32) # the window is protected
            self.assertEqual(sum(e - s for s, e in table["ranges"]), report["kept_tokens"])
        self.assertEqual(layers, list(range(LAYERS)))

    def test_budgets(self):
        self.assertEqual(self.run_retained({"method": "chunkkv", "tokens": 160})["retention"]["pages_dropped"],
                         (63 - 10) * LAYERS)
        # The window's 32 tokens lie in three pages, and one page more is the least.
        raised = self.run_retained({"method": "chunkkv", "ratio": 0.01})["retention"]
        self.assertIs(raised["budget_raised"], True)
        self.assertEqual(raised["pages_dropped"], (63 - 4) * LAYERS)
        whole = self.run_retained({"method": "chunkkv", "tokens": 2000})["retention"]
        self.assertEqual(whole["pages_dropped"], 0)
        self.assertEqual(whole["kept_tokens"], whole["logical_tokens"])
        self.assertNotIn("kept", whole)

    def test_reuse_layers(self):
        report = self.run_retained({"method": "chunkkv", "ratio": 0.25, "reuse_layers": 2,
                                    "report": "positions"})["retention"]
        ranges = {}
        for table in report["kept"]:
            for layer in range(table["layers"][0], table["layers"][1] + 1):
                ranges[layer] = table["ranges"]
        self.assertEqual(ranges[0], ranges[1])
        self.assertEqual(ranges[2], ranges[3])
        self.assertNotEqual(ranges[0], ranges[2])

    def test_full_says_nothing(self):
        line = run_one({"prompt_token_ids": tokens(self.T, 3), "max_tokens": 2})
        self.assertNotIn("retention", line)

    def test_flag_and_summary(self):
        text = " ".join(["Romeo"] * 300)
        _, err = octavo("run", *POOL, "--prompt", text, "--max-tokens", "2", "--retention", "chunkkv:0.25")
        self.assertRegex(err, r"retention chunkkv: kept \d+ of \d+ tokens \(\d+ %\), dropped \d+ pages")

    def test_retrieval_flag(self):
        """--retrieval is the default of every line, and a line's own goes before it."""
        text = " ".join(["Romeo"] * 300)
        _, err = octavo("run", *POOL, "--prompt", text, "--max-tokens", "4", "--ignore-eos", "--retrieval", "quest:384")
        rows, read, context = map(int, re.search(r"retrieval: (\d+) tokens read (\d+) of (\d+) tokens each", err).groups())
        self.assertGreater(rows, 0)
        self.assertLess(read, context)
        self.assertNotIn("retention", err)
        plain = {"prompt_token_ids": tokens(self.T, 3), "max_tokens": 6, "ignore_eos": True}
        named = [run_one({**plain, "retrieval": word}) for word in ("quest:384", "quest:512")]
        self.assertNotEqual(*(line["retrieval"] for line in named))
        parts = json.dumps({"method": "quest", "tokens": 384})
        for flag in "quest:384", parts:
            lines = run_lines([{**plain, "id": 0}, {**plain, "id": 1, "retrieval": "quest:512"}], "--retrieval", flag)
            for line in lines:
                self.assertEqual(line["retrieval"], named[line["id"]]["retrieval"])
                self.assertEqual(line["token_ids"], named[line["id"]]["token_ids"])
        self.assertNotIn("retrieval", run_one(plain))

    def test_retained_beside_full(self):
        """Requests that drop pages do not change the answers of others."""
        prompts = [{"id": i, "prompt_token_ids": tokens(300, 10 + i), "max_tokens": 6, "ignore_eos": True}
                   for i in range(6)]
        alone = {i: run_one(p)["token_ids"] for i, p in enumerate(prompts)}
        for p in prompts[::2]:
            p["retention"] = {"method": "chunkkv", "ratio": 0.2}
        for line in run_lines(prompts):
            if line["id"] % 2:
                self.assertEqual(line["token_ids"], alone[line["id"]])
            else:
                self.assertGreater(line["retention"]["pages_dropped"], 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
