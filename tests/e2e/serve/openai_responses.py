#!/usr/bin/env python3
"""/v1/responses as the openai client sees it, of a model that says what the test wants: items whole
and streamed, tools, reasoning, parsed answers, conversations that the server keeps.
usage: openai_responses.py OCTAVO [unittest arguments]"""

import json
import unittest

from harness import ServeTest, main, need
from openai_tools import PARIS, Format

openai, pydantic = need("openai", "pydantic")

TOOLS = [{"type": "function", "name": name, "description": "x", "strict": False, "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}} for name in ("weather", "time")]
SCRIPTS = {"#think": ["<think>", "\nI add ", "1 and 1.", "\n</think>\n", "\nIt is", " two."], "#result": ["18 ", "degrees"]}


class Word(pydantic.BaseModel):
    model_config = {"extra": "forbid"}
    yes: bool


class Responses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.format = Format("hermes", "--reasoning-parser", "qwen3", "--responses-memory", "1M", more=SCRIPTS)
        cls.addClassCleanup(cls.format.__exit__, None, None, None)
        cls.client, cls.server = cls.format.client, cls.format.server

    def ask(self, text, **more):
        return self.client.responses.create(model=self.format.model, input=text, **{"temperature": 0, **more})

    def chat_tokens(self, *messages, **more):
        """The tokens of a chat's prompt."""
        messages = [{"role": role, "content": content, **rest} for role, content, *others in messages
                    for rest in (others or [{}])]
        return self.client.chat.completions.create(model=self.format.model, messages=messages, max_tokens=1,
                                                   **more).usage.prompt_tokens

    def refused(self, param, words, status=400, **more):
        with self.assertRaises(openai.APIStatusError) as refused:
            self.client.responses.create(**{"model": self.format.model, "input": "#plain", **more})
        self.assertEqual((refused.exception.status_code, refused.exception.param), (status, param))
        self.assertIn(words, str(refused.exception))

    def test_text(self):
        answer = self.ask("#plain", instructions="Be short.", metadata={"a": "b"}, max_output_tokens=50, user="u")
        self.assertEqual((answer.output_text, answer.status), ("It is warm.", "completed"))
        self.assertEqual([item.type for item in answer.output], ["message"])
        self.assertEqual((answer.metadata, answer.instructions, answer.max_output_tokens, answer.temperature),
                         ({"a": "b"}, "Be short.", 50, 0))
        self.assertEqual(answer.usage.input_tokens, self.chat_tokens(("system", "Be short."), ("user", "#plain")))
        self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
        cut = self.ask("#plain", max_output_tokens=1)
        self.assertEqual((cut.output_text, cut.status, cut.incomplete_details.reason),
                         ("It is ", "incomplete", "max_output_tokens"))

    def test_items(self):
        items = [{"role": "developer", "content": "Be"}, {"role": "system", "content": [
            {"type": "input_text", "text": "short"}]}, {"role": "user", "content": [
                {"type": "input_text", "text": "#a"}, {"type": "input_text", "text": "#b"}]},
                 {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
                 {"role": "user", "content": "#plain"}]
        answer = self.ask(items, instructions="now")
        self.assertEqual(answer.output_text, "It is warm.")
        self.assertEqual(answer.usage.input_tokens, self.chat_tokens(
            ("system", "now\nBe\nshort"), ("user", "#a\n#b"), ("assistant", "c"), ("user", "#plain")))

    def test_events(self):
        for text, tools in (("#plain", None), ("#think", None), ("#call", TOOLS)):
            more = {"tools": tools} if tools else {}
            whole = self.ask(text, **more)
            events = list(self.ask(text, stream=True, **more))
            self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
            self.assertEqual([e.type for e in events[:2]], ["response.created", "response.in_progress"])
            last = events[-1]
            self.assertEqual(last.type, "response.completed")

            def shown(items):
                return [item.model_dump(exclude={"id", "call_id"}) for item in items]

            self.assertEqual(shown(last.response.output), shown(whole.output))
            self.assertEqual([e.item.id for e in events if e.type == "response.output_item.done"],
                             [item.id for item in last.response.output])
            inner = {"message": ["response.content_part.added", "response.output_text.delta",
                                 "response.output_text.done", "response.content_part.done"],
                     "reasoning": ["response.content_part.added", "response.reasoning_text.delta",
                                   "response.reasoning_text.done", "response.content_part.done"],
                     "function_call": ["response.function_call_arguments.delta",
                                       "response.function_call_arguments.done"]}
            types = list(dict.fromkeys((e.output_index, e.type) for e in events[2:-1]))
            self.assertEqual(types, [(i, t) for i, item in enumerate(whole.output) for t in
                                     ["response.output_item.added", *inner[item.type], "response.output_item.done"]])

    def test_streamed(self):
        with self.client.responses.stream(model=self.format.model, input="#call", tools=TOOLS, temperature=0) as stream:
            deltas = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
            final = stream.get_final_response()
        self.assertEqual(deltas, ['{"ci', 'ty": "Par', 'is {}\\n"}', '{}'])
        self.assertEqual([item.type for item in final.output], ["message", "function_call", "function_call"])
        self.assertEqual(json.loads(final.output[1].arguments), PARIS)
        with self.client.responses.stream(model=self.format.model, input="#plain", max_output_tokens=1) as stream:
            self.assertEqual(list(stream)[-1].type, "response.incomplete")

    def test_tools(self):
        asked = [{"role": "user", "content": "#call"}]
        answer = self.ask(asked, tools=TOOLS, store=False)
        calls = [item for item in answer.output if item.type == "function_call"]
        self.assertEqual([(c.name, json.loads(c.arguments), c.status) for c in calls],
                         [("weather", PARIS, "completed"), ("time", {}, "completed")])
        self.assertEqual(len({c.call_id for c in calls}), 2)
        result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "#result"}
        items = asked + [item.model_dump(exclude_none=True) for item in answer.output] + [result]
        again = self.ask(items, tools=TOOLS)
        self.assertEqual(again.output_text, "18 degrees")
        self.assertEqual(again.usage.input_tokens, self.chat_tokens(
            ("user", "#call"), ("assistant", "Let me look.", {"tool_calls": [
                {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in calls]}),
            ("tool", "#result", {"tool_call_id": calls[0].call_id}), tools=[
                {"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in TOOLS]))
        forced = self.ask("#plain", tools=[{"type": "function", "name": "now", "parameters": None, "strict": False}],
                          tool_choice={"type": "function", "name": "now"})
        self.assertEqual([(item.type, item.name, item.arguments) for item in forced.output],
                         [("function_call", "now", "{}")])
        one = self.ask("#call", tools=TOOLS, parallel_tool_calls=False)
        self.assertEqual([item.type for item in one.output], ["message", "function_call"])
        self.assertIn("<tool_call>", self.ask("#call", tools=TOOLS, tool_choice="none").output_text)

    def test_reasoning(self):
        answer = self.ask("#think", store=False, include=["reasoning.encrypted_content"])
        self.assertEqual([item.type for item in answer.output], ["reasoning", "message"])
        self.assertEqual((answer.output[0].content[0].text, answer.output_text), ("I add 1 and 1.", "It is two."))
        self.assertEqual(answer.usage.output_tokens_details.reasoning_tokens, 3)
        items = [{"role": "user", "content": "#think"}, *(i.model_dump(exclude_none=True) for i in answer.output),
                 {"role": "user", "content": "#plain"}]
        self.assertEqual(self.ask(items).output_text, "It is warm.")
        self.refused("reasoning.effort", "no such variable", reasoning={"effort": "high"})

    def test_parsed(self):
        answer = self.client.responses.parse(model=self.format.model, input="#plain", text_format=Word, temperature=0,
                                             extra_body={"logit_bias": {"220": -100, "197": -100, "198": -100}})
        self.assertIsInstance(answer.output_parsed, Word)
        schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
        self.refused("text.format", "/uniqueItems", text={"format": {
            "type": "json_schema", "name": "x", "schema": schema}})

    def test_conversation(self):
        first = self.ask("#call", instructions="Be short.", tools=TOOLS)
        call = first.output[1]
        second = self.ask([{"type": "function_call_output", "call_id": call.call_id, "output": "#result"}],
                          previous_response_id=first.id)
        self.assertEqual((second.output_text, second.previous_response_id), ("18 degrees", first.id))
        third = self.ask("#plain", previous_response_id=second.id, stream=True)
        last = list(third)[-1].response
        # Instructions are the first request's alone; the rest of the conversation is in the prompt.
        calls = [{"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                 for c in first.output if c.type == "function_call"]
        self.assertEqual(last.usage.input_tokens, self.chat_tokens(
            ("user", "#call"), ("assistant", "Let me look.", {"tool_calls": calls}),
            ("tool", "#result", {"tool_call_id": call.call_id}), ("assistant", "18 degrees"), ("user", "#plain")))
        self.assertEqual(self.client.responses.retrieve(last.id).model_dump(), last.model_dump())
        # Another can go on from the same response.
        self.assertEqual(self.ask("#think", previous_response_id=second.id).output_text, "It is two.")
        self.client.responses.delete(second.id)
        for gone in (second.id, last.id):
            self.refused("previous_response_id", "there is no response", previous_response_id=gone)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(second.id)
        self.assertEqual(self.ask("#plain", previous_response_id=first.id).output_text, "It is warm.")

    def test_not_stored(self):
        answer = self.ask("#plain", store=False)
        self.assertFalse(answer.store)
        self.refused("previous_response_id", "there is no response", previous_response_id=answer.id)
        # The oldest make room: each of these takes two thirds of the memory.
        kept = [self.ask([{"role": "user", "content": "#plain"}], user="x" * 700000) for _ in range(2)]
        self.refused("previous_response_id", "there is no response", previous_response_id=kept[0].id)
        self.assertEqual(self.ask("#plain", previous_response_id=kept[1].id).output_text, "It is warm.")

    def test_refused(self):
        self.refused("background", "background", background=True)
        self.refused("tools[0]", "'web_search'", tools=[{"type": "web_search"}])
        self.refused("input[0].content[0]", "'input_image'", input=[{"role": "user", "content": [
            {"type": "input_image", "image_url": "http://x"}]}])
        self.refused("input[1]", "'item_reference'", input=[{"role": "user", "content": ""},
                                                            {"type": "item_reference", "id": "x"}])
        self.refused("input", "must be given", input=openai.omit)
        self.refused("conversation", "previous_response_id", conversation="c")
        self.refused("max_output_tokens", "1 or more", max_output_tokens=0)
        self.refused("n", "unknown field", extra_body={"n": 2})
        self.refused("include[0]", "message.output_text.logprobs", include=["message.output_text.logprobs"])
        self.refused("tools[0].parameters", "object", tool_choice="required", tools=[
            {"type": "function", "name": "f", "parameters": {"type": "string"}, "strict": True}])
        self.refused("input_tokens", "maximum context length", input="word " * 5000)
        self.refused("model", "does not exist", status=404, model="other")


class Retention(ServeTest):
    FLAGS = ["--served-model-name", "m"]

    def test_session(self):
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)
        retention = {"method": "chunkkv", "ratio": 0.5}
        first = client.responses.create(model="m", input="O Romeo, Romeo! " * 40, max_output_tokens=8,
                                        extra_body={"retention": retention})
        self.assertEqual((first.retention["method"], first.retention["session"]), ("chunkkv", "stored"))
        self.assertLess(first.retention["kept_tokens"], first.retention["logical_tokens"])
        second = client.responses.create(model="m", input="Wherefore?", max_output_tokens=8,
                                         previous_response_id=first.id, extra_body={"retention": retention})
        self.assertEqual(second.retention["session"], "continued")
        plain = client.responses.create(model="m", input="O Romeo", max_output_tokens=4)
        self.assertFalse(hasattr(plain, "retention"))


if __name__ == "__main__":
    main()
