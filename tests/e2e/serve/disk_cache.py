#!/usr/bin/env python3
"""The prefix cache on disk: a server that was killed finds its blocks again, answers with the same
tokens, and computes again what was damaged, torn, written for another model or cannot be read. A
soak (OCTAVO_SOAK) makes 100 rounds of it. usage: disk_cache.py OCTAVO [unittest arguments]"""

import concurrent.futures
import json
import os
import random
import shutil
import struct
import subprocess
import tempfile
import unittest

from harness import LIGHT, MODEL, OCTAVO, PAGE, PATIENCE, ROOT, Server, eventually, main, need, stubs, tokens

grpc = need("grpc")
octavo, octavo_rpc = stubs("octavo")

ROUNDS = 100 if "OCTAVO_SOAK" in os.environ else 2
PROMPT, ANSWER = 200 if LIGHT else 400, 6
# Tokens that a hit can have: at least one of the prompt is computed.
HIT = (PROMPT - 1) // PAGE * PAGE
PROMPTS = [tokens(PROMPT, seed) for seed in range(8)]
# The pool holds two of the prompts, or four short ones.
FLAGS = ["--max-model-len", "512", "--threads", "1", "--swap-memory", "0"]
POOL = ["--model", MODEL, "--kv-memory", "2M"]


def flip(path, at, mask=1):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)
        f.seek(at)
        f.write(bytes([byte[0] ^ mask]))


