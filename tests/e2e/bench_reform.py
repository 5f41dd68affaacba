#!/usr/bin/env python3
"""octavo bench reform: the pages of a pass do not grow with the text, and what an embedding takes.
usage: bench_reform.py OCTAVO   (from the source root)"""

import json
import os
import subprocess
import sys
import unittest

OCTAVO = os.path.abspath(sys.argv[1])
MODEL = ["--model", "models/demo", "--kv-memory", "64M", "--threads", "1", "--chunk", "1024", "--gathered", "1024"]


def bench(*args):
    return subprocess.run([OCTAVO, "bench", "reform", *MODEL, *args], capture_output=True, timeout=600, text=True)


def rows(*args):
    p = bench("--json", *args)
    if p.returncode != 0:
        raise AssertionError(p.stderr)
    return json.loads(p.stdout)["rows"]


class Bench(unittest.TestCase):
    def test_pages_are_constant(self):
        found = rows("--tokens", "4096,16384,65536", "--computed", "0")
        passes = [r for r in found if r["what"] == "reading"]
        self.assertEqual([r["tokens"] for r in passes], [4096, 16384, 65536])
        self.assertEqual(len({r["pages"] for r in passes}), 1, passes)
        self.assertEqual({r["embedding_bytes"] for r in found if r["what"] == "reading"}, {4 * 32 * 2})

    def test_pages_are_those_of_the_layers_that_are_run(self):
        one, two = (rows("--tokens", "8192", "--computed", "0", "--exit-layer", n)[0] for n in "12")
        self.assertEqual([one["layers"], two["layers"]], [1, 2])
        self.assertEqual(2 * one["pages"], two["pages"])

    def test_phases(self):
        found = rows("--tokens", "4096", "--computed", "2")
        self.assertEqual([r["what"] for r in found], ["reading", "recompute", "sums"])
        self.assertEqual([r.get("layers") for r in found[:2]], [2, 4])
        self.assertTrue(all(r["computed"] == 2 and r["compute_s"] > 0 for r in found[:2]), found)
        self.assertEqual([r["steps"] for r in found[:2]], [8, 2])
        self.assertTrue(found[2]["gather_s"] > 0 and found[2]["h2o_recurrent_s"] > 0, found)

    def test_refusals(self):
        p = bench("--exit-layer", "4")
        self.assertEqual(p.returncode, 1)
        self.assertIn("below the model's 4 layers", p.stderr)
        p = bench("--chunk", "4096", "--tokens", "16384")
        self.assertEqual(p.returncode, 1)
        self.assertIn("positions", p.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1)
