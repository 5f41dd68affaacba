#!/usr/bin/env python3
"""Conversations on the command line: octavo run --chat. usage: chat.py OCTAVO [unittest arguments]
(from the source root)"""

import json
import os
import pty
import subprocess
import sys
import unittest

from run_cli import OCTAVO, POOL, PAGE, TIMEOUT, octavo, run_lines, run_one, tokens


class Conversation(unittest.TestCase):
    def test_chat(self):
        hello = "Good morrow to thee, gentle friend, and to thy house."
        text = octavo("run", *POOL, "--chat", "--max-tokens", "6", stdin=f"{hello}\nwho are you\n")[0]
        lines = [json.loads(line) for line in
                 octavo("run", *POOL, "--chat", "--json", "--max-tokens", "6",
                        stdin=f"{hello}\n\nwho are you\n")[0].splitlines()]
        self.assertEqual(len(lines), 2)
        self.assertEqual(text, "".join(line["text"].removesuffix("\n") + "\n" for line in lines))
        first = run_one({"messages": [{"role": "user", "content": hello}], "max_tokens": 6})
        self.assertEqual(lines[0]["token_ids"], first["token_ids"])
        both = run_one({"max_tokens": 6, "messages": [
            {"role": "user", "content": hello}, {"role": "assistant", "content": first["text"]},
            {"role": "user", "content": "who are you"}]})
        self.assertEqual(lines[1]["token_ids"], both["token_ids"])
        # The second turn finds the full pages of the first one in the prefix cache.
        self.assertEqual(lines[1]["usage"]["prompt_tokens"], both["usage"]["prompt_tokens"])
        self.assertGreaterEqual(lines[1]["usage"]["prompt_tokens_details"]["cached_tokens"], PAGE)

    def test_chat_of_a_full_context(self):
        """The oldest turns are removed, a turn that never fits is left out, and the chat
        continues."""
        said = "".join(f"number {i} of some words that take room in a context\n" for i in range(8))
        out, err = octavo("run", *POOL, "--chat", "--json", "--max-tokens", "8", "--max-model-len", "160", stdin=said)
        self.assertEqual(len(out.splitlines()), 8)
        self.assertIn("the context of 160 tokens is full: the oldest message and its answer are dropped", err)
        out, err = octavo("run", *POOL, "--chat", "--json", "--max-tokens", "8", "--max-model-len", "160",
                          stdin=f"hello\n{'word ' * 300}\nhello\n")
        self.assertEqual(len(out.splitlines()), 2)
        self.assertIn("this message alone does not fit and is left out", err)

    def test_version(self):
        self.assertRegex(octavo("--version")[0], r"^octavo \d+\.\d+\.\d+\n$")

    def test_chat_in_a_session(self):
        """Every turn continues from the last one, and is answered as in a chat without a
        session."""
        said = "Good morrow\nand what of Juliet\nfarewell\n"
        lines, plain = ([json.loads(line) for line in
                         octavo("run", *POOL, "--chat", "--json", "--max-tokens", "9", *flags, stdin=said)[0].splitlines()]
                        for flags in (["--session", "s"], []))
        self.assertEqual([line["retention"]["session"] for line in lines], ["stored", "continued", "continued"])
        self.assertEqual([line["token_ids"] for line in lines], [line["token_ids"] for line in plain])
        err = octavo("run", *POOL, "--chat", "--max-tokens", "9", "--session", "s", stdin=said)[1]
        self.assertIn("; session continued", err)

    def test_lines_of_one_session_are_its_turns(self):
        """Each line of a session waits for the one before it; lines of other sessions run beside
        it."""
        fields = {"max_tokens": 20, "ignore_eos": True, "retention": {"method": "chunkkv", "ratio": 0.5}}
        prompt = tokens(64, 40)
        first = run_one({"prompt_token_ids": prompt, **fields})["token_ids"]
        turns = [{"id": f"a{i}", "session": "a", "prompt_token_ids": prompt + i * (first + tokens(5, 41)), **fields}
                 for i in range(2)]
        others = [{"id": f"b{i}", "prompt_token_ids": tokens(30, 50 + i), **fields} for i in range(4)]
        lines = {line["id"]: line for line in run_lines([turns[0], *others[:2], turns[1], *others[2:]])}
        self.assertEqual(len(lines), 6)
        self.assertEqual([lines[f"a{i}"]["retention"]["session"] for i in range(2)], ["stored", "continued"])
        self.assertEqual(lines["a0"]["token_ids"], first)
        for i in range(4):
            self.assertNotIn("session", lines[f"b{i}"]["retention"])
        # The flag applies to every line.
        lines = run_lines([{k: v for k, v in turn.items() if k != "session"} for turn in turns], "--session", "x")
        self.assertEqual([line["retention"]["session"] for line in lines], ["stored", "continued"])

    def test_one_shot(self):
        line = json.loads(octavo("run", *POOL, "--chat", "--system", "be brief", "--prompt", "hi", "--json",
                                 "--max-tokens", "4")[0])
        same = run_one({"max_tokens": 4, "messages": [{"role": "system", "content": "be brief"},
                                                      {"role": "user", "content": "hi"}]})
        self.assertEqual(line["token_ids"], same["token_ids"])

    def test_line_by_line(self):
        """Each line is answered before the next one is written: no answer waits for the end of
        input."""
        p = subprocess.Popen([OCTAVO, "run", *POOL, "--prompts", "-", "--max-tokens", "3"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for i in range(3):
            p.stdin.write(json.dumps({"id": i, "prompt": "O"}).encode() + b"\n")
            p.stdin.flush()
            self.assertEqual(json.loads(p.stdout.readline())["id"], i)
        p.stdin.close()
        self.assertEqual(p.stdout.read(), b"")
        self.assertEqual(p.wait(TIMEOUT), 0)
        p.stdout.close()

    def test_a_bar_while_weights_are_loaded(self):
        """Shown on a terminal only, and erased when the weights are loaded."""
        flags = [OCTAVO, "run", *POOL, "--prompt", "O", "--max-tokens", "1"]
        terminal, its_end = pty.openpty()
        p = subprocess.Popen(flags, stdout=subprocess.DEVNULL, stderr=its_end)
        os.close(its_end)
        shown = b""
        try:
            while some := os.read(terminal, 4096):
                shown += some
        except OSError:  # the end of a terminal
            pass
        os.close(terminal)
        self.assertEqual(p.wait(TIMEOUT), 0)
        self.assertRegex(shown, rb"loading weights \[[#-]{30}\] \d+ %\r\x1b\[K(?!loading)")
        p = subprocess.run(flags, capture_output=True, timeout=TIMEOUT)
        self.assertNotIn(b"loading", p.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
