#!/usr/bin/env python3
"""guidellm, a load generator, over streamed completions and chats: each of its requests succeeds,
and its counts of tokens are the server's. usage: eval_guidellm.py OCTAVO [unittest arguments]"""

import json
import os
import subprocess
import sys
import tempfile

from harness import MODEL, PATIENCE, ROOT, ServeTest, main, need

need("guidellm", venv="evals")

REQUESTS, PROMPT, OUTPUT = 6, 64, 12


class Guidellm(ServeTest):
    FLAGS = ["--served-model-name", "demo"]

    def measure(self, kind, *rate):
        """The benchmark of its report."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            made = subprocess.run(
                [sys.executable, "-m", "guidellm", "benchmark", "run", "--target", self.server.url, "--model", "demo",
                 "--processor", os.path.join(ROOT, MODEL), "--data",
                 json.dumps({"prompt_tokens": PROMPT, "output_tokens": OUTPUT}), "--backend-args",
                 json.dumps({"extra_body": {"ignore_eos": True}}), "--max-requests", str(REQUESTS), "--output-path",
                 path, "--disable-progress", "--rate-type", *rate],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, text=True,
                timeout=2 * PATIENCE, check=False,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "GUIDELLM__PREFERRED_ROUTE": kind})
            self.assertEqual(made.returncode, 0, made.stdout[-4000:])
            with open(path, encoding="utf-8") as f:
                report = json.load(f)
        self.assertEqual(len(report["benchmarks"]), 1)
        return report["benchmarks"][0]

    def check(self, kind, *rate):
        before = self.server.metrics()
        found = self.measure(kind, *rate)
        requests = found["requests"]
        self.assertEqual((len(requests["successful"]), len(requests["errored"])), (REQUESTS, 0))
        for one in requests["successful"]:
            self.assertEqual(one["output_tokens"], OUTPUT)
        self.assertGreater(found["metrics"]["time_to_first_token_ms"]["successful"]["mean"], 0)
        made = self.server.metric("generation_tokens_total") - self.server.metric("generation_tokens_total", before)
        self.assertGreaterEqual(made, REQUESTS * OUTPUT)

    def test_completions_one_by_one(self):
        self.check("text_completions", "synchronous")

    def test_chats_at_once(self):
        self.check("chat_completions", "concurrent", "--rate", "3")


if __name__ == "__main__":
    main()
