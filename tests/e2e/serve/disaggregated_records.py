#!/usr/bin/env python3
"""Disaggregated prefill with a prefill server that lies: what it holds is changed on its way, under
a checksum that is right. The decode server answers every request, and later ones with the tokens of
a server that was never lied to.
usage: disaggregated_records.py OCTAVO [unittest arguments]"""

import contextlib
import json
import random
import socket
import struct
import threading
import unittest

from disaggregated import CHUNKKV, FLAGS, POOL, PROMPT, body, drawn, for_prefill, headers
from harness import Server, eventually, main, tokens

ASK, ANSWER, TAKE = struct.Struct("<8s16sQQ"), struct.Struct("<8sIIQQ"), b"octavo+2"
# engine/handover.c: the numbers that a record begins with.
HEAD = struct.Struct("<5Q8If")
HEAD_FIELDS = ("layout", "identity", "policy", "sampling", "pages_dropped", "n_tokens", "n_tables", "n_cells", "grain",
               "flags", "token", "rank", "n_top", "logprob")
HEAD_BYTES = HEAD.size + 2 * 20 * 4 + 4
MASK = (1 << 64) - 1
K0, K1, K2, K3 = 0x243f6a8885a308d3, 0x13198a2e03707345, 0xa4093822299f31d1, 0x082efa98ec4e6c89


def mix(x):
    x ^= x >> 30
    x = x * 0xbf58476d1ce4e5b9 & MASK
    x ^= x >> 27
    x = x * 0x94d049bb133111eb & MASK
    return x ^ x >> 31


def fold(a, b):
    product = a * b
    return (product ^ product >> 64) & MASK


