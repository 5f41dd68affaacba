#!/usr/bin/env python3
"""octavo run on a terminal: a long prompt has a bar, which is gone before the answer begins. A text
that is read for its embeddings has one for each phase.
usage: run_terminal.py OCTAVO   (from the source root)"""

import os
import pty
import random
import re
import subprocess
import sys
import unittest

OCTAVO = os.path.abspath(sys.argv[1])
TIMEOUT = 600 # seconds after which a command hangs: sanitizers on a busy machine are slow


def prompt():
    r = random.Random(1)
    return " ".join("".join(r.choices("abcdefghij", k=5)) for _ in range(600))


ARGS = [OCTAVO, "run", "--model", "models/demo", "--kv-memory", "64M", "--threads", "1", "--prefill-chunk", "64",
        "--max-tokens", "3", "--ignore-eos", "--prompt", prompt()]


def read_all(fd):
    """What a process writes to its terminal until it ends."""
    text = b""
    try:
        while chunk := os.read(fd, 65536):
            text += chunk
    except OSError:  # the other side is closed
        pass
    return text.decode("utf-8")


def run_on_terminal(*more):
    """The process's output, cut where the cursor goes back to begin the line anew."""
    far, near = pty.openpty()
    p = subprocess.Popen([*ARGS, *more], stdin=subprocess.DEVNULL, stdout=near, stderr=near)
    os.close(near)
    text = read_all(far)
    os.close(far)
    if p.wait(TIMEOUT) != 0:
        raise AssertionError(text)
    return text.split("\r\x1b[K")


REFORM = '{"method":"reform","tokens":256,"recurrent_chunk":128,"sinks":16,"window":16,"rows":16,"gather_tokens":256,' \
         '"query_tokens":8}'


class Terminal(unittest.TestCase):
    def check_bars(self, phases, *more):
        form = re.compile(rf"({'|'.join(phases)}) of \d+ tokens \[#*-*\] \d+ %")
        for _ in range(50):  # a prompt that is done before the stream is read has no bar
            lines = run_on_terminal(*more)
            bars = [line for line in lines if form.fullmatch(line)]
            if bars and bars[0].startswith(phases[0]):
                break
        self.assertTrue(bars)
        seen = [phases.index(bar.split()[0]) for bar in bars]
        self.assertEqual(seen, sorted(seen), bars)
        self.assertEqual(seen[0], 0)
        self.assertEqual(lines[-1 - len(bars):-1], bars)
        self.assertNotIn(" tokens [", lines[-1])

    def test_bar(self):
        self.check_bars(["prefill"])

    def test_phases(self):
        self.check_bars(["read", "gather", "recompute"], "--retention", REFORM)

    def test_no_terminal(self):
        p = subprocess.run(ARGS, capture_output=True, timeout=TIMEOUT)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertNotIn(b"prefill", p.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1)
