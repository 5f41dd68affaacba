#!/usr/bin/env python3
"""The prefix cache and sessions on disk over tensor-parallel ranks: as threads, local processes and
workers by address. Each finds its blocks again after a kill, a rank's or the coordinator's, with
the same tokens; a block of which one rank's part is damaged is computed again by all. A soak
(OCTAVO_SOAK) makes 50 rounds of kills.
usage: disk_cache_ranks.py OCTAVO [unittest arguments]"""

import os
import random
import signal
import threading
import unittest

from harness import LIGHT, PATIENCE, PATIENT, eventually, main
from disk_cache import HIT, PAGE, PROMPTS, Store, flip
from disk_sessions import CHUNKKV, Conversations
from processes import ranks_of
from workers import Worker

RANKS = 2
ROUNDS = 50 if "OCTAVO_SOAK" in os.environ else 2
THREADS, LOCAL = (["--tp", str(RANKS), "--workers", where, *PATIENT] for where in ("threads", "local"))
# The K and V of a page of one layer and head, in bf16; a block begins with all heads of layer 0,
# of which rank 1 has the second half.
TILE, HEADS, LAYERS = PAGE * 32 * 2 * 2, 4, 4
BLOCK = TILE * HEADS * LAYERS
PART = TILE * HEADS // RANKS


