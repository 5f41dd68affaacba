#!/usr/bin/env python3
"""octavo bench engine --retention: decode with a method's measure of each generated token, beside
steps without it.
usage: bench_measured.py OCTAVO   (from the source root)"""

import json
import os
import re
import subprocess
import sys
import unittest

OCTAVO = os.path.abspath(sys.argv[1])
MODEL = ["--model", "models/demo", "--kv-memory", "64M", "--batch", "1,2", "--context", "64", "--prefill", "64",
         "--rounds", "2"]


def bench(*args):
    return subprocess.run([OCTAVO, "bench", "engine", *args], capture_output=True, timeout=600, text=True, check=False)


class Measured(unittest.TestCase):
    def test_rows(self):
        ran = bench(*MODEL, "--retention", "h2o", "--retention", 'tova={"ratio":0.2}', "--json", "--plot", "/dev/stderr")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = [row for row in json.loads(ran.stdout)["rows"] if row["what"] in ("decode", "measured")]
        self.assertEqual([(row["what"], row["batch"], row.get("method")) for row in rows],
                         [(what, batch, method) for batch in (1, 2)
                          for what, method in (("decode", None), ("measured", "h2o"), ("measured", 'tova={"ratio":0.2}'))])
        self.assertEqual(ran.stderr.count("<circle"), 3)  # a prefill, and decode without measures
        for row in rows:
            if row["what"] == "measured":
                self.assertTrue(row["tokens_s"] > 0 and row["more_low"] <= row["more"] <= row["more_high"], row)
                self.assertGreater(row["more"], -1)
                self.assertGreater(row["measure_ms"], 0)  # something was measured
                self.assertLess(row["measure_ms"], row["step_ms"])

    def test_a_round(self):
        """The figures of one round are those of its rows."""
        ran = bench(*MODEL, "--rounds", "1", "--retention", "h2o", "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = [row for row in json.loads(ran.stdout)["rows"] if row["what"] == "measured"]
        self.assertEqual(len(rows), 2)
        for row in rows:
            more = row["step_ms"] / row["without_ms"] - 1
            for key in ("more", "more_low", "more_high"):
                self.assertAlmostEqual(row[key], more, delta=1e-4 * (1 + abs(more)))
            self.assertAlmostEqual(row["tokens_s"], 1000 * row["batch"] / row["step_ms"], delta=1e-3 * row["tokens_s"])

    def test_lines(self):
        ran = bench(*MODEL, "--retention", "h2o:0.5")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        lines = re.findall(r"^measured +[12] +64 .*\n +h2o:0.5 adds -?[\d.]+ % to a step \(", ran.stdout, re.M)
        self.assertEqual(len(lines), 2, ran.stdout)

    def test_refusals(self):
        for method, *words in (("chunkkv", "--retention", "does not measure each generated token"),
                               ("h3o", "'h3o' is unknown"), ("h2o:2", "--retention", "'h2o:2'")):
            ran = bench(*MODEL, "--quiet", "--retention", method)
            self.assertEqual((ran.returncode, ran.stdout), (1, ""))
            for word in words:
                self.assertIn(word, ran.stderr)
        ran = bench("--backend", "null", "--retention", "h2o")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("excludes --retention", ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1)
