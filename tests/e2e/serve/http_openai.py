#!/usr/bin/env python3
"""The openai SDK against a live server: completions, whole and streamed, and refusals.
usage: http_openai.py OCTAVO [unittest arguments]"""

import asyncio
import json
import math

from harness import CONTEXT, PAGE, PATIENCE, ServeTest, main, need, tokens

openai = need("openai")

ROMEO = "O Romeo, Romeo, wherefore art thou"


class OpenAITest(ServeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        cls.addClassCleanup(cls.client.close)
        cls.model = cls.client.models.list().data[0].id

    def complete(self, prompt=ROMEO, max_tokens=12, **fields):
        known = ("n", "seed", "stop", "echo", "logprobs", "temperature", "top_p", "presence_penalty",
                 "frequency_penalty", "logit_bias", "stream", "stream_options", "suffix", "best_of", "user")
        more = {k: fields.pop(k) for k in list(fields) if k not in known}
        return self.client.completions.create(model=self.model, prompt=prompt, max_tokens=max_tokens,
                                              extra_body=more or None, **fields)

    def chunks(self, **fields):
        return list(self.complete(stream=True, **fields))

    def refuses(self, word, kind=openai.BadRequestError, **fields):
        """The request is refused, and the answer names the cause."""
        with self.assertRaises(kind) as caught:
            self.complete(**fields)
        body = caught.exception.body
        self.assertEqual(sorted(body), ["code", "message", "param", "type"])
        self.assertIn(body["code"], (caught.exception.status_code, "context_length_exceeded"))
        self.assertIn(word, body["message"])
        self.assertNotIn("\n", body["message"])
        return body


class Models(OpenAITest):
    def test_models(self):
        models = self.client.models.list()
        self.assertEqual(models.object, "list")
        for model in models.data:
            self.assertEqual(model.object, "model")
            self.assertIsInstance(model.created, int)
            self.assertEqual(self.client.models.retrieve(model.id).id, model.id)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("bananas")
        self.assertEqual(caught.exception.type, "NotFoundError")

    def test_unknown_model(self):
        for create, what in ((self.client.completions.create, {"prompt": "x"}),
                             (self.client.chat.completions.create,
                              {"messages": [{"role": "user", "content": "x"}]})):
            with self.assertRaises(openai.NotFoundError) as caught:
                create(model="bananas", **what)
            self.assertEqual((caught.exception.type, caught.exception.body["code"]), ("NotFoundError", 404))
            self.assertIn("bananas", caught.exception.body["message"])


class Completions(OpenAITest):
    def test_shape(self):
        r = self.complete()
        self.assertTrue(r.id.startswith("cmpl-"), r.id)
        self.assertEqual((r.object, r.model), ("text_completion", self.model))
        self.assertGreater(r.created, 1_700_000_000)
        (choice,) = r.choices
        self.assertEqual((choice.index, choice.finish_reason, choice.logprobs), (0, "length", None))
        self.assertTrue(choice.text)
        self.assertEqual(r.usage.completion_tokens, 12)
        self.assertGreater(r.usage.prompt_tokens, 5)
        self.assertEqual(r.usage.total_tokens, r.usage.prompt_tokens + 12)
        self.assertNotEqual(self.complete().id, r.id)

    def test_default_length(self):
        r = self.client.completions.create(model=self.model, prompt=ROMEO, extra_body={"ignore_eos": True})
        self.assertEqual(r.usage.completion_tokens, 16)

    def test_stream_says_the_same(self):
        whole = self.complete(max_tokens=30)
        chunks = self.chunks(max_tokens=30)
        self.assertEqual("".join(c.choices[0].text for c in chunks), whole.choices[0].text)
        self.assertEqual(len(chunks), 30) # each with a choice: one token event
        self.assertEqual([c.choices[0].finish_reason for c in chunks], [None] * 29 + ["length"])
        self.assertEqual({(c.object, c.id, c.model) for c in chunks},
                         {("text_completion", chunks[0].id, self.model)})
        self.assertTrue(all(c.usage is None for c in chunks))

    def test_stream_usage(self):
        whole = self.complete(max_tokens=9).usage
        chunks = self.chunks(max_tokens=9, stream_options={"include_usage": True})
        self.assertEqual(len(chunks), 10)
        self.assertTrue(all(len(c.choices) == 1 and c.usage is None for c in chunks[:-1]))
        last = chunks[-1]
        self.assertEqual(last.choices, [])
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            self.assertEqual(getattr(last.usage, name), getattr(whole, name))

    def test_continuous_usage(self):
        chunks = self.chunks(max_tokens=9, stream_options={"include_usage": True, "continuous_usage_stats": True})
        self.assertEqual([c.usage.completion_tokens for c in chunks], [*range(1, 10), 9])
        self.assertEqual({c.usage.prompt_tokens for c in chunks}, {chunks[-1].usage.prompt_tokens})
        self.assertTrue(all(c.usage.total_tokens == c.usage.prompt_tokens + c.usage.completion_tokens
                            for c in chunks))

    def test_logprobs(self):
        r = self.complete(max_tokens=10, logprobs=3)
        (choice,) = r.choices
        lp = choice.logprobs
        self.assertEqual([len(x) for x in (lp.tokens, lp.token_logprobs, lp.top_logprobs, lp.text_offset)], [10] * 4)
        self.assertEqual("".join(lp.tokens), choice.text)
        at = 0
        for token, logprob, top, offset in zip(lp.tokens, lp.token_logprobs, lp.top_logprobs, lp.text_offset):
            self.assertEqual(offset, at)
            at += len(token)
            self.assertIn(len(top), (3, 4)) # greedy; two tokens may have the same text
            self.assertAlmostEqual(max(top.values()), logprob, places=5)
            self.assertLessEqual(sum(map(math.exp, top.values())), 1.0001)
        chunks = self.chunks(max_tokens=10, logprobs=3)
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            parts = [x for c in chunks for x in getattr(c.choices[0].logprobs, name)]
            self.assertEqual(parts, getattr(lp, name), name)
        none = self.complete(max_tokens=4, logprobs=0).choices[0].logprobs
        self.assertEqual(none.token_logprobs, lp.token_logprobs[:4])

    def test_n_and_seeds(self):
        fields = {"n": 3, "temperature": 1.0, "max_tokens": 16, "seed": 7, "ignore_eos": True}
        first, again = self.complete(**fields), self.complete(**fields)
        self.assertEqual(sorted(c.index for c in first.choices), [0, 1, 2])
        texts = {c.index: c.text for c in first.choices}
        self.assertEqual(texts, {c.index: c.text for c in again.choices})
        self.assertEqual(len(set(texts.values())), 3)
        self.assertEqual(first.usage.completion_tokens, 48)
        other = self.complete(**{**fields, "seed": 8})
        self.assertNotEqual(texts, {c.index: c.text for c in other.choices})
        streamed = {0: "", 1: "", 2: ""}
        chunks = self.chunks(**fields)
        for chunk in chunks:
            (choice,) = chunk.choices
            streamed[choice.index] += choice.text
        self.assertEqual((streamed, len(chunks)), (texts, 48))
        self.assertEqual(sorted(c.choices[0].index for c in chunks if c.choices[0].finish_reason), [0, 1, 2])
        big = 2 ** 63 - 1
        self.assertEqual(self.complete(temperature=1.0, seed=big).choices[0].text,
                         self.complete(temperature=1.0, seed=big).choices[0].text)
        self.complete(temperature=1.0, seed=-1)

    def test_stop(self):
        whole = self.complete(max_tokens=30).choices[0].text
        stop = whole[8:12]
        expected = whole[:whole.index(stop)]
        for value in (stop, ["\u2603", stop]):
            choice = self.complete(max_tokens=30, stop=value).choices[0]
            self.assertEqual((choice.text, choice.finish_reason), (expected, "stop"))
            self.assertEqual(choice.stop_reason, stop)
        kept = self.complete(max_tokens=30, stop=stop, include_stop_str_in_output=True).choices[0]
        self.assertEqual(kept.text, expected + stop)
        chunks = self.chunks(max_tokens=30, stop=stop, stream_options={"include_usage": True})
        self.assertEqual("".join(c.choices[0].text for c in chunks[:-1]), expected)
        self.assertEqual(chunks[-2].choices[0].finish_reason, "stop")
        self.assertEqual(chunks[-2].choices[0].stop_reason, stop)
        self.assertEqual(len(chunks) - 1, chunks[-1].usage.completion_tokens)

    def test_stop_token_ids(self):
        r = self.complete(max_tokens=20, ignore_eos=True, return_token_ids=True)
        ids = r.choices[0].token_ids
        self.assertEqual(len(ids), 20)
        stop = next(i for i in ids[5:] if i not in ids[:5])
        choice = self.complete(max_tokens=20, ignore_eos=True, stop_token_ids=[stop]).choices[0]
        self.assertEqual((choice.finish_reason, choice.stop_reason), ("stop", stop))
        never = self.complete(max_tokens=20, ignore_eos=True, logit_bias={str(stop): -100}, return_token_ids=True)
        self.assertNotIn(stop, never.choices[0].token_ids)
        forced = self.complete(max_tokens=5, logit_bias={"40": 100}, return_token_ids=True)
        self.assertEqual(forced.choices[0].token_ids, [40] * 5)

    def test_min_tokens(self):
        stopped = self.complete(max_tokens=20, logit_bias={"1023": 100})
        self.assertEqual(stopped.choices[0].finish_reason, "stop")
        r = self.complete(max_tokens=20, logit_bias={"1023": 100}, min_tokens=6)
        self.assertEqual(r.choices[0].finish_reason, "stop")
        self.assertGreaterEqual(r.usage.completion_tokens, 6)

    def test_echo(self):
        plain = self.complete(max_tokens=6)
        r = self.complete(max_tokens=6, echo=True)
        self.assertEqual(r.choices[0].text, ROMEO + plain.choices[0].text)
        self.assertEqual(r.usage.completion_tokens, 6)
        chunks = self.chunks(max_tokens=6, echo=True)
        self.assertEqual("".join(c.choices[0].text for c in chunks), r.choices[0].text)

    def test_echo_scores_a_prompt(self):
        ids = tokens(40, 1)
        r = self.complete(prompt=ids, max_tokens=0, echo=True, logprobs=2)
        (choice,) = r.choices
        self.assertEqual((r.usage.prompt_tokens, r.usage.completion_tokens), (40, 0))
        self.assertEqual(choice.finish_reason, "length")
        lp = choice.logprobs
        self.assertEqual([len(x) for x in (lp.tokens, lp.token_logprobs, lp.top_logprobs, lp.text_offset)], [40] * 4)
        self.assertIsNone(lp.token_logprobs[0])
        self.assertTrue(all(v <= 0 for v in lp.token_logprobs[1:]))
        # The last row but one predicts the first token that a completion generates.
        said = self.complete(prompt=ids[:39], max_tokens=1, logprobs=2).choices[0].logprobs
        self.assertAlmostEqual(max(lp.top_logprobs[39].values()), said.token_logprobs[0], places=4)
        both = self.complete(prompt=ids, max_tokens=3, echo=True, logprobs=2).choices[0].logprobs
        self.assertEqual(both.token_logprobs[:40], lp.token_logprobs)
        self.assertEqual(len(both.tokens), 43)
        self.refuses("max_tokens", max_tokens=0)

    def test_arrays(self):
        texts = [ROMEO, "The king", "Good morrow"]
        ids = [tokens(20, 2), tokens(33, 3)]
        for prompts in (texts, ids):
            alone = [self.complete(prompt=p).choices[0].text for p in prompts]
            r = self.complete(prompt=prompts)
            self.assertEqual([c.index for c in r.choices], list(range(len(prompts))))
            self.assertEqual([c.text for c in r.choices], alone)
            self.assertEqual(r.usage.completion_tokens, 12 * len(prompts))
        self.assertEqual(r.usage.prompt_tokens, 53)
        self.assertEqual(self.complete(prompt=ids[0]).choices[0].text, alone[0])
        two = self.complete(prompt=texts, n=2, temperature=1.0, seed=1)
        self.assertEqual([c.index for c in two.choices], list(range(6)))
        streamed = dict.fromkeys(range(3), "")
        for chunk in self.chunks(prompt=texts):
            streamed[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(list(streamed.values()), [self.complete(prompt=p).choices[0].text for p in texts])

    def test_cached_tokens(self):
        ids = tokens(200, 4)
        first, second = (self.complete(prompt=ids).usage for _ in range(2))
        self.assertEqual((first.prompt_tokens_details.cached_tokens if first.prompt_tokens_details else 0), 0)
        self.assertEqual(second.prompt_tokens_details.cached_tokens, 200 // PAGE * PAGE)
        salted = self.complete(prompt=ids, cache_salt="mine").usage
        self.assertEqual((salted.prompt_tokens_details.cached_tokens if salted.prompt_tokens_details else 0), 0)
        scored = self.complete(prompt=ids, echo=True, logprobs=0, max_tokens=1)
        self.assertEqual(len(scored.choices[0].logprobs.tokens), 201)
        self.assertEqual(scored.usage.prompt_tokens_details.cached_tokens
                         if scored.usage.prompt_tokens_details else 0, 0)

    def test_token_ids(self):
        r = self.complete(max_tokens=5, return_token_ids=True)
        choice = r.choices[0]
        self.assertEqual(len(choice.token_ids), 5)
        self.assertEqual(len(choice.prompt_token_ids), r.usage.prompt_tokens)
        chunks = self.chunks(max_tokens=5, return_token_ids=True)
        self.assertEqual([i for c in chunks for i in c.choices[0].token_ids], choice.token_ids)
        self.assertEqual(chunks[0].choices[0].prompt_token_ids, choice.prompt_token_ids)
        same = self.complete(prompt=choice.prompt_token_ids, max_tokens=5)
        self.assertEqual(same.choices[0].text, choice.text)

    def test_whole_characters(self):
        """Streamed text consists of whole characters, whatever the tokens are."""
        for seed in range(4):
            fields = {"prompt": "caf\u00e9 \U0001f600 \u4f60\u597d", "temperature": 3.0, "seed": seed,
                      "max_tokens": 60, "ignore_eos": True}
            whole = self.complete(**fields).choices[0].text
            self.assertEqual("".join(c.choices[0].text for c in self.chunks(**fields)), whole)

    def test_retention(self):
        ids = tokens(1000, 5)
        retention = {"method": "chunkkv", "ratio": 0.25}
        r = self.complete(prompt=ids, retention=retention, ignore_eos=True, max_tokens=10)
        report = r.choices[0].retention
        self.assertEqual((report["method"], report["logical_tokens"]), ("chunkkv", 1009))
        self.assertEqual(report["kept_tokens"], 14 * PAGE + 8 + 9) # floor(0.25 * 1000) in pages
        self.assertGreater(report["pages_dropped"], 0)
        chunks = self.chunks(prompt=ids, retention=retention, ignore_eos=True, max_tokens=10)
        (said,) = [c.choices[0].retention for c in chunks if getattr(c.choices[0], "retention", None)]
        self.assertIsNotNone(chunks[-1].choices[0].finish_reason)
        self.assertEqual(said["kept_tokens"], report["kept_tokens"])
        self.assertFalse(hasattr(self.complete(prompt=ids).choices[0], "retention"))
        positions = self.complete(prompt=ids, retention={**retention, "report": "positions"}).choices[0]
        self.assertTrue(positions.retention["kept"])

    def test_refusals(self):
        self.assertEqual(self.refuses("bananas", bananas=1)["type"], "BadRequestError")
        for name, value in (("best_of", 0), ("suffix", "x"), ("guided_json", 5), ("use_beam_search", True),
                            ("response_format", {"type": "xml"}), ("structured_outputs", {}),
                            ("truncate_prompt_tokens", 0), ("top_logprobs", 2)):
            with self.subTest(name=name):
                self.refuses(name, **{name: value})
        for name, value in (("temperature", -1.0), ("top_p", 0), ("top_p", 1.5), ("n", 0), ("n", 100000),
                            ("logprobs", -2), ("max_tokens", -1), ("max_tokens", "many"), ("stop", 5),
                            ("stop", ["x"] * 100), ("seed", 1.5), ("top_k", "x"), ("min_p", 2.0),
                            ("presence_penalty", "x"), ("repetition_penalty", -1.0), ("echo", "yes"),
                            ("logit_bias", {"x": 1}), ("logit_bias", {"5": 1000}), ("logit_bias", {"5000": 1}),
                            ("priority", "high"), ("ignore_eos", 1), ("stop_token_ids", ["x"]),
                            ("prompt", 5), ("prompt", []), ("prompt", [1, "x"]), ("prompt", [[]]),
                            ("prompt", [5000]), ("prompt", [-1]), ("return_token_ids", "x"),
                            ("retention", {"method": "bananas"}), ("retention", 5),
                            ("retention", {"method": "chunkkv", "ratio": 2}),
                            ("retention", {"method": "chunkkv", "ratio": 0.5, "bananas": 1})):
            with self.subTest(name=name, value=value):
                body = self.refuses(name, **{name: value})
                self.assertEqual(body["type"], "BadRequestError")
        self.assertIn("bananas", self.refuses("bananas", retention={"method": "chunkkv", "ratio": .5, "bananas": 1})
                      ["message"])
        self.refuses("stream_options", stream_options={"include_usage": True})
        for prompt, place in (([1, 5000], "prompt[1]"), ([[1], [2, 5000]], "prompt[1][1]"), (["x", ""], "prompt[1]")):
            self.assertEqual(self.refuses(f"{place}: ", prompt=prompt)["param"], place)

    def test_too_long(self):
        for fields in ({"prompt": tokens(CONTEXT + 1, 6)}, {"prompt": tokens(CONTEXT, 6)},
                       {"prompt": tokens(100, 6), "max_tokens": CONTEXT}):
            body = self.refuses(str(CONTEXT), **fields)
            self.assertEqual((body["type"], body["param"], body["code"]), ("BadRequestError", "input_tokens", "context_length_exceeded"))
            self.assertEqual("max_tokens" in body["message"], "max_tokens" in fields)
            self.assertIn(str(len(fields["prompt"])), body["message"])
        self.refuses(f"prompt[1]: {CONTEXT + 1} tokens", prompt=[tokens(5, 6), tokens(CONTEXT + 1, 6)])
        fits = self.complete(prompt=tokens(CONTEXT - 8, 6), max_tokens=8, ignore_eos=True)
        self.assertEqual(fits.usage.total_tokens, CONTEXT)


class Progress(OpenAITest):
    def told(self, ask):
        """What ask(prompt) gives and how many tokens the prompt has, once its progress is told. A
        prompt whose steps are over before the server looks at the stream has none to tell."""
        for seed in range(50):
            prompt = tokens(3000, 100 + seed)
            answer = ask(prompt)
            if any("octavo.progress" in str(part) or getattr(part, "progress", None) for part in answer):
                return answer, len(prompt)
        self.fail("no prompt of 3,000 tokens had progress")

    def check(self, told, n):
        self.assertTrue(all(p["phase"] == "prefill" and p["total_tokens"] == n and p["index"] == 0 for p in told))
        computed = [p["computed_tokens"] for p in told]
        self.assertEqual(computed, sorted(set(computed)))
        self.assertTrue(0 < computed[0] and computed[-1] < n, computed)

    def test_client(self):
        chunks, n = self.told(lambda prompt: self.chunks(prompt=prompt, max_tokens=3, ignore_eos=True, progress=True))
        told = [c.progress for c in chunks if getattr(c, "progress", None)]
        self.check(told, n)
        self.assertTrue(all(c.choices == [] for c in chunks[:len(told)]))
        self.assertEqual(len([c for c in chunks[len(told):] if c.choices]), 3)

    def test_events(self):
        def ask(prompt):
            body = {"prompt": prompt, "max_tokens": 3, "ignore_eos": True, "stream": True, "progress": True}
            return self.server.request("POST", "/v1/completions", body)[2].split("\n\n")

        frames, n = self.told(ask)
        named = [f for f in frames if f.startswith("event: octavo.progress\ndata: ")]
        self.check([json.loads(f.split("data: ", 1)[1])["progress"] for f in named], n)
        self.assertEqual(frames[:len(named)], named)
        self.assertEqual(sum(f.startswith("data: {") for f in frames), 3)

    def test_not_asked_for(self):
        self.assertFalse(any(getattr(c, "progress", None) for c in self.chunks(prompt=tokens(3000, 7))))
        self.refuses("progress", progress=True)


class Embeddings(OpenAITest):
    def vectors(self, texts, **more):
        answer = self.client.embeddings.create(model=self.model, input=texts, **more)
        self.assertEqual([d.index for d in answer.data], list(range(len(answer.data))))
        return [d.embedding for d in answer.data]

    def test_client(self):
        texts = [ROMEO, "x", "At dawn the ships sail."]
        whole = self.vectors(texts) # in base64, which the client asks for and decodes
        for text, vector in zip(texts, whole):
            self.assertAlmostEqual(sum(x * x for x in vector), 1, places=5)
            ids = self.server.post("/tokenize", {"prompt": text})["tokens"]
            for same in (text, ids):
                (alone,) = self.vectors(same, encoding_format="float")
                self.assertLess(max(abs(a - b) for a, b in zip(alone, vector)), 1e-4)
        mean = self.vectors(texts, extra_body={"pooling": "mean"})
        self.assertNotEqual(mean[0], whole[0])
        self.assertEqual(mean[0], self.vectors(texts[0], extra_body={"pooling": "mean"})[0])
        usage = self.client.embeddings.create(model=self.model, input=[[1, 2, 3], [4]]).usage
        self.assertEqual((usage.prompt_tokens, usage.total_tokens), (4, 4))

    def test_refusals(self):
        for body, param in (({}, "input"), ({"input": []}, "input"),
                            ({"input": tokens(CONTEXT + 1, 6)}, "input_tokens"), ({"input": ["x", ""]}, "input[1]"),
                            ({"input": [[1], [5000]]}, "input[1]"), ({"input": "x", "dimensions": 4}, "dimensions")):
            self.assertEqual(self.server.refused("/v1/embeddings", body)["param"], param, body.keys())


class Async(OpenAITest):
    def test_async(self):
        expected = {seed: self.complete(max_tokens=20, temperature=1.0, seed=seed).choices[0].text
                    for seed in range(8)}

        async def whole(client, seed):
            r = await client.completions.create(model=self.model, prompt=ROMEO, max_tokens=20, temperature=1.0,
                                                seed=seed)
            return r.choices[0].text

        async def streamed(client, seed):
            stream = await client.completions.create(model=self.model, prompt=ROMEO, max_tokens=20,
                                                     temperature=1.0, seed=seed, stream=True)
            return "".join([c.choices[0].text async for c in stream])

        async def everything():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0,
                                          timeout=PATIENCE) as client:
                for ask in (whole, streamed):
                    texts = await asyncio.gather(*(ask(client, seed) for seed in expected))
                    self.assertEqual(dict(zip(expected, texts)), expected)
                stream = await client.completions.create(model=self.model, prompt=ROMEO, max_tokens=4000, stream=True,
                                                         extra_body={"ignore_eos": True})
                async for _ in stream:
                    break
                await stream.close() # the client closes early

        asyncio.run(everything())
        self.server.idle()


if __name__ == "__main__":
    main()
