#!/usr/bin/env python3
"""Tool calls as the openai client sees them, whole and streamed, of a model that says what the test
wants in each format. usage: openai_tools.py OCTAVO [unittest arguments]"""

import json
import tempfile
import unittest

from harness import Server, main, need
from scripted import write_model

openai = need("openai")

TOOLS = [{"type": "function", "function": {"name": name, "description": "x", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}} for name in ("weather", "time")]
# The last message chooses what the model says.
TEMPLATE = ("{% if tools %}{{ tools | tojson }}{% endif %}{# MARK #}{% for m in messages %}{{ m.role }}: {{ m.content }}"
            "{% for c in m.tool_calls or [] %}{{ c.id }} {{ c.function | tojson }}{% endfor %}\n{% endfor %}"
            "{{ messages[-1].content }}")
PARIS = {"city": "Paris {}\n"}


FORMATS = {
    "hermes": ("<tool_call>", (), [
        "Let me", " look.", "<tool_call>", '\n{"name": "weather", "argu', 'ments": {"ci', 'ty": "Par', 'is {}\\n"}}',
        "\n</tool_call>\n", '<tool_call> {"name": "time"', ', "arguments": {}}\n</tool_', "call>"]),
    "llama3_json": ('"parameters": dictionary of argument name and its value', ("<|python_tag|>",), [
        "<|python_tag|>", '{"name": "wea', 'ther", "parameters": {"city": "Par', 'is {}\\n"}}', "; ",
        '{"name": "time", "parameters": {}}']),
    "mistral": ("[TOOL_CALLS]", ("[TOOL_CALLS]",), [
        "[TOOL_CALLS]", '[{"name": "weather", ', '"arguments": {"city": "Par', 'is {}\\n"}}, {"name": "ti',
        'me", "arguments": {}}]']),
    "deepseek": ("<｜tool▁calls▁begin｜>", ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"), [
        "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function", "<｜tool▁sep｜>", "weather\n```json\n",
        '{"city": "Par', 'is {}\\n"}\n```<｜tool▁call▁end｜>\n', "<｜tool▁call▁begin｜>time<｜tool▁sep｜>{}",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"]),
    "pythonic": ("[func_name1(params_name1=", (), ["[wea", "ther(city='Par", "is {}\\n'), ", "time()]"]),
    "json": (None, (), ['[{"name": "weather", "arguments": {"city": "Par', 'is {}\\n"}}, ', '{"name": "time"}]']),
}


class Format:
    """A server whose model calls tools in one format; the template tells it, or else the flag."""

    def __init__(self, name, *flags, more=None, key="none"):
        mark, special, pieces = FORMATS[name]
        self.folder = tempfile.TemporaryDirectory()
        scripts = {"#call": pieces, "#plain": ["It is ", "warm."], **(more or {})}
        write_model(self.folder.name, TEMPLATE.replace("MARK", mark or ""), scripts, special)
        flags = flags or (() if mark else ("--tool-call-parser", name))
        self.server = Server(*flags, model=["--model", self.folder.name, "--kv-memory", "16M"])
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key=key, max_retries=0)
        self.model = self.client.models.list().data[0].id

    def ask(self, text, **more):
        return self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": text}], temperature=0, **{"tools": TOOLS, **more})

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.server.__exit__(*what)
        self.folder.cleanup()


def told(calls_):
    return [(c.function.name, json.loads(c.function.arguments)) for c in calls_ or []]


def joined(chunks):
    """(content, calls, finish reason) of a streamed answer, joined as clients do."""
    content, found, finish = "", [], None
    for chunk in chunks:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for c in choice.delta.tool_calls or []:
            if c.index == len(found):
                found.append({"id": c.id, "name": c.function.name, "arguments": ""})
            found[c.index]["arguments"] += c.function.arguments or "" # none in smg's first delta
    return content, [(c["id"], c["name"], json.loads(c["arguments"])) for c in found], finish


