#!/usr/bin/env python3
"""/v1/messages as the anthropic client sees it, of a model that says what the test wants: blocks
whole and streamed, tools, thinking, counted tokens, errors, keys.
usage: anthropic_messages.py OCTAVO [unittest arguments]"""

import json
import unittest

from harness import main, need
from openai_tools import PARIS, Format

anthropic = need("anthropic")
pydantic = need("pydantic")

TOOLS = [{"name": name, "description": "x", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}}} for name in ("weather", "time")]
CHAT_TOOLS = [{"type": "function", "function": {"name": t["name"], "description": "x", "parameters": t["input_schema"]}}
              for t in TOOLS]
SCRIPTS = {"#think": ["<think>", "\nI add ", "1 and 1.", "\n</think>\n", "\nIt is", " two."], "#result": ["18 ", "degrees"]}
KEY = "key-of-alice"


class Word(pydantic.BaseModel):
    model_config = {"extra": "forbid"}
    yes: bool


class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.format = Format("hermes", "--reasoning-parser", "qwen3", "--api-key", KEY, key=KEY, more=SCRIPTS)
        cls.addClassCleanup(cls.format.__exit__, None, None, None)
        cls.server, cls.model = cls.format.server, cls.format.model
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key=KEY, max_retries=0)

    def fields(self, text, **more):
        messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
        return {"model": self.model, "messages": messages, "max_tokens": 200,
                **({} if "extra_body" in more else {"extra_body": {"temperature": 0}}), **more}

    def ask(self, text, **more):
        return self.client.messages.create(**self.fields(text, **more))

    def prompt_tokens(self, messages, **more):
        return self.format.client.chat.completions.create(model=self.model, messages=messages, max_tokens=1,
                                                          **more).usage.prompt_tokens

    def refused(self, words, status=400, kind="invalid_request_error", **more):
        with self.assertRaises(anthropic.APIStatusError) as refused:
            self.ask(**{"text": "#plain", **more})
        self.assertEqual(refused.exception.status_code, status)
        body = refused.exception.body
        self.assertEqual((body["type"], body["error"]["type"]), ("error", kind))
        self.assertIn(words, body["error"]["message"])

    def test_text(self):
        answer = self.ask("#plain", system="Be short.", metadata={"user_id": "u"})
        self.assertEqual([(b.type, b.text) for b in answer.content], [("text", "It is warm.")])
        self.assertEqual((answer.stop_reason, answer.role, answer.type, answer.model),
                         ("end_turn", "assistant", "message", self.model))
        usage = answer.usage
        self.assertEqual(usage.input_tokens + usage.cache_read_input_tokens, self.prompt_tokens(
            [{"role": "system", "content": "Be short."}, {"role": "user", "content": "#plain"}]))
        cut = self.ask("#plain", max_tokens=1)
        self.assertEqual((cut.content[0].text, cut.stop_reason, cut.usage.output_tokens), ("It is ", "max_tokens", 1))
        stopped = self.ask("#plain", stop_sequences=["warm"])
        self.assertEqual((stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence),
                         ("It is ", "stop_sequence", "warm"))

    def test_streamed(self):
        for text, kinds in (("#plain", ["text"]), ("#think", ["thinking", "text"]),
                            ("#call", ["text", "tool_use", "tool_use"])):
            more = {"tools": TOOLS} if text == "#call" else {}
            whole = self.ask(text, **more)
            self.assertEqual([b.type for b in whole.content], kinds)
            events = list(self.ask(text, stream=True, **more))
            self.assertEqual(events[0].message.content, [])
            blocks = [(t, i) for i in range(len(kinds)) for t in
                      ("content_block_start", "content_block_delta", "content_block_stop")]
            self.assertEqual(list(dict.fromkeys((e.type, getattr(e, "index", None)) for e in events)),
                             [("message_start", None), *blocks, ("message_delta", None), ("message_stop", None)])
            with self.client.messages.stream(**self.fields(text, **more)) as stream:
                final = stream.get_final_message()
            for a, b in zip(final.content, whole.content, strict=True):
                self.assertEqual(a.model_dump(exclude={"id", "parsed_output"}), b.model_dump(exclude={"id"}))
            self.assertEqual(final.stop_reason, whole.stop_reason)
            self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_tools(self):
        answer = self.ask("#call", tools=TOOLS)
        calls = [b for b in answer.content if b.type == "tool_use"]
        self.assertEqual(([(c.name, c.input) for c in calls], answer.stop_reason),
                         ([("weather", PARIS), ("time", {})], "tool_use"))
        results = [{"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "one"}]},
                   {"type": "tool_result", "tool_use_id": calls[1].id, "content": "#result", "is_error": False}]
        messages = [{"role": "user", "content": "#call"},
                    {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in answer.content]},
                    {"role": "user", "content": results}]
        again = self.ask(messages, tools=TOOLS)
        self.assertEqual((again.content[0].text, again.stop_reason), ("18 degrees", "end_turn"))
        chat = [{"role": "user", "content": "#call"},
                {"role": "assistant", "content": "Let me look.", "tool_calls": [
                    {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.input)}}
                    for c in calls]},
                *({"role": "tool", "tool_call_id": c.id, "content": text} for c, text in zip(calls, ("one", "#result")))]
        expected = self.prompt_tokens(chat, tools=CHAT_TOOLS)
        self.assertEqual(again.usage.input_tokens + again.usage.cache_read_input_tokens, expected)
        count = self.client.messages.count_tokens(model=self.model, messages=messages, tools=TOOLS)
        self.assertEqual(count.input_tokens, expected)
        named = self.ask("#plain", tools=[{"name": "now", "input_schema": {
            "type": "object", "properties": {}, "additionalProperties": False}}], tool_choice={"type": "tool", "name": "now"})
        self.assertEqual([(b.type, b.name, b.input) for b in named.content], [("tool_use", "now", {})])
        one = self.ask("#call", tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        self.assertEqual([b.type for b in one.content], ["text", "tool_use"])
        self.assertIn("<tool_call>", self.ask("#call", tools=TOOLS, tool_choice={"type": "none"}).content[0].text)
        cut_short = self.ask("#call", tools=TOOLS, max_tokens=5)
        self.assertEqual((cut_short.content[1].input, cut_short.stop_reason), ({}, "max_tokens"))

    def test_thinking(self):
        answer = self.ask("#think", thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1500)
        self.assertEqual((answer.content[0].thinking, answer.content[1].text), ("I add 1 and 1.", "It is two."))
        messages = [{"role": "user", "content": "#think"},
                    {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in answer.content]},
                    {"role": "user", "content": "#plain"}]
        self.assertEqual(self.ask(messages).content[0].text, "It is warm.")

    def test_prefill(self):
        answer = self.ask([{"role": "user", "content": "x"}, {"role": "assistant", "content": "#plain"}])
        self.assertEqual(answer.content[0].text, "It is warm.")

    def test_parsed(self):
        answer = self.client.messages.parse(**self.fields("#plain", output_format=Word, extra_body={
            "temperature": 0, "logit_bias": {"220": -100, "197": -100, "198": -100}}))
        self.assertIsInstance(answer.parsed_output, Word)

    def test_other_fields(self):
        answer = self.ask("#plain", extra_body={"top_k": 1, "retention": {"method": "streaming", "ratio": 0.5}, "session": "s"})
        self.assertEqual((answer.retention["method"], answer.retention["session"]), ("streaming", "stored"))

    def test_refused(self):
        self.refused("messages[0].content[0]: the type 'image'", text=[{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": "http://x"}}]}])
        self.refused("tools[0]: the type 'web_search_20250305'", tools=[{"type": "web_search_20250305", "name": "web_search"}])
        self.refused("tools[0].input_schema: must be a schema of type", tool_choice={"type": "any"}, tools=[
            {"name": "f", "input_schema": {"type": "string"}}])
        self.refused("messages[0].role", text=[{"role": "system", "content": "x"}])
        self.refused("messages: the last message has no text", text=[{"role": "user", "content": "x"}, {
            "role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": ""}]}])
        self.refused("max_tokens: must be", max_tokens=0)
        self.refused("mcp_servers", extra_body={"mcp_servers": []})
        self.refused("unknown field 'stop'", extra_body={"stop": "x"})
        self.refused("stop_sequences", stop_sequences=["x"] * 17)
        self.refused("maximum context length", text="word " * 5000)
        self.refused("does not exist", 404, "not_found_error", model="other")
        with self.assertRaises(anthropic.AuthenticationError) as refused:
            anthropic.Anthropic(base_url=self.server.url, api_key="wrong", max_retries=0).messages.create(
                model=self.model, max_tokens=1, messages=[{"role": "user", "content": "x"}])
        self.assertEqual(refused.exception.body["error"]["type"], "authentication_error")
        by_token = anthropic.Anthropic(base_url=self.server.url, auth_token=KEY, max_retries=0)
        self.assertEqual(by_token.models.list().data[0].id, self.model)


if __name__ == "__main__":
    main()
