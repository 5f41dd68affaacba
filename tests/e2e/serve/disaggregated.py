#!/usr/bin/env python3
"""Disaggregated prefill: a server computes prompts, another goes on from what is kept of them, and
the servers are asked as vLLM's proxy asks them. The answers are those of one server, the bytes on
the wire those of the kept pages; whatever goes wrong, the prompt is computed at the second server.
usage: disaggregated.py OCTAVO [unittest arguments]"""

import concurrent.futures
import contextlib
import json
import socket
import struct
import threading
import unittest

from harness import LIGHT, LONG, MODEL, PAGE, SLOW, SLOW_LAYERS, Server, eventually, main, sse, tokens

PROMPT, ANSWER = 200, 12
FETCHES_OF_A_PEER = 4
KEYS = {"alice": "key-of-alice", "bob": "key-of-bob"}
POOL = ["--model", MODEL, "--kv-memory", "4M"]
API_KEYS = [flag for key in KEYS.values() for flag in ("--api-key", key)]
FLAGS = ["--max-model-len", "1024", "--threads", "1", *API_KEYS]
HANDS_OVER = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
              "remote_block_ids": None, "remote_host": None, "remote_port": None}
CHUNKKV = {"method": "chunkkv", "ratio": 0.1, "window": 16}
SNAPKV = {"method": "snapkv", "ratio": 0.25, "window": 16}
METHODS = ["full", "truncate", "streaming", "h2o", "tova", "snapkv", "pyramidkv", "adakv", "criticalkv", "chunkkv",
           "chunkkv-reuse", "scope-slide", "snapkv-decode", "streaming-recurrent", "tova-recurrent", "infinipot",
           "keydiff", "knorm", "expected-attention", "paged-eviction"]
# The ways to hand over, and why a method is not: for sanitizers, which learn nothing from the rest.
FEW_METHODS = ["full", "streaming", "h2o", "snapkv", "pyramidkv", "adakv", "chunkkv", "infinipot", "knorm"]
# Fields of methods that have no ratio of the whole.
FIELDS = {"full": {}, "scope-slide": {"prefill": {"method": "h2o", "tokens": 80, "window": 8},
                                      "decode": {"beta1": 4, "beta2": 4}}}
WAYS = {"full": None, "chunkkv": CHUNKKV, "snapkv": SNAPKV}


def headers(who="alice"):
    return {"Authorization": f"Bearer {KEYS[who]}"}


def body(prompt, retention=None, **fields):
    return {"prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0, "logprobs": 3,
            "return_token_ids": True, **({"retention": retention} if retention else {}), **fields}


def send(client, request):
    """Over a connection that the caller closes before the answer has ended."""
    text = json.dumps(request)
    client.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
                    f"Authorization: Bearer {KEYS['alice']}\r\nContent-Length: {len(text)}\r\n\r\n{text}").encode())


def for_prefill(request):
    """What vLLM's toy proxy makes of a request for the prefill server."""
    sent = {**request, "kv_transfer_params": HANDS_OVER, "stream": False, "max_tokens": 1}
    if "max_completion_tokens" in sent:
        sent["max_completion_tokens"] = 1
    for name in ("stream_options", "min_tokens"):
        sent.pop(name, None)
    return sent


class Pair:
    """A prefill and a decode server, and the proxy's way of asking them."""

    def __init__(self, prefill=(), decode=(), model=POOL, flags=FLAGS):
        self.prefill = Server(*flags, "--kv-transfer-listen", "127.0.0.1:0", *prefill, model=model)
        self.port = self.hand_over(body(tokens(20, 99)))["remote_port"]
        self.decode = Server(*flags, "--kv-transfer-peers", f"127.0.0.1:{self.port}", *decode, model=model)

    def stop(self):
        self.prefill.stop()
        self.decode.stop()

    def hand_over(self, request, who="alice", path="/v1/completions"):
        return self.prefill.post(path, for_prefill(request), headers=headers(who))["kv_transfer_params"]

    def take_over(self, request, params, who="alice", path="/v1/completions"):
        return self.decode.post(path, {**request, "kv_transfer_params": params}, headers=headers(who))

    def ask(self, request, who="alice", path="/v1/completions"):
        return self.take_over(request, self.hand_over(request, who, path), who, path)

    def alone(self, request, path="/v1/completions"):
        return self.prefill.post(path, request, headers=headers())


