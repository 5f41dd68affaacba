#!/usr/bin/env python3
"""NVIDIA Dynamo's KV indexer and its service that selects a worker, on the KV events of live
servers: what they believe to be cached is what the servers hit. usage: gateway_dynamo.py OCTAVO
[unittest arguments]"""

import json
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from harness import MODEL, PAGE, PATIENCE, HeldPort, Server, eventually, main, need, tokens

need("dynamo.llm", venv="dynamo")
grpc = need("grpc", venv="dynamo")

PAGES_OF_A_BLOCK = 16  # the demo model's layers times its KV heads
PROMPT = 5 * PAGE + 3


class Service:
    """A service of Dynamo's by its module, in a folder of its own. It has no flag for its host."""

    def __init__(self, module):
        self.held = HeldPort()
        self.folder = tempfile.TemporaryDirectory()
        with open(f"{self.folder.name}/log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "--port", str(self.held.number), "--threads", "2"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder.name)

    def stop(self):
        self.process.kill()
        self.process.wait(PATIENCE)
        self.folder.cleanup()
        self.held.close()

    def ask(self, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.held.number}{path}",
                                         None if body is None else json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or b"null")

    def ready(self, path):
        if self.process.poll() is not None:
            with open(f"{self.folder.name}/log", encoding="utf-8", errors="replace") as f:
                raise AssertionError(f"Dynamo: exit {self.process.returncode}\n{f.read()[-20000:]}")
        try:
            return self.ask(path) is not None
        except OSError:
            return False


