#!/usr/bin/env python3
"""Answers in a form: each field gives answers of its form, also several choices at once, streamed,
over ranks, and with so few pages that sequences are replayed; what cannot be kept is refused by
name. usage: http_structured.py OCTAVO [unittest arguments]"""

import json
import re
import threading
import unittest

from harness import MODEL, Server, main

SCHEMA = {"type": "object",
          "properties": {"name": {"type": "string", "maxLength": 9},
                         "age": {"type": "integer", "minimum": 3, "maximum": 120},
                         "kind": {"enum": ["a", "bb", None]}},
          "required": ["name", "age", "kind"], "additionalProperties": False}
COMPACT = {"json": SCHEMA, "disable_any_whitespace": True}


def fits(value):
    return (list(value) == ["name", "age", "kind"] and len(value["name"]) <= 9 and
            3 <= value["age"] <= 120 and value["kind"] in ("a", "bb", None))


def four_fit(text):
    return [fits(value) for value in json.loads(text)] == [True] * 4


class Structured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def complete(self, **fields):
        return self.server.post("/v1/completions", {"prompt": "The answer is", "max_tokens": 90, "seed": 4, "temperature": 1, **fields})

    def texts(self, **fields):
        choices = self.complete(**fields)["choices"]
        self.assertEqual({c["finish_reason"] for c in choices}, {"stop"})
        return [c["text"] for c in choices]

    def test_forms(self):
        for field, value, pattern in (
                ("guided_regex", "[0-9]{3}-[a-z]{2,4}", "[0-9]{3}-[a-z]{2,4}"),
                ("guided_choice", ["yes", "no", "not now"], "yes|no|not now"),
                ("structured_outputs", {"choice": ["x", "yy"]}, "x|yy"),
                ("grammar", 'root ::= "<" [ab]{2,9} ">"', "<[ab]{2,9}>"),
                ("guided_grammar", 'root ::= "k" | "(" root ")"', r"\(*k\)*")):
            with self.subTest(field=field):
                for text in self.texts(n=3, **{field: value}):
                    self.assertRegex(text, re.compile(f"^(?:{pattern})$"))

    def test_schemas(self):
        for text in self.texts(n=4, structured_outputs=COMPACT):
            self.assertTrue(fits(json.loads(text)), text)
        text = self.texts(guided_json=json.dumps({"const": "it"}))[0]
        self.assertEqual(text, '"it"')
        chat = self.server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "hi"}], "max_tokens": 90, "temperature": 0,
            "response_format": {"type": "json_schema", "json_schema": {
                "name": "it", "strict": True, "schema": {"enum": [True, "maybe"]}}}})
        self.assertIn(json.loads(chat["choices"][0]["message"]["content"]), (True, "maybe"))
        answer = self.complete(response_format={"type": "json_object"}, max_tokens=5)["choices"][0]
        self.assertEqual((answer["finish_reason"], answer["text"].lstrip()[0]), ("length", "{"))

    def test_streamed_and_with_logprobs(self):
        whole = self.complete(structured_outputs=COMPACT, logprobs=1)["choices"][0]
        self.assertTrue(all(p <= 0 for p in whole["logprobs"]["token_logprobs"]))
        body = {"prompt": "The answer is", "max_tokens": 90, "seed": 4, "temperature": 1,
                "structured_outputs": COMPACT}
        frames = self.server.stream("/v1/completions", body)
        self.assertEqual("".join(c["text"] for f in frames for c in f["choices"]), whole["text"])

    def test_forced_tokens(self):
        """Tokens that the form forces are not drawn: the answer is the one whose tokens are all
        drawn, since their logprobs are asked for."""
        schema = {"type": "object", "properties": {"magic_number": {"type": "integer", "maximum": 99},
                                                   "number": {"const": "one special magic number"},
                                                   "kind": {"enum": ["assistant", "wherefore art thou"]}},
                  "required": ["magic_number", "number", "kind"]}
        form = {"structured_outputs": {"json": schema, "disable_any_whitespace": True}}
        long = "word " * 60 + "The answer is"
        ids = self.complete(**form, return_token_ids=True)["choices"][0]["token_ids"]
        saved = names = 0
        for fields in ({}, {"repetition_penalty": 1.5, "frequency_penalty": 1}, {"temperature": 0},
                       {"max_tokens": 3}, {"stop_token_ids": ids[3:4]},
                       {"retention": {"method": "h2o", "tokens": 48}, "prompt": long},
                       {"retention": {"method": "snapkv", "ratio": 0.5}, "prompt": long},
                       {"retrieval": {"method": "quest", "second_block_count": 4}, "prompt": long}):
            with self.subTest(fields=fields):
                answers = []
                for extra in ({}, {"logprobs": 0}):
                    before = self.server.metric("forced_tokens_total")
                    names += 1
                    session = {} if "retrieval" in fields else {"session": f"forced {names}"}
                    got = [self.complete(**form, **extra, **session, **{**fields, **more})
                           for more in ({}, {"prompt": " And then", "seed": 9})]
                    forced = self.server.metric("forced_tokens_total") - before
                    self.assertEqual(forced > 0, not extra)
                    saved += forced
                    answers.append([(a["choices"][0]["text"], a["choices"][0]["finish_reason"],
                                     a["usage"]["completion_tokens"]) for a in got])
                self.assertEqual(*answers)
        self.assertGreater(saved, 50)

    def test_end_tokens(self):
        """The form's end is the answer's end, whatever min_tokens and ignore_eos say."""
        self.assertEqual(self.texts(guided_choice=["yes"], min_tokens=30, ignore_eos=True), ["yes"])

    def test_refusals(self):
        for name, value, words in (("guided_json", {"items": {"uniqueItems": True}}, "/items/uniqueItems"),
                                   ("guided_regex", "a(?=b)", "at byte 3"),
                                   ("grammar", "root ::= x", "no rule is named `x`"),
                                   ("response_format", {"type": "json_schema", "json_schema": {"schema": False}},
                                    "no text can satisfy it")):
            error = self.server.refused("/v1/completions", {"prompt": "x", name: value})
            self.assertIn(words, error["message"])
            self.assertIn(name, error["message"])

    def many(self, server, **fields):
        """Eight requests at once, half of them with penalties, for four values each; the answers by
        number."""
        answers = {}
        four = {**COMPACT, "json": {"type": "array", "items": SCHEMA, "minItems": 4, "maxItems": 4}}

        def ask(i):
            body = {"prompt": "word " * 40, "max_tokens": 300, "seed": i, "temperature": 1, "structured_outputs": four,
                    "repetition_penalty": 1 + i % 2 / 4, "frequency_penalty": i % 2, **fields}
            answers[i] = server.post("/v1/completions", body)["choices"][0]["text"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return answers

    def test_ranks_and_replays(self):
        alone = self.many(self.server)
        self.assertEqual(len(alone), 8)
        for text in alone.values():
            self.assertTrue(four_fit(text), text)
        self.assertEqual(self.many(self.server, logprobs=0), alone) # every token is drawn
        with Server("--tp", "2", "--workers", "threads") as ranks:
            together = self.many(ranks)
            self.assertTrue(all(four_fit(text) for text in together.values()))
        with Server("--tp", "2", "--workers", "local") as workers:
            self.assertEqual(self.many(workers), together)
            self.assertGreater(workers.metric("forced_tokens_total"), 0)
        with Server("--swap-memory", "0", model=["--model", MODEL, "--kv-memory", "1M"]) as small:
            self.assertEqual(self.many(small), alone)
            self.assertGreater(small.metric("num_preemptions_total"), 0)


if __name__ == "__main__":
    main()
