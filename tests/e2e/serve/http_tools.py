#!/usr/bin/env python3
"""Tools through /v1/chat/completions: the model's prompt is exactly what transformers renders.
usage: http_tools.py OCTAVO [unittest arguments]"""

import copy
import json
import os
import tempfile
import unittest

from harness import ROOT, Server, main

DEMO = os.path.join(ROOT, "models/demo")
GOLDENS = os.path.join(ROOT, "tests/golden/templates/formats.json")
FIELDS = {"messages", "tools", "bos_token", "eos_token", "add_generation_prompt"}


def group(name):
    with open(GOLDENS, encoding="utf-8") as f:
        return next(g for g in json.load(f)["groups"] if g["name"] == name)


def as_clients_send(messages):
    """The same messages with the arguments of tool calls as strings."""
    messages = copy.deepcopy(messages)
    for call in (c for m in messages for c in m.get("tool_calls") or []):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return messages


class Tools(unittest.TestCase):
    """The demo model with another template: a folder of links."""

    def serve(self, template):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name in os.listdir(DEMO):
            if name != "tokenizer_config.json":
                os.symlink(os.path.join(DEMO, name), os.path.join(folder.name, name))
        with open(os.path.join(DEMO, "tokenizer_config.json"), encoding="utf-8") as f:
            config = json.load(f)
        config.update(bos_token="<s>", eos_token="</s>", chat_template=template)
        with open(os.path.join(folder.name, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        return Server(model=["--model", folder.name, "--kv-memory", "64M"])

    def prompts_equal_goldens(self, name):
        made = group(name)
        calls = 0
        with self.serve(made["template"]) as server:
            for case in made["cases"]:
                given = case.get("vars", {})
                if not given.get("tools") or "output" not in case or set(given) - FIELDS or not given["add_generation_prompt"]:
                    continue
                body = {"messages": given["messages"], "tools": given["tools"], "max_tokens": 1, "return_token_ids": True}
                answer = server.post("/v1/chat/completions", body)
                ids = answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]
                self.assertEqual(server.post("/detokenize", {"tokens": ids})["prompt"], case["output"])
                self.assertEqual(server.post("/tokenize", {k: body[k] for k in ("messages", "tools")})["tokens"], ids)
                hidden = server.post("/tokenize", {"messages": body["messages"]})["tokens"]
                self.assertNotEqual(hidden, ids)
                texts = as_clients_send(given["messages"])
                calls += texts != given["messages"]
                self.assertEqual(server.post("/tokenize", {"messages": texts, "tools": body["tools"]})["tokens"], ids)
                none = server.post("/v1/chat/completions", {**body, "tool_choice": "none"})
                self.assertEqual(none["usage"]["prompt_tokens"], len(hidden))
        self.assertGreater(calls, 0)

    def test_qwen(self):
        self.prompts_equal_goldens("qwen25")

    def test_mistral(self):
        self.prompts_equal_goldens("mistral_v3")

    def test_a_template_that_ignores_tools_is_refused(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        with Server() as server:
            body = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None}],
                    "max_tokens": 1}
            server.post("/v1/chat/completions", body)
            for path in ("/v1/chat/completions", "/tokenize"):
                error = server.refused(path, {"messages": body["messages"], "tools": tools})
                self.assertEqual(error["param"], "tools")
                self.assertIn("chat template does not show them", error["message"])
            server.post("/v1/chat/completions", {**body, "tools": tools, "tool_choice": "none"})


if __name__ == "__main__":
    main()