class OverRanks(Store):
    def after_a_kill(self, *flags):
        """The answers of a server, and whether another one takes them from the disk."""
        server = self.start(*flags)
        answers = self.fill(server)
        self.assertEqual(self.ask(server, PROMPTS[0]), (answers[0], HIT))
        self.assertEqual(server.metric("disk_cache_hits_total"), HIT)
        self.kill(server)
        with self.start(*flags) as server:
            self.assertEqual(self.ask(server, PROMPTS[0]), (answers[0], HIT))
            self.assertEqual(self.ask(server, PROMPTS[1]), (answers[1], HIT))
            self.assertEqual(server.metric("disk_cache_hits_total"), 2 * HIT)
            self.assertEqual(self.trouble(server), [])
            server.idle()
        return answers

    def test_outlives_a_kill(self):
        want = self.after_a_kill(*THREADS)
        # The store is of ranks, not of how they are reached.
        with self.start(*LOCAL) as server:
            self.assertEqual(self.ask(server, PROMPTS[0]), (want[0], HIT))
            self.assertEqual(self.ask(server, PROMPTS[7])[0], want[7])
        if LIGHT:
            return
        self.folder += "-8"
        self.after_a_kill("--tp", "8", "--workers", "threads")  # each KV head at two ranks

    def test_outlives_workers_by_address(self):
        """All of them, then the coordinator."""
        workers = [Worker() for _ in range(RANKS)]
        flags = ["--workers", ",".join(w.address for w in workers), *PATIENT]
        try:
            answers = self.after_a_kill(*flags)
            server = self.start(*flags)
            for w in workers:
                w.kill()
                w.start()
            for i in (0, 1):
                self.assertEqual(self.insist(server, PROMPTS[i]), (answers[i], HIT))
            self.assertEqual(server.metric("disk_cache_hits_total"), 2 * HIT)
            server.stop()
        finally:
            for w in workers:
                w.stop()

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_belongs_to_a_number_of_ranks(self):
        server = self.start(*THREADS)
        self.fill(server)
        server.stop()
        for flags in ([], ["--tp", "4", "--workers", "threads"], THREADS):
            with self.subTest(flags=flags), self.start(*flags) as server:
                self.assertEqual(server.metric("disk_cache_blocks"), 0)
                self.assertEqual(self.ask(server, PROMPTS[0])[1], 0)
                self.assertIn("another model or of other settings", str(self.trouble(server)))
                for prompt in PROMPTS[1:4]:  # they take its pages
                    self.ask(server, prompt)
                self.assertGreater(self.written(server), 0)

    def harm(self, path, how, rank):
        """Harms the rank's part of every block."""
        at, size = rank * PART, os.path.getsize(path)
        for block in range(0, size, BLOCK):
            if how == "flipped":
                flip(path, block + at + 100)
            elif how == "deleted":
                with open(path, "r+b") as f:
                    f.seek(block + at)
                    f.write(bytes(PART))
        if how == "cut":
            os.truncate(path, at + 100)

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_one_ranks_part_is_damaged(self):
        first = self.folder
        for how in ("flipped", "deleted", "cut"):
            for rank in range(RANKS):
                with self.subTest(how=how, rank=rank):
                    self.folder = f"{first}-{how}-{rank}"
                    server = self.start(*THREADS)
                    answers = self.fill(server)
                    self.kill(server)
                    path = os.path.join(self.folder, "blocks")
                    self.assertEqual(os.path.getsize(path) % BLOCK, 0)
                    self.harm(path, how, rank)
                    server = self.start(*THREADS)
                    self.assertGreater(server.metric("disk_cache_blocks"), HIT // PAGE)
                    for i in (0, 1):
                        self.assertEqual(self.ask(server, PROMPTS[i]), (answers[i], 0))
                    self.assertEqual(server.metric("disk_cache_hits_total"), 0)
                    self.assertGreaterEqual(server.metric("disk_cache_blocks_damaged_total"), 2)
                    server.stop()

    def insist(self, server, prompt):
        """`ask`, again while the ranks are made again."""
        def answered():
            status, _, _ = server.request("POST", "/v1/completions", {"prompt": [1], "max_tokens": 1})
            return status == 200

        while True:
            try:
                return self.ask(server, prompt)
            except AssertionError as e:
                if ": 503, " not in str(e) and ": 500, " not in str(e):
                    raise
            eventually("it serves again", answered)

    def test_ranks_are_killed(self):
        """A rank dies while blocks are written and loaded: the store stays, and its blocks come
        back into the new ranks."""
        server = self.start(*LOCAL)
        answers = self.fill(server)
        before = server.metric("disk_cache_hits_total")
        os.kill(ranks_of(server, RANKS)[1], signal.SIGKILL)
        self.assertEqual(self.insist(server, PROMPTS[0]), (answers[0], HIT))
        self.assertEqual(server.metric("disk_cache_hits_total"), before + HIT)
        r = random.Random(3)
        for _ in range(ROUNDS):
            asked = r.sample(range(len(PROMPTS)), 4)
            threads = [threading.Thread(target=self.ask_anyway, args=(server, PROMPTS[i])) for i in asked]
            for t in threads:
                t.start()
            if r.randrange(2):
                os.kill(ranks_of(server, RANKS)[r.randrange(RANKS)], signal.SIGKILL)
            else:
                self.kill(server)
            for t in threads:
                t.join(PATIENCE)
            if server.process.returncode is not None:
                server = self.start(*LOCAL)
            for i in r.sample(range(len(PROMPTS)), 4):
                self.assertEqual(self.insist(server, PROMPTS[i])[0], answers[i])
            self.assertEqual(server.metric("disk_cache_works"), 1)
        server.stop()

    def ask_anyway(self, server, prompt):
        """Asks, and takes whatever comes of it."""
        try:
            self.ask(server, prompt)
        except (AssertionError, OSError, EOFError, ValueError):
            pass
        except Exception as e:  # http.client: the server is killed meanwhile
            if type(e).__module__ != "http.client":
                raise

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_keys_keep_their_own(self):
        keys = {who: {"Authorization": f"Bearer key-of-{who}"} for who in ("alice", "bob")}
        flags = [*THREADS, *[flag for who in keys for flag in ("--api-key", f"key-of-{who}")]]
        for again in (False, True):
            with self.start(*flags) as server:
                self.assertEqual(self.ask(server, PROMPTS[0], headers=keys["bob"])[1], HIT if again else 0)
                self.assertEqual(self.ask(server, PROMPTS[1], headers=keys["alice"])[1], HIT if again else 0)
                self.assertEqual(self.ask(server, PROMPTS[0], headers=keys["alice"], max_tokens=1)[1], HIT if again else 0)
                self.assertEqual(self.ask(server, PROMPTS[1], headers=keys["bob"], cache_salt=str(again))[1], 0)
                if again:
                    self.assertEqual(self.ask(server, PROMPTS[2], headers=keys["alice"])[1], 0)
                for prompt in PROMPTS[2:6]:
                    self.ask(server, prompt, headers=keys["bob"])
                self.written(server)


class SessionsOverRanks(Conversations):
    def start(self, *flags, ttl=0):
        return super().start(*THREADS, *flags, ttl=ttl)

    def test_go_on_after_a_kill_and_a_stop(self):
        server = self.start()
        for name, fields in (("full", {}), ("pages", {"retention": CHUNKKV})):
            _, expected, server = self.conversation(server, f"{name}-0", 3, 1, **fields)
            _, killed, server = self.conversation(server, f"{name}-1", 3, 1, self.restart_by_kill, **fields)
            _, stopped, server = self.conversation(server, f"{name}-2", 3, 1, self.restart_by_stop, **fields)
            self.assertEqual((killed, stopped), (expected, expected), name)
        self.assertGreater(server.metric("disk_cache_hits_total"), 0)
        server.stop()


if __name__ == "__main__":
    main()