class Replica(Server):
    def __init__(self, number, folder, *flags):
        self.number, self.nudges, self.nudged = number, 0, 0
        self.events, self.replay = (f"ipc://{folder}/{name}{number}" for name in ("events", "replay"))
        config = {"enable_kv_cache_events": True, "endpoint": self.events, "replay_endpoint": self.replay,
                  "topic": f"kv@10.0.0.{number}@demo"}
        super().__init__("--kv-events-config", json.dumps(config), *flags, model=["--model", MODEL, "--kv-memory", "4M"])

    def complete(self, prompt, **fields):
        """Cached tokens of the prompt."""
        answer = self.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **fields})
        return (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    def nudge(self):
        """Makes an event now and then. What comes before a reader's connection stands is lost to
        it; it asks again when the next event shows that."""
        if time.monotonic() > self.nudged + 1:
            self.complete(tokens(PAGE, 9000 + self.nudges))
            self.nudges, self.nudged = self.nudges + 1, time.monotonic()

    def cached_blocks(self):
        return self.metric("kv_pages_cached") / PAGES_OF_A_BLOCK


class Dynamo(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def replica(self, number=1, *flags):
        replica = Replica(number, self.folder, *flags)
        self.addCleanup(replica.stop)
        return replica

    def service(self, module, path):
        service = Service(module)
        self.addCleanup(service.stop)
        eventually("Dynamo listens", lambda: service.ready(path))
        return service

    def indexer_of(self, replica):
        indexer = self.service("dynamo.indexer", "/workers")
        indexer.ask("/register", {"instance_id": replica.number, "endpoint": replica.events, "model_name": "demo",
                                  "replay_endpoint": replica.replay, "block_size": PAGE})
        return indexer

    def matched(self, indexer, prompt):
        """Tokens of the prompt that the server has, as Dynamo believes."""
        scores = indexer.ask("/query", {"token_ids": prompt, "model_name": "demo"})["scores"]
        return sum(tokens for ranks in scores.values() for tokens in ranks.values())

    def blocks(self, indexer):
        """The blocks of Dynamo's tree, which has each once."""
        dump = indexer.ask("/dump")
        hashes = [block["block_hash"] for events in dump.values() for event in events["events"]
                  for block in event["event"]["data"].get("stored", {}).get("blocks", [])]
        self.assertEqual(len(hashes), len(set(hashes)))
        return len(hashes)

    def follows(self, indexer, replica):
        """Waits until the tree has as many blocks as the server's cache."""
        eventually("Dynamo has the server's blocks", lambda: self.blocks(indexer) == replica.cached_blocks())

    def connects(self, indexer, replica):
        eventually("Dynamo reads events", lambda: self.blocks(indexer) or replica.nudge())
        self.follows(indexer, replica)

    def test_the_tree_is_the_cache(self):
        """From the first event on, though the indexer comes later, through evictions, until all is
        forgotten."""
        replica = self.replica()
        prompts = [tokens(3 * PAGE, i // 4) + tokens(PROMPT - 3 * PAGE, i) for i in range(80)]
        for prompt in prompts[:4]:
            replica.complete(prompt)
        indexer = self.indexer_of(replica)
        self.connects(indexer, replica)
        self.assertEqual([self.matched(indexer, p) for p in prompts[:5]], [5 * PAGE] * 4 + [0])
        for prompt in prompts[4:]:
            replica.complete(prompt)
        self.follows(indexer, replica)
        found = []
        for prompt in reversed(prompts):
            found.append(self.matched(indexer, prompt))
            self.assertEqual(replica.complete(prompt), found[-1])
            self.follows(indexer, replica)
        self.assertIn(0, found)         # it was evicted
        self.assertIn(5 * PAGE, found)
        with grpc.insecure_channel(replica.target) as channel:
            channel.unary_unary("/vllm.grpc.engine.VllmEngine/FlushCache")(b"", timeout=PATIENCE)
        eventually("Dynamo has forgotten all", lambda: self.blocks(indexer) == 0)
        self.assertEqual(replica.complete(prompts[-1]), 0)
        self.follows(indexer, replica)
        self.assertEqual(self.matched(indexer, prompts[-1]), 5 * PAGE)

    def test_private_blocks_are_not_told(self):
        """Those of a salt or a session, whose removals concern blocks that Dynamo never saw."""
        replica = self.replica()
        indexer = self.indexer_of(replica)
        self.connects(indexer, replica)
        before = self.blocks(indexer)
        prompt = tokens(PROMPT, 1)
        replica.complete(prompt, cache_salt="mine")
        replica.complete(tokens(PROMPT, 2), session="mine")
        replica.complete(prompt)
        eventually("the public blocks came", lambda: self.blocks(indexer) == before + 5)
        self.assertEqual(self.matched(indexer, prompt), 5 * PAGE)
        self.assertEqual(self.matched(indexer, tokens(PROMPT, 2)), 0)
        self.assertEqual(replica.complete(prompt, cache_salt="mine"), 5 * PAGE)
        for seed in range(60):  # all of it is evicted
            replica.complete(tokens(20 * PAGE, 100 + seed))
        self.follows(indexer, replica)
        self.assertEqual(self.matched(indexer, prompt), 0)

    def test_the_replica_with_the_prefix_is_selected(self):
        replicas = [self.replica(number) for number in (1, 2)]
        selector = self.service("dynamo.select_service", "/workers")
        for replica in replicas:
            selector.ask("/workers", {"worker_id": replica.number, "endpoint": replica.url, "model_name": "demo",
                                      "kv_events_endpoint": replica.events, "replay_endpoint": replica.replay,
                                      "block_size": PAGE})
        prompts = [tokens(PROMPT, seed) for seed in range(8)]
        where = {seed: replicas[seed % 3 == 0] for seed in range(8)}
        for seed, prompt in enumerate(prompts):
            where[seed].complete(prompt)
        for seed, prompt in enumerate(prompts):
            longer = prompt + tokens(2 * PAGE, 50 + seed)
            eventually("Dynamo has the prompt", lambda: self.select(selector, longer)["overlap"][
                "longest_matched"] == 5 * PAGE or where[seed].nudge())
            chosen = self.select(selector, longer)
            self.assertEqual(chosen["endpoint"], where[seed].url)
            self.assertEqual(chosen["overlap"]["longest_matched"], where[seed].complete(longer))

    def select(self, selector, prompt):
        return selector.ask("/select", {"token_ids": prompt, "model_name": "demo"})


if __name__ == "__main__":
    main()
