#!/usr/bin/env python3
"""Answers that are forced to tool calls, as the openai client sees them: the demo model, which
knows nothing of tools, gives valid calls alone.
usage: openai_tool_choice.py OCTAVO [unittest arguments]"""

import json
import os
import tempfile
import unittest

from harness import ROOT, Server, main, need

openai = need("openai")

DEMO = os.path.join(ROOT, "models/demo")
TEMPLATE = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
PLACE = {"type": "object", "properties": {"city": {"enum": ["Rome", "Bonn"]}, "days": {"$ref": "#/$defs/days"}},
         "required": ["city", "days"], "additionalProperties": False,
         "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 14}}}
NOTE = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 6}}, "required": ["text"],
        "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, **parameters}} for name, parameters in (
    ("weather", {"parameters": PLACE}), ("note", {"parameters": NOTE}), ("now", {}))]
NAMED = {"type": "function", "function": {"name": "weather"}}


def serve(parser, *flags):
    """The demo model with a template that shows tools."""
    with tempfile.TemporaryDirectory() as folder:
        for name in os.listdir(DEMO):
            if name != "tokenizer_config.json":
                os.symlink(os.path.join(DEMO, name), os.path.join(folder, name))
        with open(os.path.join(DEMO, "tokenizer_config.json"), encoding="utf-8") as f:
            config = json.load(f)
        config["chat_template"] = TEMPLATE
        with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        return Server("--tool-call-parser", parser, *flags, model=["--model", folder, "--kv-memory", "64M"])


def parts(message):
    return [(c.function.name, c.function.arguments) for c in message.tool_calls or []]


def streamed(chunks):
    """(content, [(name, arguments)], finish reason)."""
    content, calls, finish = "", [], None
    for chunk in chunks:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for c in choice.delta.tool_calls or []:
            if c.index == len(calls):
                calls.append((c.function.name, ""))
            calls[c.index] = (calls[c.index][0], calls[c.index][1] + c.function.arguments)
    return content, calls, finish


class Forced(unittest.TestCase):
    def valid(self, call):
        name, arguments = call[0], json.loads(call[1])
        if name == "weather":
            self.assertEqual(list(arguments), ["city", "days"])
            self.assertIn(arguments["city"], ("Rome", "Bonn"))
            self.assertIn(arguments["days"], range(1, 15))
        elif name == "note":
            self.assertEqual(list(arguments), ["text"])
            self.assertLessEqual(len(arguments["text"]), 6)
        else:
            self.assertEqual((name, arguments), ("now", {}))

    def check(self, parser):
        with serve(parser) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            model = client.models.list().data[0].id

            def ask(choice, **more):
                return client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "How warm is it?"}], tools=TOOLS,
                    tool_choice=choice, temperature=1, **{"max_tokens": 250, "seed": 1, **more})

            for choice in ask("required", n=4, parallel_tool_calls=False).choices:
                self.assertEqual((choice.finish_reason, choice.message.content, len(parts(choice.message))),
                                 ("tool_calls", None, 1))
                self.valid(parts(choice.message)[0])
            for choice in ask(NAMED, n=3).choices:
                self.assertEqual(choice.finish_reason, "tool_calls")
                self.assertEqual([name for name, _ in parts(choice.message)], ["weather"])
                self.valid(parts(choice.message)[0])
            content, calls, finish = streamed(ask(NAMED, stream=True, seed=5))
            self.assertEqual((content, len(calls), finish), ("", 1, "tool_calls"))
            self.valid(calls[0])
            # One call or more: whether the model comes to an end is its own affair.
            for choice in ask("required", n=3, max_tokens=150).choices:
                calls = parts(choice.message)
                self.assertTrue(calls)
                if choice.finish_reason == "length":
                    calls.pop()
                else:
                    self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", None))
                for call in calls:
                    self.valid(call)
            free = ask("auto", max_tokens=20).choices[0]
            self.assertFalse(free.message.tool_calls)
            odd = {"type": "object", "properties": {"a": {"uniqueItems": True}}}
            error = server.refused("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "x"}], "tool_choice": "required",
                "tools": [{"type": "function", "function": {"name": "f", "parameters": odd}}]})
            self.assertEqual(error["param"], "tool_choice")
            self.assertIn('f: "/properties/a/uniqueItems"', error["message"])

    def test_hermes(self):
        self.check("hermes")

    def test_llama3_json(self):
        self.check("llama3_json")

    def test_json(self):
        self.check("json")

    def test_a_parser_without_a_form(self):
        with serve("pythonic") as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            for choice in ("required", NAMED):
                with self.assertRaises(openai.BadRequestError) as refused:
                    client.chat.completions.create(model=client.models.list().data[0].id, tools=TOOLS, tool_choice=choice,
                                                   messages=[{"role": "user", "content": "x"}])
                self.assertEqual(refused.exception.param, "tool_choice")
                self.assertIn("pythonic", str(refused.exception))


if __name__ == "__main__":
    main()
