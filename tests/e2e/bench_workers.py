#!/usr/bin/env python3
"""octavo bench workers: steps of two ranks in processes beside ranks in threads, and the share of
them in which no rank computes the model.
usage: bench_workers.py OCTAVO   (from the source root)"""

import os
import re
import subprocess
import sys
import unittest

OCTAVO = os.path.abspath(sys.argv[1])
ROW = re.compile(r"^(nothing to compute|the model), (threads|workers) +(\d+) +(\d+) +(\d+)(?: +(-?\d+))?(?: +([\d.]+))?$", re.M)


def bench(*args):
    return subprocess.run([OCTAVO, "bench", "workers", "--steps", "3", *args], capture_output=True, timeout=600, text=True,
                          check=False)


class Workers(unittest.TestCase):
    def check_rows(self, ran, of_model, n_seqs):
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn(f"2 ranks, a decode step of {n_seqs} sequences, us:\n", ran.stdout)
        rows = ROW.findall(ran.stdout)
        self.assertEqual([row[:2] for row in rows],
                         [(what, where) for what in ("nothing to compute", *["the model"] * of_model)
                          for where in ("threads", "workers")], ran.stdout)
        for what, where, p50, p90, p99, more, host in rows:
            self.assertTrue(0 < int(p50) <= int(p90) <= int(p99), ran.stdout)
            self.assertEqual(bool(more), where == "workers", ran.stdout)
            self.assertEqual(bool(host), what == "the model", ran.stdout)
            if host:
                self.assertTrue(0 < float(host) < 100, ran.stdout)

    def test_nothing(self):
        self.check_rows(bench(), 0, 64)

    def test_a_model(self):
        for draws in ("greedy", "noise", "logprobs"):
            ran = bench("--model", "models/demo", "--kv-memory", "64M", "--swap-memory", "0", "--seqs", "9", "--draws", draws)
            self.check_rows(ran, 1, 9)

    def test_refusals(self):
        for flags, words in ((["--seqs", "513"], "--seqs"), (["--draws", "some"], "--draws"), (["--shape", "9b"], "--shape"),
                             (["--shape", "0.6b", "--model", "models/demo"], "--model and --shape exclude each other")):
            ran = bench(*flags)
            self.assertEqual((ran.returncode, ran.stdout), (2, ""))
            self.assertIn(words, ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1)
