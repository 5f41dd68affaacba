#!/usr/bin/env python3
"""octavo heads as a user meets it: the file beside the model, the same heads again and with two
ranks, and its refusals. usage: heads.py OCTAVO   (from the source root)"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

OCTAVO = os.path.abspath(sys.argv[1])
SMALL = ("--samples", "1", "--tokens", "600", "--chunk", "256", "--budget", "64", "--threads", "1", "--dtype", "f32",
         "--kv-memory", "64M", "--seed", "3")


def heads(*args):
    p = subprocess.run([OCTAVO, "heads", *args], capture_output=True, timeout=600, text=True)
    return p.returncode, p.stdout, p.stderr


class Heads(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.model = os.path.join(self.dir, "model")
        shutil.copytree("models/demo", self.model)
        self.file = os.path.join(self.model, "reform_heads.json")
        if os.path.exists(self.file):
            os.remove(self.file)

    def tearDown(self):
        shutil.rmtree(self.dir)

    def found(self, path):
        with open(path) as f:
            return json.load(f)

    def test_the_file_beside_the_model(self):
        code, out, err = heads("--model", self.model, *SMALL)
        self.assertEqual(code, 0, err)
        first = self.found(self.file)
        self.assertEqual(len(first["all"]), 4 * (8 + 4 + 4))
        self.assertEqual([h["task"] for h in first["heads"]], ["pattern"] * 2 + ["multi-hop"] * 2)
        for h in first["all"]:
            self.assertTrue(0 <= h["pattern"] <= 1 and 0 <= h["multi_hop"] <= 1, h)
        shallow = [h for h in first["all"] if h["layer"] < 0.7 * 4]
        self.assertEqual(first["heads"][0]["pattern"], min(h["pattern"] for h in shallow))
        highest = max(h["layer"] for h in first["heads"])
        self.assertIn(f"layers run: {max(highest, 1)} of 4; 256 bytes a token", out)
        other = os.path.join(self.dir, "again.json")
        code, _, err = heads("--model", self.model, *SMALL, "--out", other)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.found(other), first)
        code, _, err = heads("--model", self.model, *SMALL, "--out", other, "--tp", "2")
        self.assertEqual(code, 0, err)
        for a, b in zip(first["all"], self.found(other)["all"]):
            self.assertEqual([a[k] for k in ("layer", "kind", "head")], [b[k] for k in ("layer", "kind", "head")])
            # Two ranks sum in another order: a token's rank may move among its equals.
            self.assertAlmostEqual(a["pattern"], b["pattern"], delta=0.02)

    def test_refusals(self):
        text = os.path.join(self.dir, "empty.txt")
        open(text, "w").close()
        for args, says in (((), "--model is missing"),
                           (("--model", self.model, "--tokens", "5000"), "--tokens: 5000 is more than"),
                           (("--model", self.model, *SMALL, "--haystack", text), "empty.txt: has no lines"),
                           (("--model", self.model, *SMALL, "--haystack", self.dir + "/none"), "none"),
                           (("--model", self.model, *SMALL, "--out", self.dir + "/no/such"), "no/such")):
            code, _, err = heads(*args)
            self.assertNotEqual(code, 0, args)
            self.assertIn(says, err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
