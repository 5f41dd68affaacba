#!/usr/bin/env python3
"""Conversations on the command line: octavo run --chat. usage: chat.py OCTAVO [unittest arguments]
(from the source root)"""

import fcntl
import json
import os
import pty
import select
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

from run_cli import OCTAVO, POOL, PAGE, TIMEOUT, octavo, run_lines, run_one, tokens


PASTES_OFF = "\x1b[?2004l"  # the terminal is told so behind each line that was typed
PROMPT = b"\x1b[?2004h> "


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


class Typed(unittest.TestCase):
    """A chat at a terminal."""
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.history = os.path.join(self.folder, "octavo", "chat_history")

    def start(self, *flags):
        """Starts a chat and waits for its prompt."""
        self.far, near = pty.openpty()
        self.unread = b""
        self.addCleanup(os.close, self.far)
        self.addCleanup(os.close, near)  # kept open, so that its modes can be read at the end
        self.near = near
        fcntl.ioctl(near, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(near)
        self.p = subprocess.Popen(
            [OCTAVO, "run", *POOL, "--chat", *flags], stdin=near, stdout=near, stderr=near,
            env=dict(os.environ, XDG_STATE_HOME=self.folder, HOME=self.folder, TERM="xterm", LC_ALL="C"),
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.addCleanup(self.p.wait)
        self.addCleanup(self.p.kill)
        return self.read_until(PROMPT)

    def read_until(self, end):
        """What the terminal shows up to this text; or up to where a function of all of it tells,
        which returns None when more must come."""
        find = end if callable(end) else lambda shown: shown.find(end) + len(end) if end in shown else None
        while (at := find(self.unread)) is None:
            if not select.select([self.far], [], [], TIMEOUT)[0]:
                raise AssertionError(f"the chat shows nothing behind {self.unread}")
            self.unread += os.read(self.far, 4096)
        text, self.unread = self.unread[:at], self.unread[at:]
        return text.decode()

    def type(self, keys, *ends):
        """Returns what the terminal shows behind the keys, up to `ends`: one prompt."""
        os.write(self.far, keys.encode())
        return "".join(self.read_until(end) for end in ends or [PROMPT]).rsplit(PASTES_OFF, 1)[-1]

    def end(self, code=0, key="\x04"):
        """Ends the chat, which leaves the terminal as it was."""
        os.write(self.far, key.encode())
        self.assertEqual(self.p.wait(TIMEOUT), code)
        self.assertEqual(termios.tcgetattr(self.near), self.before)

    def saved(self):
        """The conversation, by /save."""
        path = os.path.join(self.folder, "saved.jsonl")
        self.type(f"/save {path}\r", b" messages are in ", PROMPT)
        with open(path, encoding="utf-8") as file:
            (line,) = file.read().splitlines()
        return [(m["role"], m["content"]) for m in json.loads(line)["messages"]]

    def asked(self):
        return [text for role, text in self.saved() if role == "user"]

    def test_keys(self):
        """Keys that edit, lines that go on, and what is pasted."""
        shown = self.start("--max-tokens", "2")
        self.assertIn("/help lists commands", shown)
        answer = self.type("w\xf6rlds\x1b[D\x1b[D\x1b[D\x7fo\x05\x08\r")  # left and delete
        self.assertEqual(self.saved(), [("user", "w\xf6old"), ("assistant", answer[:-len(PROMPT) - 2])])
        self.type("one\\\r", b".. ")
        self.type("two\r")
        self.type("\x1b[200~/help\rand\r\r\x1b[201~\x01 \x05more\r")  # pasted; a blank before it
        self.type("\r")  # nothing
        self.type("dropped\x03")  # taken back
        self.type("\x1b[A\r")  # the last message again
        self.assertEqual(self.asked(), ["w\xf6old", "one\ntwo", " /help\nand\n\nmore", " /help\nand\n\nmore"])
        self.end()

    def test_ctrl_c(self):
        """Ends the answer alone, whose beginning stays, and twice with nothing typed the chat."""
        self.start("--ignore-eos")
        os.write(self.far, b"hello\r")
        self.read_until(PASTES_OFF.encode())
        self.read_until(lambda shown: 200 if len(shown) >= 200 else None)
        shown = self.type("\x03")
        self.assertTrue(shown.endswith(PROMPT.decode()))
        (_, asked), (role, answer) = self.saved()
        self.assertEqual((asked, role), ("hello", "assistant"))
        self.assertGreater(len(answer), 20)
        self.assertIn("once more", self.type("\x03"))
        self.type("x\x03")
        self.assertIn("once more", self.type("\x03"))
        self.end(key="\x03")

    def test_ctrl_c_before_an_answer(self):
        """The message is taken back."""
        self.start("--max-tokens", "1", "--prefill-chunk", "16")
        for i in range(20):  # a prompt may be done before the key arrives
            self.type("/reset\r", b"begins anew", PROMPT)
            os.write(self.far, f"\x1b[200~{i} {'some words, ' * 250}\x1b[201~\r".encode())
            self.read_until(PASTES_OFF.encode())
            self.read_until(lambda shown: 0 if b"prefill of" in shown or PROMPT in shown else None)
            if "the message is taken back" in self.type("\x03"):
                break
        self.assertEqual(self.saved(), [])
        self.end()

    def test_commands(self):
        self.start("--max-tokens", "4", "--system", "be brief", "--session", "s")
        self.assertIn("  /retention [METHOD:RATIO] ", self.type("/help\r"))
        self.assertIn("did you mean /reset?", self.type("/rset\r"))
        self.assertIn("; session stored", self.type("hello\r"))
        self.assertIn("; session continued", self.type("and you\r"))
        self.assertIn("begins anew", self.type("/reset\r"))
        self.assertIn("; session stored", self.type("hello again\r"))
        self.assertIn("retention: 'some' must be METHOD:RATIO", self.type("/retention some\r"))
        self.assertIn("retention.method: 'no' is unknown", self.type("/retention no:0.5\r"))
        self.assertIn("Retention is full.", self.type("/retention\r"))
        self.assertIn('Retention is {"method":"snapkv","ratio":0.5}.', self.type("/retention snapkv:0.5\r"))
        shown = self.type("once more\r")
        self.assertIn("snapkv", shown)
        self.assertIn("; session stored", shown)
        self.assertIn('"snapkv"', self.type("/retention snapkv:7\r") + self.type("/retention\r"))
        self.assertIn('Retention is {"method":"full"}.', self.type("/retention full\r"))
        self.assertEqual([text for role, text in self.saved() if role != "assistant"],
                         ["be brief", "hello again", "once more"])
        line = os.path.join(self.folder, "saved.jsonl")
        self.assertIn('"text"', octavo("run", *POOL, "--max-tokens", "1", "--prompts", line)[0])
        self.assertIn("is there already", self.type(f"/save {self.history}\r"))
        self.end()

    def test_history(self):
        """A chat finds what was typed in the last one, in a file of the user alone."""
        self.start("--max-tokens", "1", "--quiet")
        self.type("first\r")
        self.type("two\\\r", b".. ")
        self.type("lines\r")
        self.end()
        self.assertEqual(stat.S_IMODE(os.stat(self.history).st_mode), 0o600)
        self.start("--max-tokens", "1", "--quiet")
        self.type("\x1b[A\r")
        self.type("\x1b[A\x1b[A!\r")
        self.type("\x12fir\r")  # searched
        self.assertEqual(self.asked(), ["two\nlines", "first!", "first!"])
        self.end()
        octavo("run", *POOL, "--chat", "--max-tokens", "1", stdin="not typed\n")
        with open(self.history, encoding="utf-8") as file:
            self.assertNotIn("not", file.read())

    def test_signal_ends_the_chat(self):
        self.start("--quiet")
        os.write(self.far, b"half")
        self.read_until(b"half")
        self.p.send_signal(signal.SIGTERM)
        self.end(130, "")

    def test_lines_have_no_commands(self):
        """Where stdin is no terminal every line is a message."""
        lines = octavo("run", *POOL, "--chat", "--json", "--max-tokens", "2", stdin="/help\nwith \\\n")[0]
        self.assertEqual(len(lines.splitlines()), 2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
