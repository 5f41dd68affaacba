#!/usr/bin/env python3
"""LiteLLM's provider for servers with OpenAI's routes, and its provider for vLLM: completions,
streams, tools, response_format, and a context overflow that it recognises.
usage: agent_litellm.py OCTAVO [unittest arguments]"""

import json
import os
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # the list of prices is not fetched

from harness import main, need  # noqa: E402

litellm = need("litellm", venv="agents")

from agents import LONG, Place, demo, scripted  # noqa: E402

TOOL = {"type": "function", "function": {"name": "weather", "description": "How warm it is.", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Rome", "Bonn"]}}, "required": ["city"],
    "additionalProperties": False}}}


class LiteLLM(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server, cls.url = demo()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def ask(self, text, url=None, provider="openai", **more):
        return litellm.completion(
            model=f"{provider}/demo", api_base=url or self.url, api_key="none", max_retries=0,
            messages=[{"role": "user", "content": text}], **{"max_tokens": 300, "temperature": 0, "seed": 1, **more})

    def test_completion(self):
        for provider in ("openai", "hosted_vllm"):
            with self.subTest(provider=provider):
                answer = self.ask("Hello", provider=provider, max_tokens=8)
                text = answer.choices[0].message.content
                self.assertTrue(text)
                self.assertEqual(answer.usage.completion_tokens, 8)
                parts = list(self.ask("Hello", provider=provider, max_tokens=8, stream=True,
                                      stream_options={"include_usage": True}))
                self.assertEqual("".join(p.choices[0].delta.content or "" for p in parts if p.choices), text)
                self.assertEqual([p.usage.completion_tokens for p in parts if getattr(p, "usage", None)], [8])
                self.assertIn("length", [p.choices[0].finish_reason for p in parts if p.choices])

    def test_text_completion(self):
        answer = litellm.text_completion(model="text-completion-openai/demo", prompt="Hello", max_tokens=4,
                                         api_base=self.url, api_key="none")
        self.assertEqual(answer.usage.completion_tokens, 4)

    def test_response_format(self):
        for provider in ("openai", "hosted_vllm"):
            with self.subTest(provider=provider):
                text = self.ask("Where to?", provider=provider, response_format=Place).choices[0].message.content
                Place.model_validate_json(text)

    def test_tools(self):
        choice = {"type": "function", "function": {"name": "weather"}}
        answer = self.ask("How warm is it?", tools=[TOOL], tool_choice=choice).choices[0]
        call = answer.message.tool_calls[0].function
        self.assertEqual(call.name, "weather")
        self.assertIn(json.loads(call.arguments)["city"], ("Rome", "Bonn"))
        with scripted() as model:
            url = model.server.url + "/v1"
            for provider in ("hosted_vllm", "openai"):
                whole = self.ask("#call", url, provider=provider, tools=[TOOL]).choices[0]
                self.assertEqual((whole.finish_reason, whole.message.content), ("tool_calls", "Let me look."))
            chunks = list(self.ask("#call", url, tools=[TOOL], stream=True))
            built = litellm.stream_chunk_builder(chunks).choices[0].message
            self.assertEqual([(c.function.name, json.loads(c.function.arguments)) for c in built.tool_calls],
                             [("weather", {"city": "Rome"})])
            end = litellm.completion(
                model="openai/demo", api_base=url, api_key="none", tools=[TOOL], temperature=0,
                messages=[{"role": "user", "content": "#call"}, whole.message.model_dump(),
                          {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id, "content": "#result"}])
            self.assertEqual(end.choices[0].message.content, "18 degrees")

    def test_errors(self):
        for provider in ("openai", "hosted_vllm"):
            with self.subTest(provider=provider), self.assertRaises(litellm.ContextWindowExceededError):
                self.ask(LONG, provider=provider)
        with self.assertRaises(litellm.BadRequestError):
            self.ask("Hello", temperature=-1)


if __name__ == "__main__":
    main()