def drawn(answer):
    """What must be equal: tokens, text, logprobs and the end."""
    choice = answer["choices"][0]
    return (choice.get("token_ids"), choice.get("text"), choice.get("message"), choice["logprobs"],
            choice["finish_reason"])


def agreed(answer, expected):
    """The number of tokens with which both answers begin. They may part where rounding can exchange
    tokens, because the two likeliest lie close together, and nowhere else."""
    ours, theirs = drawn(answer)[0], drawn(expected)[0]
    tops = expected["choices"][0]["logprobs"]["top_logprobs"]
    for i, token in enumerate(theirs):
        if ours[i:i + 1] != [token]:
            best, second, *_ = sorted(tops[i].values(), reverse=True)
            assert best - second < 0.05, f"token {i}: {ours} are not {theirs}"
            return i
    return len(theirs)


class Disaggregated(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pair = Pair()
        cls.addClassCleanup(cls.pair.stop)

    def assert_taken(self, answer):
        params = answer["kv_transfer_params"]
        self.assertEqual(params["note"], "fetched from another server")
        return params["bytes"]

    def assert_computed(self, answer, why):
        note = answer["kv_transfer_params"]["note"]
        self.assertTrue(note.startswith("computed here: "), note)
        self.assertIn(why, note)

    def test_answers_are_those_of_one_server(self):
        for seed, (name, retention) in enumerate(WAYS.items()):
            for sampling in ({}, {"temperature": 0.9, "seed": 7, "top_p": 0.9, "presence_penalty": 0.5}):
                request = body(tokens(PROMPT + 3 * seed, seed), retention, **sampling)
                expected = self.pair.alone(request)
                answer = self.pair.ask(request)
                with self.subTest(name, **sampling):
                    self.assert_taken(answer)
                    self.assertEqual(drawn(answer), drawn(expected))
                    self.assertEqual(answer["usage"]["completion_tokens"], ANSWER)
                    self.assertEqual(answer["usage"]["prompt_tokens"], PROMPT + 3 * seed)
                    for field in ("kept_tokens", "logical_tokens", "pages_dropped"):
                        self.assertEqual(answer["choices"][0].get("retention", {}).get(field),
                                         expected["choices"][0].get("retention", {}).get(field), field)

    def test_streams(self):
        request = body(tokens(PROMPT, 11), CHUNKKV)
        expected = self.pair.alone(request)["choices"][0]["token_ids"]
        params = self.pair.hand_over({**request, "stream": True, "stream_options": {"include_usage": True}})
        streamed = {**request, "stream": True, "kv_transfer_params": params}
        frames = sse(self.pair.decode.request("POST", "/v1/completions", streamed, headers())[2])
        ids = [i for f in frames for c in f["choices"] for i in c["token_ids"]]
        self.assertEqual(ids, expected)
        self.assertEqual(frames[-1]["kv_transfer_params"]["note"], "fetched from another server")

    def test_chat(self):
        request = {"messages": [{"role": "user", "content": "O Romeo, " * 20}], "max_completion_tokens": 8,
                   "temperature": 0, "logprobs": True, "top_logprobs": 2}
        expected = self.pair.alone(request, "/v1/chat/completions")
        answer = self.pair.ask(request, path="/v1/chat/completions")
        self.assert_taken(answer)
        self.assertEqual(drawn(answer), drawn(expected))

    def test_bytes_are_those_of_the_kept_pages(self):
        """With a tenth kept about a tenth of the bytes goes over the wire."""
        sent = {}
        for name, retention in (("full", None), ("chunkkv", CHUNKKV)):
            before = self.pair.decode.metric("kv_transfer_fetched_bytes_total")
            answer = self.pair.ask(body(tokens(800, 21), retention))
            sent[name] = self.pair.decode.metric("kv_transfer_fetched_bytes_total") - before
            self.assertLessEqual(abs(sent[name] - self.assert_taken(answer)), 64)
        page_bytes = (sent["full"] - 4 * 800) / -(-800 // PAGE)
        kept = -(-80 // PAGE) + 1
        self.assertLessEqual(sent["chunkkv"], 1.1 * kept * page_bytes + 4 * 800)
        self.assertLess(sent["chunkkv"], 0.16 * sent["full"])

    def test_a_first_token_that_ends_the_answer(self):
        prompt = tokens(PROMPT, 31)
        first = self.pair.alone(body(prompt))["choices"][0]["token_ids"][0]
        request = body(prompt, stop_token_ids=[first])
        expected, answer = self.pair.alone(request), self.pair.ask(request)
        self.assert_taken(answer)
        self.assertEqual(drawn(answer), drawn(expected))
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")

    def test_forms_of_the_answer(self):
        request = body(tokens(60, 33), CHUNKKV, guided_regex="[ab]{3}x[0-9]+", max_tokens=8)
        del request["logprobs"]
        answer = self.pair.ask(request)
        self.assert_taken(answer)
        self.assertEqual(answer["choices"][0]["text"], self.pair.alone(request)["choices"][0]["text"])

    def test_min_tokens_which_the_proxy_leaves_out(self):
        """A greedy draw of another token is the same; a seeded one may not be."""
        request = body(tokens(PROMPT, 35), CHUNKKV, min_tokens=4, ignore_eos=False)
        answer = self.pair.ask(request)
        self.assert_taken(answer)
        self.assertEqual(drawn(answer), drawn(self.pair.alone(request)))
        seeded = {**request, "temperature": 1, "seed": 5}
        answer = self.pair.ask(seeded)
        self.assert_computed(answer, "other sampling parameters")
        self.assertEqual(drawn(answer), drawn(self.pair.alone(seeded)))

    def test_min_tokens_beside_allowed_tokens(self):
        """Logprobs are those of the allowed tokens without the one that min_tokens forbids."""
        request = body(tokens(PROMPT, 35), CHUNKKV, allowed_token_ids=[5, 6, 7], ignore_eos=False)
        first = self.pair.alone(request)["choices"][0]["token_ids"][0]
        request |= {"min_tokens": 4, "stop_token_ids": [5 if first != 5 else 6]}
        answer = self.pair.ask(request)
        self.assert_computed(answer, "other sampling parameters")
        self.assertEqual(drawn(answer), drawn(self.pair.alone(request)))
        del request["logprobs"]
        answer = self.pair.ask(request)
        self.assert_taken(answer)
        self.assertEqual(answer["choices"][0]["token_ids"], self.pair.alone(request)["choices"][0]["token_ids"])

    def test_other_requests_compute(self):
        """A record is of one prompt, policy and sampling; each mismatch is told by name."""
        request = body(tokens(PROMPT, 41), CHUNKKV)
        for other, why in (({"prompt": tokens(PROMPT, 42)}, "another prompt"),
                           ({"retention": {**CHUNKKV, "ratio": 0.2}}, "another retention"),
                           ({"temperature": 0.5, "seed": 1}, "other sampling parameters"),
                           ({"logprobs": 2}, "other sampling parameters"),
                           ({"cache_salt": "s"}, "does not hold")):
            params = self.pair.hand_over(request)
            answer = self.pair.take_over({**request, **other}, params)
            with self.subTest(why):
                self.assert_computed(answer, why)
                self.assertEqual(drawn(answer), drawn(self.pair.alone({**request, **other})))

    def test_is_fetched_once_and_by_its_key_alone(self):
        request = body(tokens(PROMPT, 51), CHUNKKV)
        params = self.pair.hand_over(request)
        self.assert_computed(self.pair.take_over(request, params, "bob"), "does not hold")
        self.assert_taken(self.pair.take_over(request, params))
        self.assert_computed(self.pair.take_over(request, params), "does not hold")
        self.assert_computed(self.pair.take_over(request, {**params, "remote_request_id": "0" * 32}), "does not hold")

    def test_methods_that_keep_more_than_pages(self):
        for retention, why in (({"method": "h2o", "ratio": 0.5}, "running scores"),):
            request = body(tokens(PROMPT, 55), retention)
            params = self.pair.hand_over(request)
            self.assertEqual((params["do_remote_prefill"], params["bytes"]), (False, 0))
            self.assertIn(why, params["note"])
            answer = self.pair.take_over(request, params)
            self.assertNotIn("kv_transfer_params", answer)
            self.assertEqual(drawn(answer), drawn(self.pair.alone(request)))

    def test_several_choices(self):
        """Are computed at the decode server: routers send the client's n to both."""
        request = body(tokens(PROMPT, 56), CHUNKKV, n=2, temperature=0.9, seed=3)
        params = self.pair.hand_over(request)
        self.assertEqual((params["do_remote_prefill"], params["bytes"]), (False, 0))
        self.assertEqual(params["note"], "not held: n is above 1")
        expected = self.pair.alone(request)["choices"]
        for given in (params, self.pair.hand_over({**request, "n": 1})):
            answer = self.pair.take_over(request, given)
            self.assertEqual([c["token_ids"] for c in answer["choices"]], [c["token_ids"] for c in expected])
        self.assert_computed(answer, "n is above 1")

    def test_every_method(self):
        """Is handed over with the answer of one server, or refused by name."""
        handed = set()
        for seed, method in enumerate(FEW_METHODS if LIGHT else METHODS):
            request = body(tokens(PROMPT, 900 + seed), {"method": method, **FIELDS.get(method, {"ratio": 0.4})},
                           max_tokens=24)
            with self.subTest(method):
                params = self.pair.hand_over(request)
                expected, answer = self.pair.alone(request), self.pair.take_over(request, params)
                self.assertEqual(drawn(answer), drawn(expected))
                if params["do_remote_prefill"]:
                    handed.add(method)
                    self.assert_taken(answer)
                else:
                    self.assertRegex(params["note"], "^not held: (keeps|measures|divides|reads) ")
        self.assertLessEqual({"full", "streaming", "snapkv", "chunkkv", "pyramidkv", "adakv", "knorm"}, handed)

    def test_pages_of_a_whole_prompt_are_a_prefix(self):
        """Where nothing was dropped, later prompts hit the pages that came."""
        prompt = tokens(PROMPT, 61)
        self.assert_taken(self.pair.ask(body(prompt)))
        again = self.pair.decode.post("/v1/completions", body(prompt), headers=headers())
        self.assertGreaterEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], PROMPT // PAGE * PAGE)
        dropped = tokens(PROMPT, 62)
        self.assert_taken(self.pair.ask(body(dropped, CHUNKKV)))
        again = self.pair.decode.post("/v1/completions", body(dropped), headers=headers())
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_refused_by_name(self):
        request = body(tokens(20, 71))
        takes = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": self.pair.port,
                 "remote_request_id": "0" * 32}
        rows = [
            (self.pair.prefill, {"kv_transfer_params": HANDS_OVER}, "max_tokens must be 1"),
            (self.pair.prefill, {"kv_transfer_params": HANDS_OVER, "max_tokens": 1, "stream": True}, "stream"),
            (self.pair.prefill, {"kv_transfer_params": HANDS_OVER, "max_tokens": 1, "session": "s"}, "session"),
            (self.pair.prefill, {"kv_transfer_params": HANDS_OVER, "max_tokens": 1, "prompt": ["a", "b"]}, "one prompt"),
            (self.pair.prefill, {"kv_transfer_params": takes}, "--kv-transfer-peers"),
            (self.pair.decode, {"kv_transfer_params": HANDS_OVER, "max_tokens": 1}, "--kv-transfer-listen"),
            (self.pair.decode, {"kv_transfer_params": {**takes, "remote_port": 1}}, "127.0.0.1:1 "),
            (self.pair.decode, {"kv_transfer_params": {**takes, "remote_host": "example.org"}}, "example.org"),
            (self.pair.decode, {"kv_transfer_params": {**takes, "remote_host": ""}}, "remote_host"),
            (self.pair.decode, {"kv_transfer_params": {**takes, "remote_port": 70000}}, "remote_port"),
            (self.pair.decode, {"kv_transfer_params": {**takes, "remote_request_id": "x"}}, "remote_request_id"),
            (self.pair.decode, {"kv_transfer_params": {"do_remote_prefill": 1}}, "true or false"),
            (self.pair.decode, {"kv_transfer_params": {**takes, "do_remote_decode": True}}, "exclude"),
        ]
        for server, fields, why in rows:
            with self.subTest(why):
                message = server.post("/v1/completions", {**request, **fields}, status=400, headers=headers())
                self.assertIn(why, message["error"]["message"])

    def test_no_leak(self):
        """After all of it no page, record or room is left behind."""
        for seed in range(4):
            self.pair.ask(body(tokens(PROMPT, 80 + seed), list(WAYS.values())[seed % 3]))
        for server in (self.pair.prefill, self.pair.decode):
            server.idle()
        self.assertEqual(self.pair.decode.metric("kv_transfer_bytes"), 0)


class Trouble(unittest.TestCase):
    """Peers that break, stall or are of another kind."""

    def ask_both(self, pair, request, why):
        expected = pair.alone(request)
        answer = pair.ask(request)
        note = answer["kv_transfer_params"]["note"]
        self.assertIn(why, note)
        self.assertEqual(drawn(answer), drawn(expected))

    def pair(self, **flags):
        pair = Pair(**flags)
        self.addCleanup(pair.stop)
        return pair

    def test_other_pages(self):
        pair = self.pair(decode=["--page-tokens", "32"])
        self.ask_both(pair, body(tokens(PROMPT, 1)), "computed here")

    def test_other_kv(self):
        pair = self.pair(decode=["--kv-dtype", "int8"])
        params = pair.hand_over(body(tokens(PROMPT, 1)))
        answer = pair.take_over(body(tokens(PROMPT, 1)), params)
        self.assertIn("another model or --precision, or stores K and V in another way", answer["kv_transfer_params"]["note"])

    def test_no_room(self):
        """At the prefill server, and at the decode server."""
        pair = self.pair(prefill=["--kv-transfer-memory", "1M"], decode=["--kv-transfer-memory", "1M"])
        request = body(tokens(900, 1))
        params = pair.hand_over(request)
        if params["do_remote_prefill"]:  # a small model: hold more
            for seed in range(2, 40):
                params = pair.hand_over(body(tokens(900, seed)))
                if not params["do_remote_prefill"]:
                    break
        self.assertIn("no room", params["note"])
        self.assertGreaterEqual(pair.prefill.metric("kv_transfer_not_held_total"), 1)

    def test_a_full_pool(self):
        """What was fetched waits for pages beside requests that have them; then it goes on, or is
        computed where it was preempted, with the tokens of one server."""
        pair, answers = self.pair(), 40
        requests = [body(tokens(600, 200 + seed), max_tokens=answers) for seed in range(6)]
        expected = [drawn(pair.alone(request)) for request in requests]
        params = [pair.hand_over(request) for request in requests]
        pages = pair.decode.metric("kv_pages")
        pair.decode.post("/v1/completions", requests[0], headers=headers())
        each = pair.decode.metric("kv_pages_used") + pair.decode.metric("kv_pages_cached")
        self.assertGreater(len(requests) * each, 1.5 * pages)
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as clients:
            got = list(clients.map(pair.take_over, requests, params))
        self.assertEqual([drawn(answer) for answer in got], expected)
        for answer in got:
            self.assertEqual(answer["kv_transfer_params"]["note"], "fetched from another server")
        pair.decode.idle()
        self.assertEqual(pair.decode.metric("kv_transfer_bytes"), 0)

    def test_room_is_shared_among_keys(self):
        """A key that fills the room keeps no other key's prompts out."""
        pair = self.pair(prefill=["--kv-transfer-memory", "1M"])
        mine = [pair.hand_over(body(tokens(100, seed))) for seed in range(12)]
        self.assertIn("no room", mine[-1]["note"])
        request = body(tokens(100, 50))
        params = pair.hand_over(request, "bob")
        self.assertGreaterEqual(pair.prefill.metric("kv_transfer_displaced_total"), 1)
        self.assertEqual(pair.take_over(request, params, "bob")["kv_transfer_params"]["note"],
                         "fetched from another server")
        note = pair.take_over(body(tokens(100, 0)), mine[0])["kv_transfer_params"]["note"]
        self.assertIn("does not hold", note)

    def test_room_of_fetched_prompts_is_shared_among_keys(self):
        """A key whose prompts wait at the decode server, behind an answer that has its only
        sequence, leaves room there for those of another key."""
        room, token = max(SLOW_LAYERS << 17, 1 << 20), SLOW_LAYERS * 512
        pair = self.pair(decode=["--kv-transfer-memory", str(room), "--max-batch", "1"], model=SLOW, flags=API_KEYS)
        # Five prompts fill the room but for less than another one.
        requests = [body(tokens(int(room / token / 5.3), seed), max_tokens=1) for seed in range(7)]
        params = [pair.hand_over(request) for request in requests[:6]] + [pair.hand_over(requests[6], "bob")]
        ended = lambda: (pair.decode.metric("kv_transfer_fetched_total")
                         + pair.decode.metric("kv_transfer_fetch_failures_total"))
        with (concurrent.futures.ThreadPoolExecutor(len(requests)) as clients,
              socket.create_connection(("127.0.0.1", pair.decode.http_port)) as endless):
            send(endless, body(tokens(20, 98), max_tokens=LONG, stream=True))
            eventually("an answer has the sequence", lambda: pair.decode.metric("num_requests_running") == 1)
            mine = [clients.submit(pair.take_over, *pair_of) for pair_of in zip(requests, params[:6])]
            eventually("the prompts of a key were fetched, or were not", lambda: ended() == 6)
            bobs = clients.submit(pair.take_over, requests[6], params[6], "bob")
            eventually("the prompt of another key was, too", lambda: ended() == 7)
            endless.close()
            notes = [answer.result()["kv_transfer_params"]["note"] for answer in mine]
            self.assertEqual(bobs.result()["kv_transfer_params"]["note"], "fetched from another server")
        without = [note for note in notes if note != "fetched from another server"]
        self.assertIn(len(without), range(1, 6))
        for note in without:
            self.assertIn("no room for more prompts of its API key", note)
        self.assertEqual(pair.decode.metric("kv_transfer_bytes"), 0)

    def test_is_forgotten_after_its_time(self):
        pair = self.pair(prefill=["--kv-transfer-ttl", "1"])
        request = body(tokens(PROMPT, 1), CHUNKKV)
        params = pair.hand_over(request)
        eventually("what was held is forgotten", lambda: pair.prefill.metric("kv_transfer_records") == 0)
        self.assertIn("does not hold", pair.take_over(request, params)["kv_transfer_params"]["note"])
        self.assertGreaterEqual(pair.prefill.metric("kv_transfer_expired_total"), 1)
        self.assertEqual(pair.prefill.metric("kv_transfer_bytes"), 0)

    def test_a_prefill_server_that_is_gone(self):
        pair = Pair()
        request = body(tokens(PROMPT, 1), CHUNKKV)
        expected = drawn(pair.alone(request))
        params = pair.hand_over(request)
        pair.prefill.stop()
        try:
            answer = pair.take_over(request, params)
            self.assertIn("cannot be connected to", answer["kv_transfer_params"]["note"])
            self.assertEqual(drawn(answer), expected)
        finally:
            pair.decode.stop()


class Scripted:
    """A peer that answers every fetch with the same bytes, and may then keep the connection."""

    def __init__(self, keeps=False):
        self.answer, self.keeps, self.open = b"", keeps, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            connection.recv(64)
            connection.sendall(self.answer)
            self.open.append(connection)
            if not self.keeps:
                with contextlib.suppress(OSError):  # it takes the record, or goes away
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(64)
                connection.close()

    def close(self):
        self.socket.close()
        for connection in self.open:
            connection.close()


class Hostile(unittest.TestCase):
    """A peer that sends anything: the prompt is computed, with the tokens of a server alone."""

    @classmethod
    def setUpClass(cls):
        cls.peer, cls.stalled = Scripted(), Scripted(keeps=True)
        cls.addClassCleanup(cls.peer.close)
        cls.addClassCleanup(cls.stalled.close)
        # This process, which has the peer that answers, may wait for a core as long as the time-out
        # of the other one is.
        cls.server, cls.hasty = cls.serve(cls.peer, 60), cls.serve(cls.stalled, 1)
        cls.request = body(tokens(PROMPT, 3), CHUNKKV)
        cls.expected = drawn(cls.server.post("/v1/completions", cls.request, headers=headers()))

    @classmethod
    def serve(cls, peer, seconds):
        server = Server(*FLAGS, "--kv-transfer-peers", f"127.0.0.1:{peer.port}", "--kv-transfer-timeout", str(seconds),
                        model=POOL)
        cls.addClassCleanup(server.stop)
        return server

    def ask(self, server, peer):
        params = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": peer.port,
                  "remote_request_id": "ab" * 16}
        answer = server.post("/v1/completions", {**self.request, "kv_transfer_params": params}, headers=headers())
        self.assertEqual(drawn(answer), self.expected)
        self.assertEqual(server.metric("kv_transfer_bytes"), 0)
        return answer["kv_transfer_params"]["note"]

    def test_bytes(self):
        head = struct.Struct("<8sIIQQ")
        for answer, why in ((b"", "closed"),
                            (b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 32, "does not answer as"),
                            (head.pack(b"octavo!2", 9, 0, 8, 0), "does not answer as"),
                            (head.pack(b"octavo!2", 2, 0, 0, 0), "another model"),
                            (head.pack(b"octavo!2", 0, 0, 1 << 60, 0), "more than was asked for"),
                            (head.pack(b"octavo!2", 0, 0, 100, 0) + b"x" * 50, "closed"),
                            (head.pack(b"octavo!2", 0, 0, 100, 0) + b"x" * 100, "not those that it holds")):
            self.peer.answer = answer
            with self.subTest(why):
                self.assertIn(why, self.ask(self.server, self.peer))

    def test_a_peer_that_stalls(self):
        self.assertIn("nothing within the time", self.ask(self.hasty, self.stalled))
        self.stalled.answer = struct.pack("<8sIIQQ", b"octavo!2", 0, 0, 100, 0) + b"x" * 50
        self.assertIn("nothing within the time", self.ask(self.hasty, self.stalled))
        self.assertGreaterEqual(self.hasty.metric("kv_transfer_fetch_failures_total"), 2)

    def test_clients_that_go_away_while_a_peer_stalls(self):
        """Their requests end at once, whether a thread has the fetch or it waits for one."""
        clients, peer = 6, Scripted(keeps=True)
        self.addCleanup(peer.close)
        with Server(*FLAGS, "--kv-transfer-peers", f"127.0.0.1:{peer.port}", "--kv-transfer-timeout", "3600",
                    model=POOL) as server:
            params = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": peer.port,
                      "remote_request_id": "ab" * 16}
            sent = [socket.create_connection(("127.0.0.1", server.http_port)) for _ in range(clients)]
            for client in sent:
                send(client, {**self.request, "stream": True, "kv_transfer_params": params})
            eventually("all threads of fetches wait", lambda: len(peer.open) == FETCHES_OF_A_PEER)
            for client in sent:
                client.close()
            eventually("all requests have ended", lambda: clients == server.metric("request_success_total",
                                                                                   finished_reason="abort"))
            self.assertEqual(server.metric("kv_transfer_bytes"), 0)


if __name__ == "__main__":
    main()
