#!/usr/bin/env python3
"""Fields of requests that vLLM has beside OpenAI's. usage: http_fields.py OCTAVO [unittest
arguments]"""

import json
import os

from harness import CONTEXT, MODEL, ROOT, ServeTest, main

PROMPT = "Good morrow to thee, gentle friend, and to thy house."
HELLO = [{"role": "user", "content": PROMPT}]


class Fields(ServeTest):
    def complete(self, **fields):
        return self.server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 6, "temperature": 0,
                                                    "ignore_eos": True, "return_token_ids": True, **fields})

    def test_tokens_by_their_ids(self):
        (choice,) = self.complete(logprobs=2, return_tokens_as_token_ids=True)["choices"]
        names = [f"token_id:{id}" for id in choice["token_ids"]]
        self.assertEqual(choice["logprobs"]["tokens"], names)
        for name, tops in zip(names, choice["logprobs"]["top_logprobs"]):
            self.assertIn(name, tops)
            self.assertTrue(all(top.startswith("token_id:") for top in tops), tops)
        (choice,) = self.server.post("/v1/chat/completions", {
            "messages": HELLO, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "return_token_ids": True,
            "return_tokens_as_token_ids": True})["choices"]
        self.assertEqual([p["token"] for p in choice["logprobs"]["content"]],
                         [f"token_id:{id}" for id in choice["token_ids"]])

    def test_request_id(self):
        chat = {"messages": HELLO, "max_tokens": 1}
        for path, body, stem in (("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, "cmpl-"),
                                 ("/v1/chat/completions", chat, "chatcmpl-")):
            body = json.dumps({**body, "request_id": "mine-7"})
            status, headers, text = self.server.request("POST", path, body)
            self.assertEqual((status, headers["x-request-id"], json.loads(text)["id"]),
                             (200, "mine-7", stem + "mine-7"))
            status, headers, text = self.server.request("POST", path, body, {"X-Request-Id": "header-8"})
            self.assertEqual((status, headers["x-request-id"], json.loads(text)["id"]),
                             (200, "header-8", stem + "header-8"))
        self.assertEqual(self.server.refused("/v1/completions", {"prompt": "x", "request_id": "a b"})["param"],
                         "request_id")

    def test_truncated_prompts(self):
        whole = self.complete(prompt_logprobs=0)
        ids = whole["choices"][0]["prompt_token_ids"]
        for n in (1, 5, len(ids), len(ids) + 9):
            answer = self.complete(truncate_prompt_tokens=n)
            self.assertEqual(answer["choices"][0]["prompt_token_ids"], ids[-n:])
            self.assertEqual(answer["usage"]["prompt_tokens"], min(n, len(ids)))
            same = self.complete(prompt=ids[-n:])
            self.assertEqual(answer["choices"][0]["text"], same["choices"][0]["text"])
        for long in (PROMPT * 2000, ids * 2000):
            self.assertIn("context length", self.server.refused("/v1/completions", {"prompt": long})["message"])
            answer = self.complete(prompt=long, truncate_prompt_tokens=-1, max_tokens=100)
            self.assertEqual(answer["usage"]["prompt_tokens"], CONTEXT - 100)
        chat = self.server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2,
                                                         "truncate_prompt_tokens": 3})
        self.assertEqual(chat["usage"]["prompt_tokens"], 3)

    def test_allowed_tokens(self):
        allowed = {5, 77, 300, 301, 640}
        for fields in ({}, {"temperature": 1, "seed": 3, "n": 3}, {"repetition_penalty": 1.9, "min_tokens": 4}):
            for choice in self.complete(max_tokens=40, allowed_token_ids=sorted(allowed), **fields)["choices"]:
                self.assertEqual(len(choice["token_ids"]), 40)
                self.assertLessEqual(set(choice["token_ids"]), allowed)
        (choice,) = self.complete(allowed_token_ids=[9, 9], logprobs=0)["choices"]
        self.assertEqual(choice["token_ids"], [9] * 6)
        self.assertEqual(choice["logprobs"]["token_logprobs"], [0] * 6)
        # The end token ends the answer where it is listed, and cannot be the only one too early.
        end = self.server.post("/tokenize", {"prompt": "<|im_end|>"})["tokens"]
        ended = {"allowed_token_ids": end, "ignore_eos": False}
        self.assertEqual(self.complete(**ended)["choices"][0]["finish_reason"], "stop")
        self.assertIn("min_tokens", self.server.refused("/v1/completions", {"prompt": "x", "min_tokens": 2, **ended})["message"])
        for value, word in (([], "1 to"), ([1024], "outside"), ([-1], "token id"), ("x", "list"), ([1] * 1025, "1 to")):
            error = self.server.refused("/v1/completions", {"prompt": "x", "allowed_token_ids": value})
            self.assertIn("allowed_token_ids", error["message"])
            self.assertIn(word, error["message"])
        error = self.server.refused("/v1/completions", {"prompt": "x", "allowed_token_ids": [5], "guided_regex": "a+"})
        self.assertIn("guided_regex", error["message"])

    def test_bad_words(self):
        """A text's last token is not drawn where the answer ends with the tokens before it."""
        def ids(text):
            return self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

        def lists(word):
            bare, behind_blank = ids(word.lstrip()), ids(" " + word.lstrip())
            same = len(bare) != len(behind_blank) or bare[0] == behind_blank[0]
            return [bare] if same else [bare, behind_blank]

        for fields in ({}, {"temperature": 1.3, "seed": 3, "n": 3}):
            free = self.complete(max_tokens=40, **fields)["choices"]
            for length in (1, 2, 4):
                text = self.server.post("/detokenize", {"tokens": free[0]["token_ids"][5:5 + length]})["prompt"]
                bad = [text.strip() or text, "king", "unlikely words"]
                banned = [b for word in bad for b in lists(word)]
                for choice in self.complete(max_tokens=40, bad_words=bad, **fields)["choices"]:
                    got = choice["token_ids"]
                    self.assertEqual(len(got), 40)
                    for b in banned:
                        self.assertNotIn(b, [got[i:i + len(b)] for i in range(len(got))])
        (choice,) = self.complete(bad_words=[])["choices"]
        self.assertEqual(choice["token_ids"], self.complete()["choices"][0]["token_ids"])
        # With a list, and with a form: "a" is the only text that is left.
        a, b = ids("a")[0], ids("b")[0]
        (choice,) = self.complete(allowed_token_ids=[a, b], bad_words=["b"])["choices"]
        self.assertEqual(choice["token_ids"], [a] * 6)
        form = {"guided_choice": ["aa", "b"], "bad_words": ["b"], "ignore_eos": False, "max_tokens": 9}
        self.assertEqual(self.complete(**form)["choices"][0]["text"], "aa")
        for value, word in ((["x"] * 513, "512"), ([""], "1 to 256"), (["x" * 257], "1 to 256"), ([7], "string"),
                            ("x", "list"), ([["x"]], "string")):
            error = self.server.refused("/v1/completions", {"prompt": "x", "bad_words": value})
            self.assertIn("bad_words", error["message"])
            self.assertIn(word, error["message"])
        left = {"allowed_token_ids": [a], "bad_words": ["a"]}
        self.assertIn("bad_words", self.server.refused("/v1/completions", {"prompt": "x", **left})["message"])

    def test_best_of(self):
        """The best choices by the mean of their logprobs, among those that n alone would give."""
        sampled = {"max_tokens": 9, "temperature": 1.2, "seed": 11, "logprobs": 0}

        def means(answer):
            return [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
                    for c in answer["choices"]]

        every = self.complete(n=6, prompt=[PROMPT, "O Romeo"], **sampled)
        best = self.complete(n=2, best_of=6, prompt=[PROMPT, "O Romeo"], **sampled)
        self.assertEqual([c["index"] for c in best["choices"]], [0, 1, 2, 3])
        for half in (0, 1):
            ranked = sorted(zip(means(every), (c["text"] for c in every["choices"]), range(12)), reverse=True)
            ranked = [r for r in ranked if r[2] // 6 == half][:2]
            got = list(zip(means(best), (c["text"] for c in best["choices"])))[2 * half:2 * half + 2]
            self.assertEqual([r[1] for r in ranked], [g[1] for g in got])
        self.assertEqual(best["usage"], every["usage"])
        bare = self.complete(n=2, best_of=6, prompt=[PROMPT, "O Romeo"], **{**sampled, "logprobs": None})
        self.assertEqual([c["text"] for c in bare["choices"]], [c["text"] for c in best["choices"]])
        self.assertIsNone(bare["choices"][0]["logprobs"])
        self.assertEqual(self.complete(best_of=1)["choices"], self.complete()["choices"])
        for fields in ({"best_of": 2, "n": 3}, {"best_of": 129}, {"best_of": "2"}, {"best_of": 0}, {"best_of": -1},
                       {"best_of": 3, "stream": True}, {"best_of": 1.5}):
            self.assertIn("best_of", self.server.refused("/v1/completions", {"prompt": "x", **fields})["message"])

    def test_tokenizer_info(self):
        status, _, text = self.server.get("/tokenizer_info")
        with open(os.path.join(ROOT, MODEL, "tokenizer_config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual(status, 200)
        self.assertEqual(json.loads(text), config)


if __name__ == "__main__":
    main()
