#!/usr/bin/env python3
"""Reasoning, and what requests say about the chat template, as the openai client sees them.
usage: openai_reasoning.py OCTAVO [unittest arguments]"""

import tempfile
import unittest

from harness import Server, main, need
from scripted import write_model

openai = need("openai")

# The last message chooses what the model says.
TEMPLATE = ("{% if reasoning_effort is defined %}effort {{ reasoning_effort }}\n{% endif %}{% for d in documents or [] %}"
            "{{ d.text }}{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}{{ messages[-1].content }}"
            "{% if enable_thinking %}<think>{% elif false %}</think>{% endif %}{% endif %}")
SCRIPTS = {"#think": ["<think>", "\nI add ", "1 and 1.", "\n</think>\n", "\nIt is", " two."],
           "#plain": ["It is ", "warm."]}


class Reasoning(unittest.TestCase):
    FLAGS = []

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        write_model(cls.folder.name, TEMPLATE, SCRIPTS)
        cls.server = cls.serve("--trust-request-chat-template")
        cls.addClassCleanup(cls.server.stop)
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def serve(cls, *flags):
        return Server(*flags, model=["--model", cls.folder.name, "--kv-memory", "16M", "--served-model-name", "m"])

    def ask(self, text, client=None, **more):
        messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
        extra = {k: more.pop(k) for k in list(more) if k not in ("stream", "reasoning_effort", "max_tokens")}
        return (client or self.client).chat.completions.create(model="m", messages=messages, temperature=0,
                                                               extra_body=extra, **more)

    def told(self, *args, **more):
        message = self.ask(*args, **more).choices[0].message
        return getattr(message, "reasoning_content", None), message.content

    def refused(self, param, text, **more):
        with self.assertRaises(openai.BadRequestError) as refused:
            self.ask("#plain", **more)
        self.assertEqual(refused.exception.param, param)
        self.assertIn(text, str(refused.exception))

    def tokens(self, **body):
        text = [{"role": "user", "content": "#plain"}]
        return self.server.post("/detokenize", {"tokens": self.server.post(
            "/tokenize", {"messages": text, **body})["tokens"]})["prompt"]

    def test_whole_and_streamed(self):
        both = ("I add 1 and 1.", "It is two.")
        self.assertEqual(self.told("#think"), both)
        self.assertEqual(self.told("#plain", chat_template_kwargs={"enable_thinking": True}), both)
        self.assertEqual(self.told("#plain"), (None, "It is warm."))
        self.assertEqual(self.told("#think", include_reasoning=False), (None, "It is two."))
        self.assertEqual(self.told("#think", max_tokens=3), ("I add 1 and 1.", None))
        reasoning = content = ""
        for chunk in self.ask("#think", stream=True):
            delta = chunk.choices[0].delta
            self.assertFalse(content and getattr(delta, "reasoning_content", None))
            reasoning += getattr(delta, "reasoning_content", None) or ""
            content += delta.content or ""
        self.assertEqual((reasoning, content), both)

    def test_flag(self):
        with self.serve("--reasoning-parser", "none") as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            self.assertEqual(self.told("#think", client=client),
                             (None, "<think>\nI add 1 and 1.\n</think>\n\nIt is two."))
            error = server.refused("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "x"}], "chat_template": "x"})
            self.assertEqual(error["param"], "chat_template")
        with self.assertRaisesRegex(AssertionError, "--reasoning-parser: 'foo' is none of auto, none, qwen3"):
            self.serve("--reasoning-parser", "foo")

    def test_variables_of_the_template(self):
        self.assertEqual(self.tokens(chat_template_kwargs={"reasoning_effort": "low"})[:11], "effort low\n")
        self.assertEqual(self.tokens(reasoning_effort="high")[:12], "effort high\n")
        self.assertEqual(self.tokens(documents=[{"text": "Doc."}])[:4], "Doc.")
        self.assertEqual(self.ask("#plain", reasoning_effort="low").choices[0].message.content, "It is warm.")
        self.refused("chat_template_kwargs.foo", "no such variable", chat_template_kwargs={"foo": 1})
        for key in ("messages", "tools", "bos_token"):
            self.refused(f"chat_template_kwargs.{key}", "other fields", chat_template_kwargs={key: []})
        self.refused("chat_template_kwargs", "object", chat_template_kwargs=[1])
        self.refused("documents", "list", documents={"a": 1})
        with Server() as demo:
            for field, value in (("reasoning_effort", "low"), ("documents", [{"text": "x"}])):
                body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, field: value}
                self.assertEqual(demo.refused("/v1/chat/completions", body)["param"], field)
            demo.post("/v1/chat/completions", {**body, "documents": [], "reasoning_effort": "none"})

    def test_how_the_conversation_ends(self):
        self.assertTrue(self.tokens().endswith("#plain"))
        self.assertEqual(self.tokens(add_generation_prompt=False), "user: #plain<|im_end|>\n")
        begun = [{"role": "user", "content": "#plain"}, {"role": "assistant", "content": " It is "}]
        self.assertEqual(self.told(begun, continue_final_message=True, add_generation_prompt=False), (None, "warm."))
        begun[1]["content"] = "  "
        with self.assertRaises(openai.BadRequestError) as refused:
            self.ask(begun, continue_final_message=True)
        self.assertEqual(refused.exception.param, "continue_final_message")

    def test_a_template_of_the_request(self):
        own = "{{ messages[0].content }}"
        self.assertEqual(self.told("#plain", chat_template=own), (None, "It is warm."))
        self.assertEqual(self.tokens(chat_template=own + "!"), "#plain!")
        self.refused("chat_template", "nobody", chat_template="{{ x | nobody }}")
        self.refused("tools", "does not show them", chat_template=own, tools=[{"type": "function"}])


if __name__ == "__main__":
    main()
