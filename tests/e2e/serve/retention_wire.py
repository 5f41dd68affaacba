#!/usr/bin/env python3
"""Retention over the wire: the reports, the pages that are free while a request runs, and prefix
hits of other requests. usage: retention_wire.py OCTAVO [unittest arguments]"""

import http.client
import json
import re
import subprocess

from harness import (FEW_SLOW_LAYERS, KV_HEADS, LONG, OCTAVO, PAGE, PATIENCE, POOL, ServeTest, eventually, main, need,
                     slow_model, sse, stubs, tokens)
from storm_clients import methods

grpc = need("grpc")
pb, rpc = stubs("octavo")

N = 1000 # tokens of the prompt: 62 full pages and one of 8 tokens
RETENTION = {"method": "chunkkv", "ratio": 0.25}
KEPT = 14 * PAGE + 8 # floor(0.25 * 1000) in pages, the last one not full
ENDLESS = {"max_tokens": LONG, "ignore_eos": True}


class Wire(ServeTest):
    MODEL = slow_model(FEW_SLOW_LAYERS, "--kv-memory", "128M")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.channel = grpc.insecure_channel(cls.server.target)
        cls.addClassCleanup(cls.channel.close)
        cls.stub = rpc.InferenceStub(cls.channel)
        cls.layers = FEW_SLOW_LAYERS

    def setUp(self):
        self.server.idle()
        self.stub.FlushCache(pb.FlushCacheRequest())

    # A running request: it has started and its first token was read; calling the result ends it.

    def http(self, ids, retention):
        c = http.client.HTTPConnection("127.0.0.1", self.server.http_port, timeout=PATIENCE)
        c.request("POST", "/v1/completions", json.dumps({"prompt": ids, "stream": True, **ENDLESS, **retention}))
        r = c.getresponse()
        self.assertEqual(r.status, 200)
        self.assertTrue(r.readline().startswith(b"data: "))
        self.addCleanup(c.close)

        def end():
            r.close()
            c.close()

        return end

    def octavo(self, ids, retention):
        text = json.dumps(retention["retention"]) if retention else ""
        call = self.stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), retention_json=text,
                                                     sampling=pb.SamplingParams(**ENDLESS)))
        next(call)
        return call.cancel

    def running(self, surface, ids, retention):
        """Pages in use and pages free for others while the request runs, in pages of the pool."""
        end = surface(ids, {"retention": retention} if retention else {})
        whole = (N // PAGE + 1) * self.layers * KV_HEADS
        loads = eventually("its prompt is done", lambda: self.settled(whole, retention))
        page = self.server.metrics() # one read, since the request goes on
        metrics = {stem: self.server.metric(stem, page) for stem in
                   ("kv_pages_used", "kv_pages_cached", "logical_tokens", "kept_tokens", "num_requests_running")}
        self.assertEqual(metrics["num_requests_running"], 1)
        return loads, metrics, end

    def settled(self, whole, retention):
        loads = self.stub.Loads(pb.LoadsRequest())
        return loads if (loads.used_pages < whole if retention else loads.used_pages >= whole) else None

    def test_pages_are_free(self):
        for surface in (self.http, self.octavo):
            with self.subTest(surface.__name__):
                ids = tokens(N, 7)
                whole, whole_metrics, end = self.running(surface, ids, None)
                end()
                self.server.idle()
                self.assertGreaterEqual(whole_metrics["kept_tokens"], N)
                self.assertEqual(whole_metrics["kept_tokens"], whole_metrics["logical_tokens"])
                self.stub.FlushCache(pb.FlushCacheRequest())
                part, metrics, end = self.running(surface, ids, RETENTION)
                # The answer goes on meanwhile, and grows with each token; what was dropped is
                # N - KEPT tokens however long it is.
                pages = (N - KEPT) // PAGE * self.layers * KV_HEADS
                grown = metrics["logical_tokens"] - N
                self.assertEqual(metrics["logical_tokens"] - metrics["kept_tokens"], N - KEPT)
                most = whole.used_pages + (grown // PAGE + 2) * self.layers * KV_HEADS - pages
                self.assertLessEqual(part.used_pages, most)
                self.assertLessEqual(metrics["kv_pages_used"], most)
                self.assertGreaterEqual(grown, 0)
                # Dropped pages are free for new work, but can still be hit.
                self.assertGreater(part.cached_pages, 40 * self.layers * KV_HEADS)

                # Other requests hit the whole prefix, with the answers of a cold cache.
                hit = self.short(ids)
                self.assertEqual(hit["usage"]["prompt_tokens_details"]["cached_tokens"], N // PAGE * PAGE)
                end()
                self.server.idle()
                self.assertGreater(self.server.metric("pages_dropped_total", method="chunkkv"), 0)
                self.stub.FlushCache(pb.FlushCacheRequest())
                cold = self.short(ids)
                self.assertEqual(cold["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0), 0)
                self.assertEqual(hit["choices"][0]["token_ids"], cold["choices"][0]["token_ids"])

    def test_the_page_map_shows_what_is_dropped(self):
        status, headers, text = self.server.get("/")
        self.assertEqual((status, headers["content-type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("default-src 'none'", headers["content-security-policy"])
        self.assertIn("<canvas", text)
        end = self.http(tokens(N, 7), {"retention": RETENTION})
        (job,) = [r["id"] for r in json.loads(self.server.get("/octavo/pages")[2])["requests"]]

        def dropped():
            answer = json.loads(self.server.get(f"/octavo/pages/{job}")[2])["map"]
            return answer if answer and answer.get("pages_dropped") and answer.get("rows") else None

        got = eventually("pages are dropped", dropped)
        end()
        self.assertEqual(("running", "chunkkv", N), (got["state"], got["method"], got["prompt_tokens"]))
        self.assertEqual(self.layers, sum(n for n, _ in got["rows"]))
        for _, row in got["rows"]:
            cells = "".join(letter * int(n or 1) for n, letter in re.findall(r"(\d*)([.a-hA-H])", row))
            self.assertEqual(got["columns"], len(cells))
            self.assertEqual(62 - 14, cells[:62].count("."))
            self.assertNotIn(".", cells[62:])

    def short(self, ids, **fields):
        return self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 4, "ignore_eos": True,
                                                    "return_token_ids": True, **fields})

    def test_retrieval_reports(self):
        ids = tokens(N, 9)
        few = {"method": "quest", "block_size": PAGE, "local_windows_len": PAGE, "second_select_num": 2,
               "dense_layer_num": 0, "audit": 1}
        reports = [self.short(ids, retrieval=few)["choices"][0]["retrieval"]]
        (choice,) = [e["choices"][0] for e in self.server.stream("/v1/completions", {
            "prompt": ids, "max_tokens": 4, "ignore_eos": True, "retrieval": few})
            if "retrieval" in e["choices"][0]]
        reports.append(choice["retrieval"])
        messages = list(self.stub.Generate(pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=ids), sampling=pb.SamplingParams(max_tokens=4, ignore_eos=True),
            retrieval_json=json.dumps(few))))
        self.assertFalse(any(m.retrieval_json for m in messages[:-1]))
        self.assertFalse(messages[-1].retention_json)
        reports.append(json.loads(messages[-1].retrieval_json))
        for report in reports:
            self.assertEqual((report["rows"], report["context_tokens"], report["audited_rows"]), (3, N + 2, 3))
            # The first block, two selected ones, the last full one, and the one with 10 tokens.
            self.assertEqual((report["read_blocks"], report["read_tokens"]), (5, 4 * PAGE + 10))
            self.assertEqual(report["selections"], 3 * self.layers * KV_HEADS)
            self.assertGreater(report["recall"], report["least_recall"])
            self.assertLess(0, report["least_recall"])
            self.assertLess(report["recall"], 1)
            self.assertEqual(report, reports[0])
        self.assertNotIn("retrieval", self.short(ids)["choices"][0])

    def test_retrieval_in_one_word(self):
        ids, size = tokens(N, 9), 128
        report = self.short(ids, retrieval="quest:%d" % (3 * size + 1))["choices"][0]["retrieval"]
        self.assertEqual(report, self.short(ids, retrieval={
            "method": "quest", "local_windows_len": size, "second_block_count": 1})["choices"][0]["retrieval"])
        self.assertEqual(report["read_blocks"], 4)
        (m,) = self.stub.Generate(pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=ids), sampling=pb.SamplingParams(max_tokens=1, ignore_eos=True), retrieval_json="quest:4096"))
        self.assertTrue(m.retrieval_json)
        for word, why in (("best:4096", "have: ktransformers, quest, dynamic"), ("quest:16", "at least 384"),
                          ("quest:all", "methods: ktransformers, quest, dynamic")):
            self.assertIn(why, self.server.refused("/v1/completions", {"prompt": ids, "retrieval": word})["message"])

    def test_reports(self):
        ids = tokens(N, 8)
        reports = [self.short(ids, retention=RETENTION)["choices"][0]["retention"]]
        (choice,) = [e["choices"][0] for e in self.server.stream("/v1/completions", {
            "prompt": ids, "max_tokens": 4, "ignore_eos": True, "retention": RETENTION})
            if "retention" in e["choices"][0]]
        self.assertEqual(choice["finish_reason"], "length")
        reports.append(choice["retention"])
        messages = list(self.stub.Generate(pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=ids), sampling=pb.SamplingParams(max_tokens=4, ignore_eos=True),
            retention_json=json.dumps(RETENTION))))
        reports.append(json.loads(messages[-1].retention_json))
        for report in reports:
            self.assertEqual((report["method"], report["logical_tokens"], report["kept_tokens"]),
                             ("chunkkv", N + 3, KEPT + 3))
            self.assertEqual(report["pages_dropped"], (63 - 15) * self.layers)
            self.assertIs(report["budget_raised"], False)
            self.assertGreaterEqual(report["scoring_ms"], 0)
            self.assertNotIn("kept", report)
            self.assertNotIn("session", report)

    def test_positions(self):
        report = self.short(tokens(N, 9), retention={**RETENTION, "report": "positions"})["choices"][0]["retention"]
        layers = []
        for table in report["kept"]:
            layers += range(table["layers"][0], table["layers"][1] + 1)
            self.assertEqual(sum(e - s for s, e in table["ranges"]), report["kept_tokens"])
        self.assertEqual(layers, list(range(self.layers)))

    def test_each_choice(self):
        r = self.short(tokens(N, 10), retention=RETENTION, n=2, temperature=1.0, seed=1)
        for choice in r["choices"]:
            self.assertEqual(choice["retention"]["kept_tokens"], KEPT + 3)

    def test_truncate_computes_only_what_is_left(self):
        ids, left = tokens(N, 12), 100
        before = self.server.metric("prompt_tokens_total")
        r = self.short(ids, retention={"method": "truncate", "tokens": left, "report": "positions"})
        (choice,), usage = r["choices"], r["usage"]
        self.assertEqual(self.server.metric("prompt_tokens_total") - before, left)
        self.assertEqual(usage["prompt_tokens"], N)
        report = choice["retention"]
        self.assertEqual((report["logical_tokens"], report["kept_tokens"], report["pages_dropped"]),
                         (N + 3, left + 3, 0))
        self.assertIs(report["budget_raised"], False)
        self.assertEqual([t["ranges"] for t in report["kept"]], [[[N - left, N + 3]]] * len(report["kept"]))
        # The answer is that of a prompt of only these tokens, and both share their pages.
        plain = self.short(ids[-left:])
        self.assertEqual(choice["token_ids"], plain["choices"][0]["token_ids"])
        self.assertEqual(plain["usage"]["prompt_tokens_details"]["cached_tokens"], left // PAGE * PAGE)

    def test_truncate_keeps_sinks_of_each_choice(self):
        ids, retention = tokens(N, 13), {"method": "truncate", "ratio": 0.1, "sinks": 20, "report": "positions"}
        fields = {"n": 2, "temperature": 1.0, "seed": 3}
        plain = self.short(ids[:20] + ids[-80:], **fields)["choices"]
        for choice, alone in zip(self.short(ids, retention=retention, **fields)["choices"], plain):
            self.assertEqual(choice["token_ids"], alone["token_ids"])
            for table in choice["retention"]["kept"]:
                self.assertEqual(table["ranges"], [[0, 20], [N - 80, N + 3]])

    def test_truncate_takes_more_than_the_context(self):
        ids = tokens(N, 14)
        long = ids * 40 # the model has 32,768 positions
        self.assertIn("maximum context length", self.server.refused("/v1/completions", {"prompt": long})["message"])
        retention = {"method": "truncate", "tokens": N}
        body = self.short(long, retention=retention)
        self.assertEqual(body["usage"]["prompt_tokens"], len(long))
        self.assertEqual(body["choices"][0]["token_ids"], self.short(ids)["choices"][0]["token_ids"])

    def test_truncate_has_no_logprobs_of_what_goes(self):
        ids, retention = tokens(N, 15), {"method": "truncate", "tokens": 100}
        body = {"prompt": ids, "retention": retention, "max_tokens": 4, "ignore_eos": True}
        for asked in ({"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}):
            self.assertIn("prompt_logprobs: retention method 'truncate' cuts 900 of the prompt's 1000 tokens",
                          self.server.refused("/v1/completions", {**body, **asked})["message"])
        # A prompt from which nothing is dropped has all of them.
        short = self.short(ids[:100], retention=retention, prompt_logprobs=1)["choices"][0]
        self.assertEqual(len(short["prompt_logprobs"]), 100)
        # An echo contains everything that was sent.
        text = "Romeo " * 200
        echoed = self.server.post("/v1/completions", {**body, "prompt": text, "echo": True})["choices"][0]
        self.assertTrue(echoed["text"].startswith(text))
        told = self.short(ids, retention=retention, session="s")["choices"][0]["retention"]["session"]
        self.assertEqual(told, "ignored: the method cuts the prompt")

    def test_stream_is_whole(self):
        c = self.server.connect()
        c.request("POST", "/v1/completions", json.dumps({"prompt": tokens(N, 11), "max_tokens": 20, "ignore_eos": True,
                                                         "stream": True, "retention": RETENTION}))
        self.assertEqual(len(sse(c.getresponse().read().decode())), 20)
        c.close()


class EveryMethod(ServeTest):
    """A server with no flag but the model answers every method that `octavo methods` lists."""

    MODEL = POOL[:2]

    def answer(self, ids, retention):
        (choice,) = self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 12, "ignore_eos": True,
                                                         "retention": retention})["choices"]
        return choice["retention"]

    def test_answers(self):
        listed = json.loads(subprocess.run([OCTAVO, "methods", "--json"], capture_output=True, check=True).stdout)
        small = {spec["method"]: spec for spec in methods() if spec}
        self.assertEqual([row["method"] for row in listed], list(small))
        for i, row in enumerate(listed):
            with self.subTest(row["method"]):
                least = {"method": row["method"], **({"ratio": 0.5} if row["needs_budget"] else {})}
                report = self.answer(tokens(40, 200 + i), least)
                if row["contiguous"]: # defaults of a model with 4,096 positions
                    self.assertEqual((report["fields"]["tokens"], report["fields"]["recurrent_chunk"]), (2048, 1024))
                report = self.answer(tokens(300, 100 + i), small[row["method"]])
                self.assertEqual(report["method"], row["method"])
                if row["method"] == "full":
                    self.assertEqual(report["kept_tokens"], report["logical_tokens"])
                    continue
                self.assertLess(report["kept_tokens"], 0.8 * report["logical_tokens"])
                if row["method"] != "truncate": # its tokens never had pages
                    self.assertGreater(report["pages_dropped"], 0)


if __name__ == "__main__":
    main()