class Store(unittest.TestCase):
    """A folder for the cache, and servers over it."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="octavo-disk-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.folder = os.path.join(self.dir, "cache")

    def start(self, *flags, model=POOL):
        return Server(*FLAGS, "--disk-cache", self.folder, "--disk-size", "64M", *flags, model=model)

    def ask(self, server, prompt, headers=None, **fields):
        """(token ids of the answer, tokens of the prompt that came from the cache)"""
        answer = server.post("/v1/completions", {
            "prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0,
            "return_token_ids": True, **fields}, headers=headers)
        return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def written(self, server):
        """Waits until the blocks that left memory are on disk."""
        eventually("blocks are written", lambda: server.metric("disk_cache_blocks_waiting") == 0)
        return server.metric("disk_cache_blocks")

    def fill(self, server):
        """Asks all prompts; the first ones have left memory then. Returns the answers."""
        answers = [self.ask(server, p)[0] for p in PROMPTS]
        self.assertGreater(self.written(server), HIT // PAGE)
        return answers

    @staticmethod
    def kill(server):
        server.process.kill()
        server.wait()

    @staticmethod
    def trouble(server):
        return [e["message"] if "message" in e else str(e) for e in server.events() if "disk" in str(e)]


class DiskCache(Store):
    def test_outlives_a_kill(self):
        server = self.start()
        answers = self.fill(server)
        self.assertEqual(self.ask(server, PROMPTS[0]), (answers[0], HIT))
        self.assertEqual(server.metric("disk_cache_hits_total"), HIT)
        self.assertEqual(self.trouble(server), [])
        self.kill(server)
        with self.start() as server:
            self.assertEqual(self.ask(server, PROMPTS[0]), (answers[0], HIT))
            self.assertEqual(server.metric("disk_cache_hits_total"), HIT)
            # It is in memory now.
            self.assertEqual(self.ask(server, PROMPTS[0]), (answers[0], HIT))
            self.assertEqual(server.metric("disk_cache_hits_total"), HIT)
            self.assertEqual([server.metric("prompt_tokens_cached_by_source_total", source=s) for s in ("disk", "device")],
                             [HIT, HIT])
            # Another salt shares nothing, and has blocks of its own.
            self.assertEqual(self.ask(server, PROMPTS[0], cache_salt="x"), (answers[0], 0))
            # A prompt that has half of its beginning in common takes that half.
            half = PROMPT // 2 // PAGE * PAGE
            self.assertEqual(self.ask(server, PROMPTS[1][:half] + tokens(100, 99))[1], half)
            self.assertEqual(self.trouble(server), [])
            server.idle()

    def test_flush_empties_it(self):
        with self.start() as server:
            answers = self.fill(server)
            with grpc.insecure_channel(server.target) as channel:
                octavo_rpc.InferenceStub(channel).FlushCache(octavo.FlushCacheRequest(), timeout=PATIENCE)
            eventually("the disk is empty", lambda: server.metric("disk_cache_blocks") == 0)
            self.assertEqual(self.ask(server, PROMPTS[0]), (answers[0], 0))

    def test_many_at_once(self):
        """Loads, computes and decodes side by side, some of which are given up."""
        with self.start() as server:
            answers = self.fill(server)
            r = random.Random(5)
            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                for _ in range(3):
                    order = r.sample(range(len(PROMPTS)), len(PROMPTS))
                    got = list(threads.map(lambda i: self.ask(server, PROMPTS[i])[0], order))
                    self.assertEqual(got, [answers[i] for i in order])
                    c = server.connect()
                    c.request("POST", "/v1/completions", '{"prompt": %s}' % PROMPTS[order[0]])
                    c.close()
            self.assertGreater(server.metric("disk_cache_hits_total"), 0)
            self.assertEqual(server.metric("disk_cache_blocks_damaged_total"), 0)
            server.idle()

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_rounds_of_damage(self):
        """Kills, flips bits, tears: each answer has the tokens that were computed first."""
        r = random.Random(7)
        server = self.start()
        answers = self.fill(server)
        n_hits = n_damaged = 0
        for _ in range(ROUNDS):
            for _ in range(r.randrange(3)):  # it dies while blocks are being written
                self.ask(server, PROMPTS[r.randrange(len(PROMPTS))])
            self.kill(server)
            blocks, index = (os.path.join(self.folder, name) for name in ("blocks", "index"))
            for _ in range(r.randrange(4)):
                path = r.choice((blocks, blocks, index))
                if os.path.getsize(path) > 0:
                    flip(path, r.randrange(os.path.getsize(path)), 1 << r.randrange(8))
            if r.randrange(4) == 0:
                path = r.choice((blocks, index))
                os.truncate(path, r.randrange(os.path.getsize(path) + 1))
            server = self.start()
            for i in r.sample(range(len(PROMPTS)), 4):
                ids, cached = self.ask(server, PROMPTS[i])
                self.assertEqual(ids, answers[i])
                n_hits += cached > 0
            n_damaged += server.metric("disk_cache_blocks_damaged_total")
            self.written(server)
        server.stop()
        self.assertGreater(n_hits, 0)

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_bit_flip_is_computed_again(self):
        server = self.start()
        answers = self.fill(server)
        self.kill(server)
        blocks = os.path.join(self.folder, "blocks")
        for at in range(100, os.path.getsize(blocks), 1024):
            flip(blocks, at)
        with self.start() as server:
            for _ in range(2):
                self.assertEqual(self.ask(server, PROMPTS[0])[0], answers[0])
            self.assertEqual(self.ask(server, PROMPTS[1]), (answers[1], 0))
            self.assertEqual(server.metric("disk_cache_hits_total"), 0)
            self.assertGreaterEqual(server.metric("disk_cache_blocks_damaged_total"), 2)
            self.assertEqual(len(self.trouble(server)), 1, self.trouble(server))

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_another_model_starts_empty(self):
        server = self.start()
        self.fill(server)
        server.stop()
        with self.start("--kv-dtype", "int8") as server:
            self.assertEqual(server.metric("disk_cache_blocks"), 0)
            self.assertEqual(self.ask(server, PROMPTS[0])[1], 0)
            self.assertIn("another model", str(self.trouble(server)))

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_changed_weights_start_empty(self):
        """One bit of the embeddings changes, which is in no sample of the tensor."""
        folder = os.path.join(self.dir, "model")
        shutil.copytree(MODEL, folder)
        model = ["--model", folder, *POOL[2:]]
        server = self.start(model=model)
        answers = self.fill(server)
        server.stop()
        with self.start(model=model) as server:
            self.assertEqual(self.ask(server, PROMPTS[0]), (answers[0], HIT))
        path = os.path.join(folder, "model.safetensors")
        with open(path, "rb") as f:
            (n,) = struct.unpack("<Q", f.read(8))
            at, _ = json.loads(f.read(n))["model.embed_tokens.weight"]["data_offsets"]
        flip(path, 8 + n + at + 100)
        with self.start(model=model) as server:
            self.assertEqual(server.metric("disk_cache_blocks"), 0)
            self.assertEqual(self.ask(server, PROMPTS[0])[1], 0)
            self.assertIn("another model", str(self.trouble(server)))

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_keys_over_a_restart(self):
        """No key hits what was asked by another key, without a key, or by keys that share."""
        a, b = ("--api-key", "alice-key"), ("--api-key", "bob-key")
        steps = [ # flags of a server, who asks, and whether blocks are there at its start
            ((), None, False), (a, "alice-key", False), (b, "bob-key", True),
            ((*a, *b), "bob-key", True), ((*b, "--share-prefixes"), "bob-key", False),
            ((*a, "--share-prefixes"), "alice-key", True), (b, "bob-key", False), ((), None, False)]
        hits = []
        for flags, key, has_blocks in steps:
            headers = {"Authorization": f"Bearer {key}"} if key else None
            with self.subTest(flags=flags), self.start(*flags) as server:
                self.assertEqual(server.metric("disk_cache_blocks") > 0, has_blocks)
                hits.append(self.ask(server, PROMPTS[0], headers=headers)[1])
                for prompt in PROMPTS[1:4]:  # they take its pages
                    self.ask(server, prompt, headers=headers)
                self.assertGreaterEqual(self.written(server), HIT // PAGE)
        self.assertEqual(hits, [0, 0, 0, HIT, 0, HIT, 0, 0])

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_without_its_files(self):
        with self.start() as server:
            answers = self.fill(server)
            shutil.rmtree(self.folder)
            for i in (0, 1, 2, 3, 0):
                self.assertEqual(self.ask(server, PROMPTS[i])[0], answers[i])
            for prompt in (tokens(PROMPT, 100), tokens(PROMPT, 101), tokens(PROMPT, 102)):
                self.ask(server, prompt)
            eventually("it is off", lambda: server.metric("disk_cache_works") == 0)
            self.assertEqual(self.ask(server, PROMPTS[0])[0], answers[0])
            self.assertEqual(len(self.trouble(server)), 1, self.trouble(server))
        self.folder = "/proc/octavo-cache"
        with self.start() as server:
            self.assertEqual(self.ask(server, PROMPTS[0])[0], answers[0])
            self.assertIn("goes on without disk", str(self.trouble(server)))

    def refusal(self, *flags):
        p = subprocess.run([OCTAVO, "serve", *POOL, *FLAGS, "--disk-cache", self.folder, "--http",
                            "127.0.0.1:0", "--grpc", "none", *flags], capture_output=True, cwd=ROOT,
                           timeout=PATIENCE)
        self.assertEqual(p.returncode, 1, p.stderr)
        return p.stderr.decode()

    @unittest.skipIf(LIGHT, "about files, not threads")
    def test_refusals(self):
        for flags in (["--kv-dtype", "int4"], ["--no-prefix-cache"], ["--disk-size", "1M"]):
            with self.subTest(flags=flags):
                self.assertIn("--disk-cache: ", self.refusal(*flags, *BIG if "1M" in flags else []))
        self.assertIn("--disk-cache: cannot go with --kv-disk",
                      self.refusal("--kv-disk", os.path.dirname(self.folder), "--kv-disk-size", "4M"))
        with self.start():
            self.assertIn("another process uses this directory", self.refusal())


BIG = ["--load-format", "dummy", "--override", "num_hidden_layers=512", "--kv-memory", "64M"]

if __name__ == "__main__":
    main()
