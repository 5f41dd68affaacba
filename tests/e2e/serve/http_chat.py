#!/usr/bin/env python3
"""Chat by the openai SDK, the small endpoints, and curl. usage: http_chat.py OCTAVO
[unittest arguments]"""

import json
import shutil
import subprocess
import unittest

from harness import CONTEXT, PAGE, PATIENCE, ServeTest, main, need, sse

openai = need("openai")

HELLO = [{"role": "user", "content": "Good morrow to thee, gentle friend, and to thy house."}]


class Chat(ServeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        cls.addClassCleanup(cls.client.close)
        cls.model = cls.client.models.list().data[0].id

    def chat(self, messages=None, max_completion_tokens=12, extra_body=None, **fields):
        return self.client.chat.completions.create(
            model=self.model, messages=messages or HELLO, max_completion_tokens=max_completion_tokens,
            extra_body=extra_body, **fields)

    def test_shape(self):
        r = self.chat()
        self.assertTrue(r.id.startswith("chatcmpl-"), r.id)
        self.assertEqual((r.object, r.model), ("chat.completion", self.model))
        (choice,) = r.choices
        self.assertEqual((choice.index, choice.message.role), (0, "assistant"))
        self.assertTrue(choice.message.content)
        self.assertIn(choice.finish_reason, ("length", "stop"))
        self.assertIsNone(choice.logprobs)
        self.assertEqual(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens)
        by_old_name = self.client.chat.completions.create(model=self.model, messages=HELLO, max_tokens=12)
        self.assertEqual(by_old_name.choices[0].message.content, choice.message.content)

    def test_content_parts(self):
        text = HELLO[0]["content"]
        parts = [{"type": "text", "text": text[:10]}, {"type": "text", "text": text[10:]}]
        one = self.chat([{"role": "user", "content": [{"type": "text", "text": text}]}])
        self.assertEqual(one.choices[0].message.content, self.chat().choices[0].message.content)
        self.chat([{"role": "user", "content": parts}])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
        self.assertIn("messages[0]", caught.exception.body["message"])

    def test_stream_says_the_same(self):
        whole = self.chat(max_completion_tokens=20, extra_body={"ignore_eos": True})
        chunks = list(self.chat(max_completion_tokens=20, stream=True, extra_body={"ignore_eos": True}))
        self.assertEqual(len(chunks), 20) # no chunk has only the role: each is a token
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), whole.choices[0].message.content)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertTrue(all(c.choices[0].delta.role is None for c in chunks[1:]))
        self.assertEqual({(c.object, c.id) for c in chunks}, {("chat.completion.chunk", chunks[0].id)})
        self.assertTrue(chunks[0].id.startswith("chatcmpl-"))
        self.assertEqual([c.choices[0].finish_reason for c in chunks], [None] * 19 + ["length"])

    def test_stream_usage(self):
        for continuous in (False, True):
            chunks = list(self.chat(stream=True, stream_options={
                "include_usage": True, "continuous_usage_stats": continuous}, extra_body={"ignore_eos": True}))
            self.assertEqual((chunks[-1].choices, len(chunks)), ([], 13))
            self.assertEqual(chunks[-1].usage.completion_tokens, 12)
            for i, chunk in enumerate(chunks[:-1]):
                self.assertEqual(chunk.usage and chunk.usage.completion_tokens, i + 1 if continuous else None)

    def test_sdk_stream_helper(self):
        """The SDK's own accumulator of chunks."""
        with self.client.chat.completions.stream(model=self.model, messages=HELLO, max_completion_tokens=12) as stream:
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content, self.chat().choices[0].message.content)

    def test_logprobs(self):
        as_sampled = {"ignore_eos": True, "skip_special_tokens": False}
        r = self.chat(logprobs=True, top_logprobs=3, max_completion_tokens=8, extra_body=as_sampled)
        content = r.choices[0].logprobs.content
        self.assertEqual(len(content), 8)
        self.assertEqual(bytes(b for t in content for b in t.bytes).decode(), r.choices[0].message.content)
        for token in content:
            tops = [top.logprob for top in token.top_logprobs]
            self.assertEqual(len(tops), 3)
            self.assertEqual(tops, sorted(tops, reverse=True))
            self.assertAlmostEqual(tops[0], token.logprob, places=5)
        chunks = list(self.chat(logprobs=True, top_logprobs=3, max_completion_tokens=8, stream=True,
                                extra_body=as_sampled))
        self.assertEqual([t for c in chunks for t in c.choices[0].logprobs.content], content)
        bare = self.chat(logprobs=True, max_completion_tokens=8, extra_body={"ignore_eos": True})
        self.assertEqual([t.logprob for t in bare.choices[0].logprobs.content], [t.logprob for t in content])
        self.assertEqual(bare.choices[0].logprobs.content[0].top_logprobs, [])

    def test_n(self):
        fields = {"n": 3, "temperature": 1.0, "seed": 3, "extra_body": {"ignore_eos": True}}
        r = self.chat(**fields)
        texts = {c.index: c.message.content for c in r.choices}
        self.assertEqual((sorted(texts), len(set(texts.values()))), ([0, 1, 2], 3))
        streamed = dict.fromkeys(range(3), "")
        roles = []
        for chunk in self.chat(stream=True, **fields):
            (choice,) = chunk.choices
            streamed[choice.index] += choice.delta.content or ""
            if choice.delta.role:
                roles.append(choice.index)
        self.assertEqual((streamed, sorted(roles)), (texts, [0, 1, 2]))

    def test_stop(self):
        whole = self.chat(max_completion_tokens=30, extra_body={"ignore_eos": True}).choices[0].message.content
        choice = self.chat(max_completion_tokens=30, stop=whole[5:9], extra_body={"ignore_eos": True}).choices[0]
        self.assertEqual(choice.message.content, whole[:whole.index(whole[5:9])])
        self.assertEqual((choice.finish_reason, choice.stop_reason), ("stop", whole[5:9]))

    def test_conversation_hits_the_cache(self):
        first = self.chat(max_completion_tokens=40, extra_body={"ignore_eos": True})
        both = self.chat([*HELLO, {"role": "assistant", "content": first.choices[0].message.content},
                          {"role": "user", "content": "And who are you?"}])
        self.assertGreaterEqual(both.usage.prompt_tokens_details.cached_tokens, PAGE)

    def test_retention(self):
        messages = [{"role": "user", "content": "Romeo and Juliet. " * 60}]
        retention = {"method": "chunkkv", "ratio": 0.3}
        r = self.chat(messages, extra_body={"retention": retention})
        report = r.choices[0].retention
        self.assertGreater(report["pages_dropped"], 0)
        self.assertLess(report["kept_tokens"], report["logical_tokens"])
        chunks = list(self.chat(messages, stream=True, extra_body={"retention": retention}))
        self.assertEqual(chunks[-1].choices[0].retention["pages_dropped"], report["pages_dropped"])

    def test_refusals(self):
        for name, value in (("bananas", 1), ("functions", [{"name": "x"}]), ("response_format", {"type": "xml"}),
                            ("audio", {}), ("echo", "x"), ("logprobs", 3), ("top_logprobs", 1), ("prompt", "x"),
                            ("modalities", ["audio"]), ("guided_regex", 5), ("n", 0), ("messages", "x"),
                            ("messages", []), ("messages", [{"content": "x"}]), ("messages", [5]),
                            ("messages", [{"role": "user", "content": 5}])):
            with self.subTest(name=name, value=value):
                body = {"model": self.model, "messages": HELLO, name: value}
                error = self.server.refused("/v1/chat/completions", body)
                self.assertEqual(error["type"], "BadRequestError")
                self.assertIn(name, error["message"])

    def test_too_long(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat([{"role": "user", "content": "Romeo " * 5000}])
        self.assertEqual(caught.exception.param, "input_tokens")
        self.assertIn(str(CONTEXT), caught.exception.body["message"])


class Small(ServeTest):
    """The endpoints beside completions and chat."""

    def test_tokenize(self):
        r = self.server.post("/tokenize", {"prompt": "O Romeo caf\u00e9"})
        self.assertEqual((r["count"], r["max_model_len"]), (len(r["tokens"]), CONTEXT))
        self.assertEqual(self.server.post("/detokenize", {"tokens": r["tokens"]})["prompt"], "O Romeo caf\u00e9")
        chat = self.server.post("/tokenize", {"messages": HELLO})
        usage = self.server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1})["usage"]
        self.assertEqual(chat["count"], usage["prompt_tokens"])
        for path, body, word in (("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 5}, "prompt"),
                                 ("/tokenize", {"prompt": "x", "bananas": 1}, "bananas"),
                                 ("/detokenize", {"tokens": "x"}, "tokens"), ("/detokenize", {"tokens": [9999]}, "tokens"),
                                 ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {}, "tokens")):
            with self.subTest(path=path, body=body):
                self.assertIn(word, self.server.refused(path, body)["message"])

    def test_render(self):
        """The tokens of a request's prompts, as vLLM gives them to llm-d's endpoint picker."""
        texts = ["O Romeo", "caf\u00e9", [5, 6, 7]]
        for prompt, cut in (*((text, {}) for text in texts), (texts[:2], {}), (texts[:2], {"truncate_prompt_tokens": 2})):
            request = {"prompt": prompt, "max_tokens": 1, "return_token_ids": True, **cut}
            rendered = self.server.post("/v1/completions/render", {**request, "stream": True})
            answer = self.server.post("/v1/completions", request)
            self.assertEqual([r["token_ids"] for r in rendered], [c["prompt_token_ids"] for c in answer["choices"]])
        for more in ({}, {"add_generation_prompt": False}):
            request = {"messages": HELLO, "max_tokens": 1, **more}
            rendered = self.server.post("/v1/chat/completions/render", request)["token_ids"]
            self.assertEqual(rendered, self.server.post("/tokenize", {"messages": HELLO, **more})["tokens"])
            self.assertEqual(len(rendered),
                             self.server.post("/v1/chat/completions", request)["usage"]["prompt_tokens"])
        for path, body, word in (("/v1/completions/render", {}, "prompt"),
                                 ("/v1/completions/render", {"prompt": [99999]}, "prompt"),
                                 ("/v1/completions/render", {"prompt": "x", "truncate_prompt_tokens": -1}, "not -1"),
                                 ("/v1/completions/render", {"prompt": "x" * 300000}, "render takes bodies of at most"),
                                 ("/v1/chat/completions/render", {"prompt": "x"}, "prompt"),
                                 ("/v1/chat/completions/render", {"messages": 5}, "messages"),
                                 ("/v1/chat/completions/render", {"messages": HELLO, "model": "other"}, "other")):
            with self.subTest(path=path, word=word):
                status, _, text = self.server.request("POST", path, json.dumps(body))
                self.assertIn(status, (400, 404))
                self.assertIn(word, json.loads(text)["error"]["message"])

    def test_states(self):
        for path in ("/health", "/ready"):
            self.assertEqual(self.server.get(path)[0], 200)
        status, headers, text = self.server.get("/version")
        self.assertEqual((status, headers["content-type"].split(";")[0]), (200, "application/json"))
        self.assertTrue(json.loads(text)["version"])
        self.assertTrue(self.server.get("/metrics")[1]["content-type"].startswith("text/plain"))

    def test_model_may_be_left_out(self):
        r = self.server.post("/v1/completions", {"prompt": "O", "max_tokens": 1})
        self.assertEqual(r["model"], json.loads(self.server.get("/v1/models")[2])["data"][0]["id"])

    def test_request_id(self):
        body = json.dumps({"prompt": "O", "max_tokens": 1})
        status, headers, _ = self.server.request("POST", "/v1/completions", body, {"X-Request-Id": "mine-1"})
        self.assertEqual((status, headers["x-request-id"]), (200, "mine-1"))
        self.assertTrue(self.server.request("POST", "/v1/completions", body)[1]["x-request-id"])

    def test_not_json(self):
        for body in (b"", b"{", b"[]", b"5", b'"x"', b"null", b"\xff\xfe", b'{"prompt":"\xc3"}', b'{"prompt":"x"} x',
                     b'{"prompt":"x","prompt":"y"}', b"[" * 100000, b'{"a":' * 5000, b'{"prompt":"\\ud800"}',
                     b'{"prompt":"x","max_tokens":1e400}', b'{"prompt":"x","max_tokens":99999999999999999999}'):
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
                with self.subTest(path=path, body=body[:40]):
                    self.assertEqual(self.server.refused(path, body)["type"], "BadRequestError")


