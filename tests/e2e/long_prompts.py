#!/usr/bin/env python3
"""Prompts longer than the model's context on the command line. usage: long_prompts.py OCTAVO
[unittest arguments]   (from the source root)"""

import subprocess
import sys
import unittest

from run_cli import MODEL, OCTAVO, run_lines, run_one, tokens

CONTEXT = 4096
KEPT = {"method": "h2o-recurrent", "tokens": 512, "recurrent_chunk": 512, "sinks": 16, "window": 16}


class LongPrompts(unittest.TestCase):
    def request(self, length, **fields):
        return {"prompt_token_ids": tokens(length, 30), "max_tokens": 4, **fields}

    def error(self, *flags, **fields):
        (line,) = run_lines([self.request(6000, **fields)], *flags, code=1)
        return line["error"]["message"]

    def test_are_read_in_few_positions(self):
        line = run_one(self.request(2 * CONTEXT, retention=KEPT))
        self.assertEqual(line["usage"]["prompt_tokens"], 2 * CONTEXT)
        self.assertEqual(line["retention"]["logical_tokens"], 2 * CONTEXT + 3)
        self.assertEqual(line["retention"]["kept_tokens"], 515)

    def test_a_text_is_measured_by_its_own_limit(self):
        text = "Romeo, Romeo, wherefore art thou Romeo? " * 600
        line = run_one({"prompt": text, "max_tokens": 1, "retention": KEPT})
        self.assertGreater(line["usage"]["prompt_tokens"], CONTEXT)
        (line,) = run_lines([{"prompt": text, "max_tokens": 1}], code=1)
        self.assertIn(f"the maximum context length is {CONTEXT}", line["error"]["message"])

    def test_what_is_too_long_is_named(self):
        self.assertIn(f"the maximum context length is {CONTEXT}", self.error())
        self.assertIn("take 5000 positions under retention method 'h2o-recurrent'",
                      self.error(retention={**KEPT, "recurrent_chunk": 5000}))
        self.assertIn("--max-logical-len is 5000", self.error("--max-logical-len", "5000", retention=KEPT))
        self.assertIn("make 12008 over 2 choices", self.error("--max-logical-len", "9000", retention=KEPT, n=2))
        self.assertIn("prompt_logprobs: the prompt has 6000 tokens", self.error(retention=KEPT, prompt_logprobs=0))
        p = subprocess.run([OCTAVO, "run", "--model", MODEL, "--prompt", "x", "--max-logical-len", "99"],
                           capture_output=True, text=True, timeout=600)
        self.assertIn(f"--max-logical-len: 99 is less than the context of {CONTEXT}", p.stderr)
        self.assertEqual(p.returncode, 1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
