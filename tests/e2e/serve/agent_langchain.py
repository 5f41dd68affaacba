#!/usr/bin/env python3
"""LangChain's ChatOpenAI: structured output by its three methods, tools, streamed chunks of calls,
and a context overflow that it recognises. usage: agent_langchain.py OCTAVO [unittest arguments]"""

import unittest

from harness import main, need

chat_models = need("langchain_openai", venv="agents")

from agents import LONG, Place, demo, scripted  # noqa: E402

core = need("langchain_core.messages")
tools = need("langchain_core.tools")
exceptions = need("langchain_core.exceptions")


@tools.tool
def weather(city: str) -> str:
    """Tells how warm a city is."""
    return f"#result of {city}"


class LangChain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server, cls.url = demo()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def chat(self, url=None, **more):
        return chat_models.ChatOpenAI(base_url=url or self.url, api_key="none", model="demo",
                                      **{"max_tokens": 300, "temperature": 0, "seed": 1, "max_retries": 0, **more})

    def test_json_schema_and_function_calling(self):
        for method in ("json_schema", "function_calling"):
            for strict in (None, True):
                with self.subTest(method=method, strict=strict):
                    chain = self.chat().with_structured_output(Place, method=method, strict=strict, include_raw=True)
                    answer = chain.invoke("Where to, and how long?")
                    self.assertIsNone(answer["parsing_error"])
                    self.assertIsInstance(answer["parsed"], Place)

    def test_json_mode(self):
        with scripted() as model:
            chain = self.chat(model.server.url + "/v1").with_structured_output(Place, method="json_mode")
            self.assertEqual(chain.invoke("#place"), Place(city="Bonn", days=3))

    def test_bind_tools(self):
        with scripted() as model:
            bound = self.chat(model.server.url + "/v1", stream_usage=True).bind_tools([weather])
            said = bound.invoke("#call")
            self.assertEqual([(c["name"], c["args"]) for c in said.tool_calls], [("weather", {"city": "Rome"})])
            self.assertEqual((said.content, said.invalid_tool_calls), ("Let me look.", []))
            self.assertEqual(said.response_metadata["finish_reason"], "tool_calls")
            result = core.ToolMessage("#result", tool_call_id=said.tool_calls[0]["id"])
            end = bound.invoke([core.HumanMessage("#call"), said, result])
            self.assertEqual((end.content, end.tool_calls), ("18 degrees", []))
            whole, pieces = None, []
            for chunk in bound.stream("#call"):
                pieces += [c["args"] for c in chunk.tool_call_chunks]
                whole = chunk if whole is None else whole + chunk
            self.assertEqual([(c["name"], c["args"]) for c in whole.tool_calls], [("weather", {"city": "Rome"})])
            self.assertGreater(len(pieces), 2)
            self.assertGreater(whole.usage_metadata["output_tokens"], 0)

    def test_a_tool_is_forced(self):
        said = self.chat().bind_tools([Place], tool_choice="Place").invoke("Where to?")
        self.assertEqual([c["name"] for c in said.tool_calls], ["Place"])
        Place.model_validate(said.tool_calls[0]["args"])
        said = self.chat().bind_tools([Place], tool_choice="any", parallel_tool_calls=False).invoke("Where to?")
        self.assertEqual([c["name"] for c in said.tool_calls], ["Place"])

    def test_context_overflow(self):
        with self.assertRaises(exceptions.ContextOverflowError):
            self.chat().invoke(LONG)
        with self.assertRaises(exceptions.ContextOverflowError):
            list(self.chat().stream(LONG))


if __name__ == "__main__":
    main()
