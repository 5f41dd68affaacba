#!/usr/bin/env python3
"""KV events over ZeroMQ, decoded as the readers of vLLM's declare them, beside the same events over
gRPC. usage: kv_events.py OCTAVO [unittest arguments]"""

import json
import os
import subprocess
import tempfile
import unittest

from harness import OCTAVO, PAGE, PATIENCE, POOL, Server, eventually, main, need, tokens

zmq = need("zmq")
msgspec = need("msgspec")


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class Event(msgspec.Struct, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(Event):
    block_hashes: list[int | bytes]
    medium: str | None


class AllBlocksCleared(Event):
    pass


class Batches(Batch, array_like=True):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


decoder = msgspec.msgpack.Decoder(Batches)


class Reader:
    """A SUB socket that checks each message's frames."""

    def __init__(self, topic=""):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.numbers, self.events, self.topics = [], [], set()

    def read(self, wait_ms=50):
        """Takes what has come."""
        while self.socket.poll(wait_ms):
            topic, number, payload = self.socket.recv_multipart()
            self.topics.add(topic.decode())
            self.numbers.append(int.from_bytes(number, "big"))
            self.events += decoder.decode(payload).events
        return self.events

    def close(self):
        self.socket.close()


def config(**fields):
    return json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", **fields})


def chain(events):
    """Hashes of the stored blocks, which must follow each other as parents and children."""
    stored = [e for e in events if isinstance(e, BlockStored)]
    for before, after in zip([None] + [e.block_hashes[0] for e in stored], stored):
        assert after.parent_block_hash == before, (after.parent_block_hash, before)
    return [e.block_hashes[0] for e in stored]


class Events(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.ipc = [f"ipc://{folder.name}/{name}" for name in ("events", "replay")]

    def test_a_listening_router(self):
        """The router's socket listens, as llm-d's does, and the server connects to it."""
        reader = Reader("kv@")
        port = reader.socket.bind_to_random_port("tcp://127.0.0.1")
        flags = ["--kv-events-config", config(endpoint=f"tcp://127.0.0.1:{port}", topic="kv@10.0.0.7@demo")]
        prompt = tokens(5 * PAGE + 3, 1)
        with Server(*flags) as server:
            # Events before the connection stands are lost to a reader that asks for no replay.
            eventually("a first event", lambda: server.post(
                "/v1/completions", {"prompt": tokens(PAGE, len(reader.numbers) + os.getpid()),
                                    "max_tokens": 1}) and reader.read())
            reader.read()
            reader.events.clear()
            server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
            eventually("five blocks", lambda: len(chain(reader.read())) >= 5)
            stored = [e for e in reader.events if isinstance(e, BlockStored)]
            self.assertEqual([t for e in stored for t in e.token_ids], prompt[:5 * PAGE])
            self.assertEqual({e.block_size for e in stored}, {PAGE})
            self.assertEqual(reader.topics, {"kv@10.0.0.7@demo"})
            # A salt keeps the tokens private: the message has its number and no event.
            before = len(reader.numbers)
            server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "cache_salt": "mine"})
            eventually("five more messages", lambda: reader.read() and len(reader.numbers) >= before + 5)
            self.assertEqual(len(reader.events), 5)
            self.assertEqual(reader.numbers, list(range(reader.numbers[0], reader.numbers[0] + len(reader.numbers))))
        reader.close()

    def test_replays(self):
        """All events from the first one, for a reader that came later."""
        prompt = tokens(7 * PAGE + 1, 2)
        with Server("--kv-events-config", config(endpoint=self.ipc[0], replay_endpoint=self.ipc[1],
                                                 topic="kv@10.0.0.7@demo")) as server:
            server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
            socket = zmq.Context.instance().socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self.ipc[1])

            def replay():
                socket.send_multipart([b"", (0).to_bytes(8, "big")])
                events = []
                while socket.poll(PATIENCE * 1000):
                    _, topic, number, payload = socket.recv_multipart()
                    if not payload:
                        self.assertEqual((topic, int.from_bytes(number, "big", signed=True)), (b"", -1))
                        return events
                    self.assertEqual(topic, b"kv@10.0.0.7@demo")
                    events += decoder.decode(payload).events
                return None

            events = eventually("seven blocks", lambda: (e := replay()) and len(chain(e)) == 7 and e)
            self.assertEqual([t for e in events for t in e.token_ids], prompt[:7 * PAGE])
            socket.close()

    def refused(self, *flags):
        process = subprocess.run([OCTAVO, "serve", *POOL, "--http", "127.0.0.1:0", "--grpc", "none", *flags],
                                 capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(process.returncode, 1, process.stderr)
        return process.stderr

    def test_refusals(self):
        """A server with keys shows its prompts to no other machine; mistakes are named before the
        model is loaded."""
        wide = config(endpoint="tcp://*:0")
        self.assertIn("would show the requests of all API keys",
                      self.refused("--api-key", "k", "--kv-events-config", wide))
        self.assertIn("replay_endpoint", self.refused(
            "--api-key", "k", "--kv-events-config", config(endpoint=self.ipc[0], replay_endpoint="tcp://0.0.0.0:9")))
        self.assertIn("kv-events-config.topics: is unknown", self.refused("--kv-events-config", config(topics="x")))
        self.assertIn("kv-events-config: line 1", self.refused("--kv-events-config", "yes"))
        self.assertIn("cannot listen on ipc:///nowhere/at/all",
                      self.refused("--kv-events-config", config(endpoint="ipc:///nowhere/at/all")))


if __name__ == "__main__":
    main()
