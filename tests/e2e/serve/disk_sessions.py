#!/usr/bin/env python3
"""Sessions on disk: what a client was told to be stored goes on after a kill or a restart, with the
tokens that it would have had, for its own key alone; what is old, damaged or deleted does not.
A soak (OCTAVO_SOAK) makes 100 rounds of it. usage: disk_sessions.py OCTAVO [unittest arguments]"""

import json
import os
import random
import shutil
import tempfile
import time
import unittest

from harness import LIGHT, MODEL, PAGE, Server, eventually, main, tokens

ROUNDS = 100 if "OCTAVO_SOAK" in os.environ else 2
PROMPT, ANSWER = 200, 6
KEYS = {"alice": "key-of-alice", "bob": "key-of-bob"}
REFORM = {"method": "reform", "gather_tokens": 64, "tokens": 96, "recurrent_chunk": 64, "sinks": 4, "window": 16,
          "rows": 16, "query_tokens": 8, "gather_window": 9}
CHUNKKV = {"method": "chunkkv", "ratio": 0.5, "window": 16}
POOL = ["--model", MODEL, "--kv-memory", "2M"]
FLAGS = ["--max-model-len", "1024", "--threads", "1", "--swap-memory", "0", "--disk-size", "64M",
         *[flag for key in KEYS.values() for flag in ("--api-key", key)]]


