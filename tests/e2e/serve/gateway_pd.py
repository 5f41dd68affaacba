#!/usr/bin/env python3
"""smg (the gateway of the package smg) in front of a prefill and a decode server over gRPC: it has
prompts computed by the one and answers by the other, which are those of one server.
usage: gateway_pd.py OCTAVO [unittest arguments]"""

import json
import unittest

from gateway import GREEDY, Smg, prefix
from harness import MODEL, PATIENCE, Server, eventually, main, sse, tokens

ASKED = 4
POOL = ["--model", MODEL, "--kv-memory", "8M"]


class Disaggregated(unittest.TestCase):
    RETENTION = []

    def setUp(self):
        flags = ["--served-model-name", "demo", "--threads", "1", *self.RETENTION]
        self.prefill = Server(*flags, "--kv-transfer-listen", "127.0.0.1:0", model=POOL)
        self.addCleanup(self.prefill.stop)
        held = self.prefill.post("/v1/completions", {"prompt": tokens(20, 1), "max_tokens": 1,
                                                     "kv_transfer_params": {"do_remote_decode": True}})
        peer = f"127.0.0.1:{held['kv_transfer_params']['remote_port']}"
        self.decode = Server(*flags, "--kv-transfer-peers", peer, model=POOL)
        self.addCleanup(self.decode.stop)
        self.smg = Smg(flags=["--pd-disaggregation", "--prefill", f"grpc://{self.prefill.target}",
                              "--decode", f"grpc://{self.decode.target}"])
        self.addCleanup(self.smg.stop)
        eventually("smg has its servers", self.smg.ready)

    def fetched(self):
        return self.decode.metric("kv_transfer_fetched_total")

    def test_prompts_go_from_server_to_server(self):
        before = self.fetched()
        for i in range(ASKED):
            status, body = self.smg.ask(prefix(i), max_tokens=24)
            self.assertEqual(200, status, body)
            # The prefill server has the prompt's pages cached, and answers as one server would.
            alone = self.prefill.post("/v1/completions", {"prompt": prefix(i), **GREEDY, "max_tokens": 24})
            self.assertEqual(alone["choices"][0]["text"], body["choices"][0]["text"])
            self.assertEqual(alone["usage"]["completion_tokens"], body["usage"]["completion_tokens"])
        self.assertEqual(ASKED, self.fetched() - before)
        self.assertEqual(0, self.decode.metric("kv_transfer_fetch_failures_total"))
        self.assertEqual(0, self.decode.metric("prompt_tokens_by_source_total", source="local_compute"))

    def test_a_stream(self):
        before, c = self.fetched(), self.prefill.connect()
        c.host, c.port, c.timeout = "127.0.0.1", self.smg.port, PATIENCE
        c.request("POST", "/v1/chat/completions", json.dumps(
            {"model": "demo", "messages": [{"role": "user", "content": prefix(7)}], **GREEDY, "stream": True}),
                  {"content-type": "application/json"})
        text = c.getresponse().read().decode()
        c.close()
        got = "".join(e["choices"][0]["delta"].get("content") or "" for e in sse(text) if e["choices"])
        alone = self.prefill.post("/v1/chat/completions", {"messages": [{"role": "user", "content": prefix(7)}],
                                                           **GREEDY})
        self.assertEqual(alone["choices"][0]["message"]["content"], got)
        self.assertEqual(1, self.fetched() - before)

    def test_several_choices_are_computed_where_they_are_drawn(self):
        """The gateway hands no prompt over that has several answers."""
        before = self.fetched()
        status, body = self.smg.ask(prefix(8), n=2, temperature=0.5, seed=3)
        self.assertEqual((200, 2), (status, len(body["choices"])), body)
        self.assertEqual(before, self.fetched())


class Retained(Disaggregated):
    """A quarter of the prompt goes over."""

    RETENTION = ["--retention", "chunkkv:0.25"]


if __name__ == "__main__":
    main()
