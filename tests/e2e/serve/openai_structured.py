#!/usr/bin/env python3
"""Structured answers as the openai client asks for them: chat.completions.parse with a pydantic
class, whole, streamed and several at once, JSON mode, and vLLM's fields in extra_body.
usage: openai_structured.py OCTAVO [unittest arguments]"""

import enum
import json
import os
import unittest
from typing import Literal, Optional

from harness import MODEL, Server, main, need

openai = need("openai")
pydantic = need("pydantic")

SPACES = "ĠĊĉ"  # as the vocabulary writes a space, a line feed and a tab


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Part(pydantic.BaseModel):
    model_config = {"extra": "forbid"}
    name: Literal["bolt", "nut", "a \"washer\" é"]
    size: Optional[int] = pydantic.Field(ge=-5, le=99)
    colour: Colour


class Order(pydantic.BaseModel):
    id: str = pydantic.Field(pattern="^[A-Z]{2}-[0-9]{3}$")
    parts: list[Part] = pydantic.Field(min_length=1, max_length=2)
    paid: bool


class Structured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)
        cls.model = cls.client.models.list().data[0].id
        # The demo model knows no JSON: white space, which the form allows in any number, would
        # fill its answers.
        with open(os.path.join(MODEL, "tokenizer.json"), encoding="utf-8") as file:
            tokens = json.load(file)["model"]["vocab"]
        cls.bias = {str(i): -100 for token, i in tokens.items() if not token.strip(SPACES)}

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def fields(self, **more):
        return {"model": self.model, "messages": [{"role": "user", "content": "An order"}],
                "max_tokens": 300, "temperature": 1, "seed": 7, "logit_bias": self.bias, **more}

    def test_parse(self):
        answer = self.client.chat.completions.parse(response_format=Order, n=3, **self.fields())
        self.assertEqual(len(answer.choices), 3)
        for choice in answer.choices:
            self.assertEqual(choice.finish_reason, "stop")
            self.assertIsInstance(choice.message.parsed, Order)
            self.assertIsNone(choice.message.refusal)

    def test_streamed(self):
        with self.client.chat.completions.stream(response_format=Order, **self.fields()) as stream:
            deltas = "".join(e.delta for e in stream if e.type == "content.delta")
            message = stream.get_final_completion().choices[0].message
        self.assertEqual(deltas, message.content)
        self.assertEqual(message.parsed, Order.model_validate_json(message.content))

    def test_cut_short(self):
        with self.assertRaises(openai.LengthFinishReasonError):
            self.client.chat.completions.parse(response_format=Order, **self.fields(max_tokens=3))

    def test_other_fields(self):
        create = self.client.chat.completions.create
        text = create(extra_body={"guided_choice": ["yes", "no"]}, **self.fields()).choices[0]
        self.assertIn(text.message.content, ("yes", "no"))
        text = create(extra_body={"structured_outputs": {"regex": "[0-9]{4}"}}, **self.fields())
        self.assertRegex(text.choices[0].message.content, "^[0-9]{4}$")
        text = create(response_format={"type": "json_object"}, **self.fields(max_tokens=4))
        self.assertEqual(text.choices[0].message.content[0], "{")

    def test_refused(self):
        schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client.chat.completions.create(response_format=form, **self.fields())
        self.assertIn("/uniqueItems", raised.exception.message)


if __name__ == "__main__":
    main()