class Conversations(unittest.TestCase):
    """A folder for sessions, and conversations over servers that use it."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="octavo-sessions-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.folder = os.path.join(self.dir, "cache")

    def start(self, *flags, ttl=0):
        return Server(*FLAGS, "--disk-cache", self.folder, "--session-ttl", str(ttl), *flags, model=POOL)

    @staticmethod
    def kill(server):
        server.process.kill()
        server.wait()

    @staticmethod
    def ask(server, prompt, session=None, who="alice", **fields):
        """(the answer's token ids, what the report says of the session, tokens in the cache)"""
        answer = server.post("/v1/completions", {
            "prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0, "return_token_ids": True,
            **({"session": session} if session else {}), **fields}, headers={"Authorization": f"Bearer {KEYS[who]}"})
        choice = answer["choices"][0]
        return (choice["token_ids"], choice.get("retention", {}).get("session"),
                answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    def files(self):
        folder = os.path.join(self.folder, "sessions")
        return sorted(os.path.join(folder, name) for name in os.listdir(folder) if len(name) == 32)

    def conversation(self, server, session, n_turns, seed, between=lambda server: server, **fields):
        """Asks turn after turn, each on what `between` returns. Returns the prompt of the next
        turn, the answers and the server."""
        prompt, answers = tokens(PROMPT, seed), []
        for turn in range(n_turns):
            if turn:
                server = between(server)
            ids, note, _ = self.ask(server, prompt, session, **fields)
            self.assertEqual(note, "continued" if turn else "stored")
            answers.append(ids)
            prompt = prompt + ids + tokens(20, 1000 + turn)
        return prompt, answers, server

    def restart_by_kill(self, server):
        self.kill(server)
        return self.start()

    def restart_by_stop(self, server):
        server.stop()
        return self.start()


class DiskSessions(Conversations):
    def test_goes_on_after_a_kill(self):
        """At once after the answer, in three ways of keeping: the tokens are as without a kill."""
        server = self.start()
        ways = {"pages": {"retention": CHUNKKV}}
        if not LIGHT:
            ways |= {"full": {}, "tokens": {"retention": {"method": "snapkv", "ratio": 0.4, "window": 16}}}
        for name, fields in ways.items():
            _, expected, server = self.conversation(server, f"{name}-0", 3, 1, **fields)
            _, answers, server = self.conversation(server, f"{name}-1", 3, 1, self.restart_by_kill, **fields)
            self.assertEqual(answers, expected, name)
        self.assertEqual(server.metric("sessions_recalled_total"), 1)  # the last server's only one
        self.assertEqual(len(self.files()), 2 * len(ways))
        server.stop()

    def test_comes_from_disk_after_a_stop(self):
        server = self.start()
        prompt, _, server = self.conversation(server, "s", 2, 1)
        expected = self.ask(server, prompt)[0]
        server = self.restart_by_stop(server)
        ids, note, cached = self.ask(server, prompt, "s")
        self.assertEqual((ids, note), (expected, "continued"))
        # All but the last page and what is new.
        self.assertGreaterEqual(cached, (PROMPT + 2 * ANSWER + 20) // PAGE * PAGE - PAGE)
        self.assertEqual(server.metric("disk_cache_hits_total"), cached)
        server.stop()

    def test_belongs_to_its_key(self):
        """Another key, and another salt, find nothing, after a restart as before."""
        server = self.start()
        prompt, _, server = self.conversation(server, "s", 1, 1)
        server = self.restart_by_kill(server)
        for who, fields in (("bob", {}), ("alice", {"cache_salt": "x"})):
            _, note, cached = self.ask(server, prompt, "s", who, **fields)
            self.assertEqual((note, cached), ("stored", 0))
        self.assertEqual(self.ask(server, prompt, "s")[1], "continued")
        self.assertEqual(len(self.files()), 3)
        server.stop()

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_modes_of_files(self):
        server = self.start()
        _, _, server = self.conversation(server, "s", 1, 1)
        self.assertEqual(os.stat(os.path.join(self.folder, "sessions")).st_mode & 0o777, 0o700)
        for path in self.files():
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        server.stop()

    def test_ends_after_its_time(self):
        server = self.start()
        prompt, _, server = self.conversation(server, "s", 1, 1)
        self.assertEqual(len(self.files()), 1)
        self.kill(server)
        time.sleep(1.1)
        with self.start(ttl=1) as server:
            eventually("its file is deleted", lambda: not self.files())
            self.assertEqual(self.ask(server, prompt, "s")[1], "stored")
            eventually("and again while the server runs", lambda: not self.files())

    def question(self, server, n, who="alice", session="s"):
        """A question of 8 tokens about a text: its answer, and the report of its reading."""
        answer = server.post("/v1/completions", {
            "prompt": tokens(PROMPT, 1) + tokens(8, n), "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0,
            "return_token_ids": True, "session": session, "retention": REFORM},
            headers={"Authorization": f"Bearer {KEYS[who]}"})
        choice = answer["choices"][0]
        return choice["token_ids"], choice["retention"]["session"], choice["retention"]["reform"]

    def embeddings(self):
        folder = os.path.join(self.folder, "embeddings")
        return [os.path.join(folder, name) for name in os.listdir(folder) if len(name) == 32]

    def test_embeddings_come_from_disk_after_a_stop(self):
        """Another question costs no second reading, to the session's own key."""
        server = self.start()
        self.question(server, 5)
        expected, _, _ = self.question(server, 6)
        server = self.restart_by_stop(server)
        self.assertEqual(len(self.embeddings()), 1)
        self.assertEqual(os.stat(self.embeddings()[0]).st_mode & 0o777, 0o600)
        self.assertEqual(server.metric("disk_embeddings"), 1)
        self.assertEqual(server.metric("disk_embeddings_bytes"), os.path.getsize(self.embeddings()[0]))
        self.assertEqual(self.question(server, 6, "bob")[2]["reused_tokens"], 0)
        ids, note, reading = self.question(server, 6)
        self.assertEqual((ids, note), (expected, "continued"))
        self.assertEqual((reading["read_tokens"], reading["reused_tokens"]), (0, PROMPT + 8))
        self.assertEqual(server.metric("disk_embeddings_read_total"), 1)
        reading = self.question(server, 7)[2]
        self.assertEqual((reading["read_tokens"], reading["reused_tokens"]), (8, PROMPT))
        server.stop()

    @staticmethod
    def delete(server, session, who="alice", **headers):
        status, _, text = server.request("DELETE", f"/v1/sessions/{session}", None, {
            "Authorization": f"Bearer {KEYS[who]}", **headers})
        return status, json.loads(text)

    def test_is_deleted(self):
        """In memory, on disk and after a restart; by its own key alone."""
        server = self.start()
        prompts = {}
        for name, fields in (("a b", {}), ("gone", {}), ("salted", {"cache_salt": "x"})):
            prompts[name], _, server = self.conversation(server, name, 1, 1, **fields)
        answer = {"id": "a b", "object": "session", "deleted": True}
        self.assertEqual(self.delete(server, "a%20b", "bob"), (200, answer))
        self.assertEqual(self.delete(server, "gone"), (200, {**answer, "id": "gone"}))
        self.assertEqual(self.delete(server, "salted")[0], 200)  # not the one of that salt
        eventually("its file is deleted", lambda: len(self.files()) == 2)
        self.assertEqual(self.delete(server, "x" * 257)[0], 400)
        self.assertEqual(self.ask(server, prompts["gone"], "gone")[1], "stored")
        server = self.restart_by_kill(server)
        self.assertEqual(self.ask(server, prompts["a b"], "a b")[1], "continued")
        self.assertEqual(self.delete(server, "a%20b")[0], 200)
        self.assertEqual(self.delete(server, "salted", **{"octavo-cache-salt": "x"})[0], 200)
        self.assertEqual(self.delete(server, "never")[0], 200)
        self.assertEqual(self.ask(server, prompts["a b"], "a b")[1], "stored")
        self.assertEqual(self.ask(server, prompts["salted"], "salted", cache_salt="x")[1], "stored")
        server.stop()

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_only_so_many_are_kept(self):
        with self.start("--max-sessions", "2") as server:
            _, _, _ = self.conversation(server, "bob's", 1, 7, who="bob")
            for i in range(4):
                self.conversation(server, f"s{i}", 1, i)
            eventually("two are left", lambda: len(self.files()) == 2)
            self.assertEqual(server.metric("disk_sessions"), 2)
        with self.start() as server:
            for i, note in ((0, "stored"), (3, "continued")):
                prompt = tokens(PROMPT, i)
                ids = self.ask(server, prompt)[0]
                self.assertEqual(self.ask(server, prompt + ids + [5], f"s{i}")[1], note)

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_other_settings_start_without(self):
        server = self.start()
        prompt, _, server = self.conversation(server, "s", 1, 1)
        server.stop()
        with self.start("--kv-dtype", "int8") as server:
            self.assertEqual(self.files(), [])
            self.assertEqual(self.ask(server, prompt, "s")[1], "stored")
            self.assertIn("sessions of another model or of other settings", server.log())

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_rounds_of_damage(self):
        """Kills, flips bits, tears. A session that was told to be stored goes on unless its
        own file was damaged; the tokens are right either way."""
        r = random.Random(11)
        server = self.start()
        expected = {}
        names = [f"s{i}" for i in range(4)]
        for i, name in enumerate(names):
            fields = {"retention": CHUNKKV} if i % 2 else {}
            _, expected[name], server = self.conversation(server, f"{name}-plain", 2, i, **fields)
        for round_ in range(ROUNDS):
            told = {name: f"{name}-{round_}" for name in names}
            for i, name in enumerate(names):
                fields = {"retention": CHUNKKV} if i % 2 else {}
                self.assertEqual(self.ask(server, tokens(PROMPT, i), told[name], **fields)[:2],
                                 (expected[name][0], "stored"))
            self.kill(server)
            damaged = False
            for path in [*self.files(), os.path.join(self.folder, "blocks"), os.path.join(self.folder, "index")]:
                if r.randrange(3) or not os.path.getsize(path):
                    continue
                damaged |= len(os.path.basename(path)) == 32
                if r.randrange(2):
                    os.truncate(path, r.randrange(os.path.getsize(path)))
                    continue
                with open(path, "r+b") as f:
                    at = r.randrange(os.path.getsize(path))
                    f.seek(at)
                    byte = f.read(1)
                    f.seek(at)
                    f.write(bytes([byte[0] ^ 1 << r.randrange(8)]))
            with open(os.path.join(self.folder, "sessions", "new"), "wb") as f:
                f.write(b"torn")
            server = self.start()
            notes = []
            for i, name in enumerate(names):
                fields = {"retention": CHUNKKV} if i % 2 else {}
                prompt = tokens(PROMPT, i) + expected[name][0] + tokens(20, 1000)
                ids, note, _ = self.ask(server, prompt, told[name], **fields)
                notes.append(note)
                if note == "continued":
                    self.assertEqual(ids, expected[name][1])
            self.assertLessEqual(set(notes), {"continued", "stored"})
            if not damaged:
                self.assertEqual(set(notes), {"continued"})
        server.stop()


if __name__ == "__main__":
    main()