class Tools(unittest.TestCase):
    def check(self, name, content=None):
        expected = [("weather", PARIS), ("time", {})]
        with Format(name) as f:
            answer = f.ask("#call").choices[0]
            self.assertEqual(told(answer.message.tool_calls), expected)
            self.assertEqual((answer.message.content, answer.finish_reason), (content, "tool_calls"))
            chunks = list(f.ask("#call", stream=True))
            text, found, finish = joined(chunks)
            self.assertEqual([c[1:] for c in found], expected)
            self.assertEqual((text, finish), (content or "", "tool_calls"))
            self.assertEqual(len({c[0] for c in found}), 2)
            plain = f.ask("#plain").choices[0]
            self.assertEqual((plain.message.content, plain.message.tool_calls, plain.finish_reason),
                             ("It is warm.", None, "stop"))
            self.assertEqual(joined(f.ask("#plain", stream=True)), ("It is warm.", [], "stop"))
            return answer, chunks

    def test_hermes(self):
        _, chunks = self.check("hermes", "Let me look.")
        # Arguments come as they are generated.
        pieces = [c.function.arguments for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
        self.assertEqual(pieces, ['{"ci', 'ty": "Par', 'is {}\\n"}', '{}'])

    def test_llama3_json(self):
        self.check("llama3_json")

    def test_mistral(self):
        answer, _ = self.check("mistral")
        for call in answer.message.tool_calls:
            self.assertRegex(call.id, r"^[0-9a-v]{9}$")

    def test_deepseek(self):
        self.check("deepseek")

    def test_pythonic(self):
        self.check("pythonic")

    def test_json(self):
        self.check("json")

    def test_what_a_request_asks_for(self):
        cut = ['<tool_call>{"name": "weather", "arguments": {"city": "', "~b", "~c", "~d"]
        odd = ["<tool_call>no ", "call</tool", "_call> so"]
        with Format("hermes", more={"#cut": cut, "#odd": odd}) as f:
            text = f.ask("#odd").choices[0]
            self.assertEqual((text.message.content, text.finish_reason), ("".join(odd), "stop"))
            self.assertEqual(joined(f.ask("#odd", stream=True)), ("".join(odd), [], "stop"))
            one = f.ask("#call", parallel_tool_calls=False).choices[0]
            self.assertEqual(told(one.message.tool_calls), [("weather", PARIS)])
            none = f.ask("#call", tool_choice="none").choices[0]
            self.assertIsNone(none.message.tool_calls)
            self.assertIn('<tool_call>', none.message.content)
            cut = f.ask("#cut", max_tokens=3).choices[0]
            self.assertEqual(cut.finish_reason, "length")
            self.assertEqual(cut.message.tool_calls[0].function.arguments, '{"city": "~b~c')
            two = f.ask("#call", n=2)
            ids = {c.id for choice in two.choices for c in choice.message.tool_calls}
            self.assertEqual(len(ids), 4)
            forced = f.ask("#plain", tool_choice={"type": "function", "function": {"name": "now"}}, tools=[
                {"type": "function", "function": {"name": "now"}}]).choices[0]
            self.assertEqual((told(forced.message.tool_calls), forced.message.content), ([("now", {})], None))

    def test_a_conversation_with_calls(self):
        with Format("hermes", more={"#result": ["18 ", "degrees"]}) as f:
            call = f.ask("#call").choices[0].message
            messages = [{"role": "user", "content": "#call"}, call.model_dump(exclude_none=True),
                        {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "#result"}]
            answer = f.client.chat.completions.create(model=f.model, messages=messages, tools=TOOLS, temperature=0)
            self.assertEqual(answer.choices[0].message.content, "18 degrees")
            messages[1]["content"] = None
            again = f.client.chat.completions.create(model=f.model, messages=messages, tools=TOOLS, temperature=0)
            self.assertEqual(again.choices[0].message.content, "18 degrees")
            messages[1]["tool_calls"][0]["function"]["arguments"] = "{"
            with self.assertRaises(openai.BadRequestError) as refused:
                f.client.chat.completions.create(model=f.model, messages=messages, tools=TOOLS)
            self.assertEqual(refused.exception.param, "messages[1].tool_calls[0].function.arguments")

    def test_flag(self):
        with Format("json", "--tool-call-parser", "none") as f:
            answer = f.ask("#call").choices[0]
            self.assertIsNone(answer.message.tool_calls)
            self.assertIn('"weather"', answer.message.content)
        with Format("json", "--tool-call-parser", "auto") as f:
            with self.assertRaises(openai.BadRequestError) as refused:
                f.ask("#call")
            self.assertIn("--tool-call-parser", str(refused.exception))
        with self.assertRaisesRegex(AssertionError, "--tool-call-parser: 'foo' is none of auto, none, deepseek"):
            Server("--tool-call-parser", "foo")


if __name__ == "__main__":
    main()