@unittest.skipUnless(shutil.which("curl"), "no curl")
class Curl(ServeTest):
    JSON = ["-H", "Content-Type: application/json"]

    def test_the_example(self):
        """The request that the server's log shows as an example."""
        lines = [line for line in self.server.lines if not line.startswith("{")]
        at = next(i for i, line in enumerate(lines) if line.strip().startswith("curl "))
        command = lines[at]
        while command.endswith("\\"):
            at += 1
            command = command[:-1] + lines[at]
        p = subprocess.run(["sh", "-c", command], capture_output=True, timeout=PATIENCE, check=True)
        self.assertGreater(len(sse(p.stdout.decode())), 5)

    def curl(self, *args):
        p = subprocess.run(["curl", "-sS", "--fail-with-body", "--max-time", str(PATIENCE), *args],
                           capture_output=True, check=False)
        return p.returncode, p.stdout.decode()

    def test_plain(self):
        code, text = self.curl(self.server.url + "/v1/completions", *self.JSON, "-d",
                               json.dumps({"prompt": "O Romeo", "max_tokens": 5}))
        self.assertEqual(code, 0, text)
        self.assertEqual(json.loads(text)["usage"]["completion_tokens"], 5)

    def test_stream(self):
        body = {"prompt": "O Romeo", "max_tokens": 5, "ignore_eos": True, "stream": True}
        code, text = self.curl("-N", self.server.url + "/v1/completions", *self.JSON, "-d", json.dumps(body))
        self.assertEqual(code, 0, text)
        self.assertEqual(len(sse(text)), 5)

    def test_refusal(self):
        code, text = self.curl(self.server.url + "/v1/completions", *self.JSON, "-d",
                               '{"bananas":1}')
        self.assertEqual(code, 22)
        self.assertEqual(json.loads(text)["error"]["code"], 400)

    def test_large_body(self):
        """curl waits for `100 Continue` before it sends a large body."""
        body = json.dumps({"prompt": "Romeo " * 250000, "max_tokens": 1})
        p = subprocess.run(["curl", "-sS", "--max-time", str(PATIENCE), *self.JSON, "-H", "Expect: 100-continue", "-d",
                            "@-",
                            self.server.url + "/v1/completions"], input=body.encode(), capture_output=True, check=True)
        self.assertEqual(json.loads(p.stdout)["error"]["param"], "input_tokens")

    def test_head(self):
        self.assertEqual(self.curl("-I", self.server.url + "/health")[0], 0)


if __name__ == "__main__":
    main()
