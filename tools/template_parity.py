#!/usr/bin/env python3
"""Renders the chat templates of a folder with jinja2, set up by Hugging Face transformers, on
random conversations.

    python3 tools/template_parity.py --conversations 100 --seed 1 --out parity.json FOLDER
    text_chat_template_test parity.json

Takes every *.jinja below FOLDER. The file has the form of tests/golden/templates, which
text_chat_template_test compares with the results of our interpreter for the same templates: output
for output, and refusal for refusal.
"""
import argparse
import json
import pathlib
import random

from make_template_goldens import NOW, render

WORDS = ["hello", "Wetter", "東京", "é", "😀", "<b>", "</think>", "<think>", "a\nb", "  ", "{\"a\": 1}", "'q'", "\"", "\\", "{{ x }}",
         "<|im_end|>", "[INST]", "\t", "1", "\u2028", "&", "end."]


class Conversations:
    def __init__(self, seed):
        self.r, self.wild = random.Random(seed), True

    def odd(self, p):
        """Messages that most templates refuse or no client sends: in one conversation of three."""
        return self.wild and self.r.random() < p

    def maybe(self, p=0.5):
        return self.r.random() < p

    def text(self):
        r = self.r
        if self.maybe(0.05):
            return ""
        return r.choice(["", "", " ", "\n"]) + " ".join(r.choice(WORDS) for _ in range(r.randrange(1, 7))) + r.choice(["", "", "\n", "  "])

    def value(self, depth=2):
        r = self.r
        k = r.randrange(8 if depth > 0 else 5)
        if k < 5:
            return [self.text(), r.randrange(-5, 10 ** 6), r.choice([0.5, -1.25, 1e20, 3.0]), r.choice([True, False]), None][k]
        if k == 5:
            return [self.value(depth - 1) for _ in range(r.randrange(3))]
        return {r.choice(["x", "y", "ort", "ключ", "a b"]): self.value(depth - 1) for _ in range(r.randrange(3))}

    def tool(self):
        r = self.r
        properties = {name: {k: v for k, v in (("type", r.choice(["string", "integer", ["string", "null"], "array", "object"])),
                                               ("description", self.text()), ("enum", ["a", "b"]), ("default", self.value(1)),
                                               ("items", {"type": "string"})) if self.maybe(0.7)}
                      for name in r.sample(["city", "unit", "count", "liste", "opt"], r.randrange(4))}
        function = {"name": r.choice(["get_weather", "rechne", "f", "brave_search"]), "description": self.text(),
                    "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]}}
        if self.maybe(0.1):
            del function["description"]
        if self.maybe(0.2):
            function["return"] = {"type": "string", "description": "r"}
        return {"type": "function", "function": function}

    def content(self):
        k = self.r.random()
        if k < 0.8:
            return self.text()
        if k < 0.9 and self.wild:
            return [{"type": "text", "text": self.text()} for _ in range(self.r.randrange(1, 4))]
        return None if k < 0.95 and self.wild else self.text()

    def call(self):
        r = self.r
        arguments = {k: self.value(1) for k in r.sample(["city", "n", "x"], r.randrange(3))}
        if self.maybe(0.3):
            arguments = json.dumps(arguments)
        call = {"type": "function", "function": {"name": r.choice(["get_weather", "f"]), "arguments": arguments}}
        if not self.odd(0.3):
            call["id"] = r.choice(["abcdefghi", "123456789", "call_1"][:3 if self.wild else 2])
        return call

    def assistant(self):
        m = {"role": "assistant", "content": self.content()}
        if self.maybe(0.35):
            m["tool_calls"] = [self.call() for _ in range(self.r.randrange(1, 3))]
            if self.maybe():
                m["content"] = self.r.choice(["", None])
            if m["content"] is None and self.maybe(0.3):
                del m["content"]
        if self.maybe(0.2):
            m[self.r.choice(["reasoning_content", "reasoning", "thinking"])] = self.text()
        return m

    def messages(self):
        r, out = self.r, []
        self.wild = self.maybe(0.33)
        if self.maybe(0.5):
            out.append({"role": "developer" if self.odd(0.3) else "system", "content": self.content() or ""})
        for turn in range(r.randrange(1, 5), 0, -1):
            out.append({"role": "user", "content": self.content() or ""})
            if self.odd(0.2):
                out.append({"role": r.choice(["user", "system", "other"]), "content": self.text()})
            if turn > 1 or self.maybe():
                out.append(self.assistant())
                for i, call in enumerate(out[-1].get("tool_calls", [])):
                    m = {"role": "ipython" if self.odd(0.3) else "tool", "content": self.value() if self.odd(0.3) else self.text()}
                    m.update({k: v for k, v in (("tool_call_id", call.get("id", "x")), ("name", "f")) if not self.odd(0.3)})
                    out.append(m)
                if out[-1]["role"] != "assistant" and not self.odd(0.5):
                    out.append({"role": "assistant", "content": self.text()})
        return out

    def variables(self):
        r = self.r
        v = {"messages": self.messages(), "add_generation_prompt": self.maybe(0.7), "bos_token": "<s>", "eos_token": "</s>"}
        if self.maybe(0.4):
            v["tools"] = [self.tool() for _ in range(r.randrange(1, 4))]
        for name, values in (("enable_thinking", [True, False]), ("thinking", [True, False]), ("tools_in_user_message", [True, False]),
                             ("date_string", ["26 Jul 2024"]), ("builtin_tools", [["brave_search"], ["code_interpreter"]]),
                             ("custom_tools", [[self.tool()]]), ("documents", [[{"title": "t", "text": "x"}]]),
                             ("reasoning_effort", ["low", "high"]), ("add_vision_id", [True])):
            if self.maybe(0.12):
                v[name] = r.choice(values)
        if self.maybe(0.5):  # for templates that are older than `tools`
            v.update(functions=json.dumps([self.tool()["function"]]), datetime="2024-07-26")
        return v


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    groups = []
    for path in sorted(args.folder.rglob("*.jinja")):
        make = Conversations(f"{args.seed} {path.name}")
        source, cases = path.read_text(), []
        while len(cases) < args.conversations:
            v = make.variables()
            r = render(source, v)
            if r is not None:
                cases.append({"vars": v, **r})
        groups.append({"name": path.name, "template": source, "cases": cases})
        refused = sum("error" in c for c in cases)
        print(f"{path.name}: {len(cases) - refused} rendered, {refused} refused")
    args.out.write_text(json.dumps({"now": NOW, "vars": {}, "groups": groups}, ensure_ascii=False))


if __name__ == "__main__":
    main()