def checksum(data, seed):
    """base/hash.c's hash_bytes."""
    h, at, left = mix(seed ^ K0), 0, len(data)
    if left > 64:
        lanes = [h, h ^ K1, h ^ K2, h ^ K3]
        while left > 64:
            words = struct.unpack_from("<8Q", data, at)
            lanes = [fold(words[2 * i] ^ k, words[2 * i + 1] ^ lanes[i]) for i, k in enumerate((K0, K1, K2, K3))]
            at, left = at + 64, left - 64
        h = fold(lanes[0] ^ K1, lanes[1] ^ K2) ^ fold(lanes[2] ^ K3, lanes[3] ^ K0)
    while left > 16:
        first, second = struct.unpack_from("<2Q", data, at)
        h, at, left = fold(first ^ K1, second ^ h), at + 16, left - 16
    a = b = 0
    if left >= 8:
        a, b = struct.unpack_from("<Q", data, at)[0], struct.unpack_from("<Q", data, at + left - 8)[0]
    elif left >= 4:
        a, b = struct.unpack_from("<I", data, at)[0], struct.unpack_from("<I", data, at + left - 4)[0]
    elif left:
        a = data[at] << 16 | data[at + left // 2] << 8 | data[at + left - 1]
    return mix(fold(a ^ K2, b ^ h) ^ fold(h ^ K3, len(data) ^ K1))


def read_exactly(connection, n):
    data = bytearray()
    while len(data) < n:
        more = connection.recv(n - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


class Liar:
    """Fetches what it is asked for from a real prefill server, changes it and sends it on."""

    def __init__(self, port):
        self.to, self.change = port, lambda record: None
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection, socket.create_connection(("127.0.0.1", self.to)) as real:
                ask = read_exactly(connection, ASK.size)
                real.sendall(ask)
                magic, outcome, zero, n, hashed = ANSWER.unpack(read_exactly(real, ANSWER.size))
                real.sendall(TAKE)
                record = read_exactly(real, n)
                identity = ASK.unpack(ask)[2]
                assert checksum(record, identity) == hashed
                self.change(record)
                # Bytes of the other end that are not read make a close take the record back.
                with contextlib.suppress(ConnectionError):
                    connection.sendall(ANSWER.pack(magic, outcome, zero, n, checksum(record, identity)))
                    read_exactly(connection, len(TAKE))
                    connection.sendall(record)

    def close(self):
        self.socket.close()


def head_of(record):
    return dict(zip(HEAD_FIELDS, HEAD.unpack_from(record)))


def set_head(record, **fields):
    HEAD.pack_into(record, 0, *{**head_of(record), **fields}.values())


class Lies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefill = Server(*FLAGS, "--kv-transfer-listen", "127.0.0.1:0", model=POOL)
        cls.addClassCleanup(cls.prefill.stop)
        cls.liar = Liar(cls.hand_over(body(tokens(20, 99)))["remote_port"])
        cls.addClassCleanup(cls.liar.close)
        cls.decode = Server(*FLAGS, "--kv-transfer-peers", f"127.0.0.1:{cls.liar.port}", model=POOL)
        cls.addClassCleanup(cls.decode.stop)

    @classmethod
    def hand_over(cls, request):
        return cls.prefill.post("/v1/completions", for_prefill(request), headers=headers())["kv_transfer_params"]

    def lie(self, request, change):
        """Status and answer of the request, whose record is changed on its way."""
        params = {**self.hand_over(request), "remote_port": self.liar.port}
        self.liar.change = change
        return self.decode.request("POST", "/v1/completions", {**request, "kv_transfer_params": params},
                                   {"Content-Type": "application/json", **headers()})

    def lie_and_read(self, request, change):
        status, _, text = self.lie(request, change)
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def tearDown(self):
        """Whatever came, nothing is left of it, and the pages that it had are as good as others."""
        self.decode.idle()
        self.assertEqual(self.decode.metric("kv_transfer_bytes"), 0)
        for seed in (1, 2):
            request = body(tokens(900, seed), CHUNKKV if seed == 2 else None, max_tokens=30)
            expected = self.prefill.post("/v1/completions", request, headers=headers())
            self.assertEqual(drawn(self.decode.post("/v1/completions", request, headers=headers())), drawn(expected))

    def test_the_truth(self):
        request = body(tokens(PROMPT, 5), CHUNKKV)
        answer = self.lie_and_read(request, lambda record: None)
        self.assertEqual(answer["kv_transfer_params"]["note"], "fetched from another server")
        expected = self.prefill.post("/v1/completions", request, headers=headers())
        self.assertEqual(drawn(answer), drawn(expected))

    def test_numbers_that_are_none(self):
        """K and V of NaN and infinity stay the request's own."""
        for seed, value in enumerate((b"\xff\xff\xff\xff", b"\x00\x00\x80\x7f", b"\x80\x7f\x80\x7f", b"\x00\x7c\x00\x7c")):
            for retention in (None, CHUNKKV):
                def change(record, value=value):
                    head = head_of(record)
                    cells = len(record) - head["n_cells"] * self.cell_bytes(record)
                    record[cells:] = value * ((len(record) - cells) // 4)
                request = {**body(tokens(PROMPT + 7, 10 + seed), retention, max_tokens=40), "cache_salt": "lies"}
                status, _, text = self.lie(request, change)
                with self.subTest(value=value, retention=retention):
                    self.assertIn(status, (200, 500), text)
                    self.decode.idle()

    @staticmethod
    def cell_bytes(record):
        """All cells of a record have as many bytes, and tables and tokens before them are few."""
        head, at, words = head_of(record), HEAD_BYTES, 0
        for i in range(head["n_tables"]):
            kept, slot_pages = struct.unpack_from("<2I", record, at + 8 * i)
            words += -(-kept // 16) + min(kept, 16 * slot_pages)
        before = at + 8 * head["n_tables"] + 4 * (head["n_tokens"] + words)
        before = (before + 7) // 8 * 8
        n, rest = divmod(len(record) - before, head["n_cells"])
        assert rest == 0
        return n

    def test_heads(self):
        """Each is refused by name, and the prompt is computed with the tokens of one server."""
        request = body(tokens(PROMPT, 21), CHUNKKV)
        expected = drawn(self.prefill.post("/v1/completions", request, headers=headers()))
        for fields, why in (({"layout": 1}, "this version"), ({"policy": 1}, "another retention"),
                            ({"sampling": 1}, "other sampling"), ({"n_tokens": 0}, "damaged"),
                            ({"n_tables": 0xffffffff}, "damaged"), ({"n_cells": 0xffffffff}, "damaged"),
                            ({"grain": 77}, "damaged"), ({"flags": 0xffffffff}, "damaged"),
                            ({"token": 1 << 31}, "damaged"), ({"rank": 0xffffffff}, "damaged"),
                            ({"n_top": 21}, "damaged"), ({"logprob": float("nan")}, "damaged")):
            answer = self.lie_and_read(request, lambda record: set_head(record, **fields))
            with self.subTest(**fields):
                self.assertIn(why, answer["kv_transfer_params"]["note"])
                self.assertEqual(drawn(answer), expected)

    def test_another_servers_arithmetic(self):
        """A record of another kv_identity is taken, and later prompts find nothing of it in the
        prefix cache."""
        request = body(tokens(PROMPT, 25))
        answer = self.lie_and_read(request, lambda record: set_head(record, identity=1))
        self.assertEqual(answer["kv_transfer_params"]["note"], "fetched from another server")
        expected = self.prefill.post("/v1/completions", request, headers=headers())
        self.assertEqual(drawn(answer), drawn(expected))
        again = self.decode.post("/v1/completions", request, headers=headers())
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(drawn(again), drawn(expected))

    def test_tables_that_no_sequence_has(self):
        request = body(tokens(PROMPT, 23), CHUNKKV)
        expected = drawn(self.prefill.post("/v1/completions", request, headers=headers()))
        for table in (0, -1):
            for row in ((0, 0), (1 << 31, 0), (PROMPT + 1, 0), (17, 1 << 31), (0xffffffff, 0xffffffff)):
                def change(record, table=table, row=row):
                    at = HEAD_BYTES + 8 * (table % head_of(record)["n_tables"])
                    struct.pack_into("<2I", record, at, *row)
                answer = self.lie_and_read(request, change)
                with self.subTest(table=table, row=row):
                    self.assertIn("damaged", answer["kv_transfer_params"]["note"])
                    self.assertEqual(drawn(answer), expected)

    def test_first_tokens_that_the_request_forbids(self):
        for fields in ({"guided_regex": "[ab]{3}x[0-9]+"}, {"allowed_token_ids": [5, 6, 7]}):
            request = body(tokens(60, 33), CHUNKKV, max_tokens=8, **fields)
            expected = drawn(self.prefill.post("/v1/completions", request, headers=headers()))
            for token in (0, 1, 1023):
                answer = self.lie_and_read(request, lambda record, token=token: set_head(record, token=token))
                with self.subTest(token=token, **fields):
                    self.assertIn("none that the request allows", answer["kv_transfer_params"]["note"])
                    self.assertEqual(drawn(answer), expected)
            answer = self.lie_and_read(request, lambda record: None)
            self.assertEqual(answer["kv_transfer_params"]["note"], "fetched from another server")
            self.assertEqual(drawn(answer), expected)

    def test_any_byte(self):
        """Before K and V, where it may be a table, a position or the first token."""
        r = random.Random(7)
        for seed, retention in enumerate((None, CHUNKKV, {"method": "snapkv", "ratio": 0.25, "window": 16}) * 8):
            def change(record):
                before = len(record) - head_of(record)["n_cells"] * self.cell_bytes(record)
                for _ in range(r.randrange(1, 4)):
                    record[r.randrange(before)] ^= 1 << r.randrange(8)
            request = {**body(tokens(60, 40 + seed), retention, max_tokens=30), "cache_salt": "lies"}
            status, _, text = self.lie(request, change)
            with self.subTest(seed=seed):
                self.assertIn(status, (200, 500), text)
        eventually("the server is alive", lambda: self.decode.get("/health")[0] == 200)


if __name__ == "__main__":
    main()
