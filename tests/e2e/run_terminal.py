#!/usr/bin/env python3
"""octavo run and serve on a terminal: loading weights and a long prompt have a bar, which is gone
before the next line begins. A text that is read for its embeddings has a bar for each phase.
usage: run_terminal.py OCTAVO   (from the source root)"""

import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest

OCTAVO = os.path.abspath(sys.argv[1])
TIMEOUT = 600 # seconds after which a command hangs: sanitizers on a busy machine are slow


def prompt():
    r = random.Random(1)
    return " ".join("".join(r.choices("abcdefghij", k=5)) for _ in range(600))


MODEL = ["--model", "models/demo", "--kv-memory", "64M", "--threads", "1"]
RUN = [OCTAVO, "run", *MODEL, "--prefill-chunk", "64", "--max-tokens", "3", "--ignore-eos", "--prompt", prompt()]
SERVE = [OCTAVO, "serve", *MODEL, "--http", "127.0.0.1:0", "--grpc", "none"]
REFORM = '{"method":"reform","tokens":256,"recurrent_chunk":128,"sinks":16,"window":16,"rows":16,"gather_tokens":256,' \
         '"query_tokens":8}'
LOADING = r"^loading weights \[#*-*\] \d+ %$"


def read_until(fd, end):
    """What a process writes to its terminal until it has written `end`, or to its own end."""
    text = b""
    try:
        while end is None or end not in text:
            text += os.read(fd, 65536)
    except OSError:  # the other side is closed
        pass
    return text.decode("utf-8")


def run_on_terminal(args, end=None):
    """The process's output, cut where the cursor goes back to begin the line anew. A process that
    does not end by itself is ended when it has written `end`."""
    far, near = pty.openpty()
    p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=near, stderr=near)
    os.close(near)
    text = read_until(far, end)
    if end:
        p.send_signal(signal.SIGTERM)
        read_until(far, None)
    os.close(far)
    if p.wait(TIMEOUT) != 0:
        raise AssertionError(text)
    return text.split("\r\x1b[K")


class Terminal(unittest.TestCase):
    def check_loading(self, lines):
        """Returns the lines behind the bars of loading."""
        self.assertEqual(lines[0], "")
        n = next(i for i, line in enumerate(lines) if i and not line.startswith("loading weights"))
        self.assertGreater(n, 1)
        for bar in lines[1:n]:
            self.assertRegex(bar, LOADING)
        self.assertRegex(lines[n], r"^octavo: models/demo: .*, ready in ")
        self.assertNotIn("loading weights", "".join(lines[n:]))
        return lines[n:]

    def check_bars(self, phases, *more):
        form = re.compile(rf"({'|'.join(phases)}) of \d+ tokens \[#*-*\] \d+ %")
        for _ in range(50):  # a prompt that is done before the stream is read has no bar
            lines = self.check_loading(run_on_terminal([*RUN, *more]))
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

    def test_serve(self):
        self.check_loading(run_on_terminal(SERVE, b'"event":"start"'))

    def test_quiet(self):
        """Neither bars nor notes, but errors."""
        text = run_on_terminal([*RUN, "--quiet", "--retention", "snapkv:0.5"])
        self.assertEqual(len(text), 1)
        self.assertEqual(text[0].count("\n"), 1, text)  # the answer
        self.assertTrue(run_on_terminal([*SERVE, "--quiet"], b'"event":"start"')[0].startswith('{"time":'))
        p = subprocess.run([OCTAVO, "run", *MODEL, "--quiet", "--prompts", "-"], input=b'{"prompt":"O","max_tokens":1}\n{',
                           capture_output=True, timeout=TIMEOUT)
        self.assertEqual((p.returncode, p.stderr), (1, b""))
        self.assertIn(b'"error"', p.stdout)
        p = subprocess.run([OCTAVO, "run", *MODEL, "--quiet", "--retention", "no:0.5", "--prompt", "O"],
                           capture_output=True, timeout=TIMEOUT)
        self.assertEqual(p.returncode, 2)
        self.assertIn(b"octavo run: retention.method: ", p.stderr)
        p = subprocess.run([OCTAVO, "methods", "--quiet"], capture_output=True, timeout=TIMEOUT)
        self.assertIn(b"unknown flag '--quiet'", p.stderr)

    def test_an_answer_does_not_steer_it(self):
        """Tokens that no other token is made of are spelled anew, so that answers hold them."""
        ask = ["--kv-memory", "64M", "--threads", "1", "--max-tokens", "60", "--quiet", "--prompt", "O Romeo"]
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir("models/demo"):
                os.symlink(os.path.abspath(f"models/demo/{name}"), f"{folder}/{name}")
            os.remove(f"{folder}/tokenizer.json")
            with open("models/demo/tokenizer.json", encoding="utf-8") as f:
                file = json.load(f)
            model, steers = file["model"], "\u011b]0;x\u0107\u00c2\u013d31m{}"  # ESC, BEL, U+009B
            pairs = [m.split(" ") for m in model["merges"]]
            parts = {part for pair in pairs for part in pair}
            new = {a + b: steers.format(i) for i, (a, b) in enumerate(pairs) if a + b not in parts and a + b != "\u0120Romeo"}
            model["merges"] = [" ".join(pair) for pair in pairs if "".join(pair) not in new]
            model["vocab"] = {new.get(token, token): n for token, n in model["vocab"].items()}
            with open(f"{folder}/tokenizer.json", "w", encoding="utf-8") as f:
                json.dump(file, f)
            run = [OCTAVO, "run", "--model", folder, *ask]
            piped = subprocess.run(run, capture_output=True, timeout=TIMEOUT, check=True).stdout.decode()
            self.assertIn("\x1b]0;x\x07\u009b31m", piped)
            for more in ([], ["--n", "2"]):
                shown = "".join(run_on_terminal([*run, *more]))
                self.assertIn("?]0;x??31m", shown)
                self.assertNotRegex(shown, "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
            self.assertEqual("".join(run_on_terminal(run)).replace("\r\n", "\n"),
                             piped.translate({0x1b: "?", 7: "?", 0x9b: "?"}))

    def test_no_terminal(self):
        p = subprocess.run(RUN, capture_output=True, timeout=TIMEOUT)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertNotIn(b"prefill", p.stderr)
        self.assertNotIn(b"loading", p.stderr)
        self.assertIn(b", ready in ", p.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1)
