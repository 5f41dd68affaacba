#!/usr/bin/env python3
"""llm-d's sidecar in front of a decode server, replayed: what it makes of a client's request for
the prefill server, what it reads of the answer, and what it sends on, as its connector nixlv2 does
in llm-d-routing-sidecar 0.3 and in llm-d-router 0.10. usage: gateway_llmd.py OCTAVO
[unittest arguments]"""

import copy
import json
import unittest
import uuid

from disaggregated import CHUNKKV, HANDS_OVER, Pair, body, drawn, headers
from harness import main, sse, tokens

LIMITS = {"0.3": ("max_tokens", "max_completion_tokens"),
          "0.10": ("max_tokens", "max_completion_tokens", "min_tokens")}
OF_RESPONSES = ("max_output_tokens",)  # 0.10
CHAT = {"messages": [{"role": "user", "content": "O Romeo, <Romeo> & " * 12}], "max_tokens": 12, "ignore_eos": True,
        "temperature": 0, "logprobs": True, "top_logprobs": 2}


def as_go_writes(message):
    """Go's encoding/json sorts members and escapes what HTML could mistake."""
    text = json.dumps(message, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for c in "<>&":
        text = text.replace(c, f"\\u{ord(c):04x}")
    return text


class Sidecar:
    """The two requests that it makes of one."""

    def __init__(self, pair, release):
        self.pair, self.release = pair, release

    def send(self, server, path, message, request_id):
        status, _, text = server.request("POST", path, as_go_writes(message), {
            **headers(), "Content-Type": "application/json", "x-request-id": request_id})
        if status != 200:
            raise AssertionError(f"{path}: {status}: {text}")
        return text

    def ask(self, request, path):
        """The text of the decode server's answer, and the prefill server's kv_transfer_params."""
        request_id = str(uuid.uuid4())
        leg = {**copy.deepcopy(request), "kv_transfer_params": HANDS_OVER, "stream": False}
        leg.pop("stream_options", None)
        responses = path == "/v1/responses"
        leg.update(dict.fromkeys(OF_RESPONSES if responses else LIMITS[self.release], 1))
        answer = json.loads(self.send(self.pair.prefill, path, leg, request_id))
        assert responses or isinstance(answer["usage"]["prompt_tokens_details"]["cached_tokens"], int)
        params = answer["kv_transfer_params"]
        return self.send(self.pair.decode, path, {**request, "kv_transfer_params": params}, request_id), params


class Llmd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pair = Pair()
        cls.addClassCleanup(cls.pair.stop)

    def ask(self, release, request, path):
        text, params = Sidecar(self.pair, release).ask(request, path)
        self.assertTrue(params["do_remote_prefill"], params)
        return json.loads(text)

    def test_answers_are_those_of_one_server(self):
        seed = 0
        for release in LIMITS:
            for path, request in (("/v1/completions", body(tokens(200, 1))), ("/v1/chat/completions", CHAT)):
                for fields in ({}, {"retention": CHUNKKV}, {"temperature": 0.9, "seed": 7}, {"min_tokens": 6}):
                    seed += 1
                    asked = {**request, **fields}
                    if "prompt" in request:
                        asked["prompt"] = tokens(200, seed)
                    with self.subTest(release=release, path=path, **fields):
                        expected = self.pair.alone(asked, path)
                        answer = self.ask(release, asked, path)
                        self.assertEqual(answer["kv_transfer_params"]["note"], "fetched from another server")
                        self.assertEqual(drawn(answer), drawn(expected))

    def test_a_drawn_answer_with_a_least_length_is_computed(self):
        """The prefill server drew without min_tokens, which may have changed the draw."""
        for release in LIMITS:
            request = {**body(tokens(200, 50)), "temperature": 1, "seed": 3, "min_tokens": 4, "ignore_eos": False}
            answer = self.ask(release, request, "/v1/completions")
            self.assertIn("other sampling parameters", answer["kv_transfer_params"]["note"])
            self.assertEqual(drawn(answer), drawn(self.pair.alone(request)))

    def test_a_first_token_that_ends_the_answer(self):
        """It is drawn though the sidecar asks for one token at least, so the answer is empty here
        too, and not where the client asks for more."""
        prompt = tokens(200, 60)
        first = self.pair.alone(body(prompt))["choices"][0]["token_ids"][0]
        for least in ({}, {"min_tokens": 2}):
            request = {**body(prompt), "stop_token_ids": [first], "ignore_eos": False, **least}
            answer = self.ask("0.10", request, "/v1/completions")
            self.assertEqual(drawn(answer), drawn(self.pair.alone(request)))
            self.assertEqual(answer["choices"][0]["token_ids"][0] == first, not least)
            self.assertEqual(answer["kv_transfer_params"]["note"] == "fetched from another server", not least)

    def test_streams(self):
        request = {**body(tokens(200, 70), CHUNKKV), "stream": True, "stream_options": {"include_usage": True}}
        text, _ = Sidecar(self.pair, "0.10").ask(request, "/v1/completions")
        frames = sse(text)
        ids = [i for f in frames for c in f["choices"] for i in c["token_ids"]]
        self.assertEqual(ids, self.pair.alone(body(tokens(200, 70), CHUNKKV))["choices"][0]["token_ids"])
        self.assertEqual([f["kv_transfer_params"]["note"] for f in frames if "kv_transfer_params" in f],
                         ["fetched from another server"])
        self.assertIn("prompt_tokens_details", frames[-1]["usage"])

    def test_responses(self):
        """Stored ones, too: what is handed over is of no session."""
        said = lambda response: [(i["type"], i.get("content")) for i in response["output"]]
        for seed, fields in enumerate(({}, {"retention": CHUNKKV}, {"retention": CHUNKKV, "store": False},
                                       {"temperature": 0.9, "seed": 7})):
            request = {"input": f"{seed} Romeos, " * 30, "max_output_tokens": 12, "temperature": 0, **fields}
            expected = self.pair.alone(request, "/v1/responses")
            answer = self.ask("0.10", request, "/v1/responses")
            with self.subTest(**fields):
                self.assertEqual(answer["kv_transfer_params"]["note"], "fetched from another server")
                self.assertEqual([(kind, [p["text"] for p in parts]) for kind, parts in said(answer)],
                                 [(kind, [p["text"] for p in parts]) for kind, parts in said(expected)])
        text, _ = Sidecar(self.pair, "0.10").ask({**request, "input": "O Romeo, " * 30, "stream": True}, "/v1/responses")
        last = json.loads(text.strip().rsplit("data: ", 1)[1])["response"]
        self.assertEqual(last["kv_transfer_params"]["note"], "fetched from another server")
        more = self.pair.decode.post("/v1/responses", {"input": "and more", "previous_response_id": last["id"],
                                                       "max_output_tokens": 4}, headers=headers())
        self.assertGreater(more["usage"]["input_tokens"], last["usage"]["input_tokens"])

    def test_a_prompt_that_is_not_held(self):
        request = {**CHAT, "retention": {"method": "h2o", "ratio": 0.5}}
        text, params = Sidecar(self.pair, "0.10").ask(request, "/v1/chat/completions")
        self.assertFalse(params["do_remote_prefill"])
        self.assertEqual(drawn(json.loads(text)), drawn(self.pair.alone(request, "/v1/chat/completions")))

    def test_names_of_the_length(self):
        """Without the sidecar, max_tokens and max_completion_tokens of /v1/completions agree."""
        request = {"prompt": tokens(20, 80), "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        ask = lambda **fields: self.pair.decode.post("/v1/completions", {**request, **fields}, headers=headers())
        self.assertEqual(drawn(ask(max_completion_tokens=3)), drawn(ask(max_tokens=3)))
        self.assertEqual(len(ask(max_tokens=3, max_completion_tokens=3)["choices"][0]["token_ids"]), 3)
        for path, fields in (("/v1/completions", request), ("/v1/chat/completions", {"messages": CHAT["messages"]})):
            refused = self.pair.decode.post(path, {**fields, "max_tokens": 3, "max_completion_tokens": 4}, status=400,
                                            headers=headers())
            self.assertIn("max_completion_tokens: differs", refused["error"]["message"])


if __name__ == "__main__":
    main()
