#!/usr/bin/env python3
"""pydantic-ai's agents: structured output by a tool and by the native response format, tools that
the agent runs, and streams. usage: agent_pydantic_ai.py OCTAVO [unittest arguments]"""

import unittest

from harness import main, need

ai = need("pydantic_ai", venv="agents")

from agents import Place, demo, scripted  # noqa: E402

models = need("pydantic_ai.models.openai")
providers = need("pydantic_ai.providers.openai")

SETTINGS = {"max_tokens": 300, "temperature": 0, "seed": 1}


def chat(url):
    return models.OpenAIChatModel("demo", provider=providers.OpenAIProvider(base_url=url, api_key="none"))


class PydanticAI(unittest.TestCase):
    def test_structured_output(self):
        server, url = demo()
        with server:
            for output in (ai.ToolOutput(Place), ai.NativeOutput(Place)):
                with self.subTest(output=type(output).__name__):
                    agent = ai.Agent(chat(url), output_type=output, model_settings=SETTINGS, retries=0)
                    self.assertIsInstance(agent.run_sync("Where to?").output, Place)

    def test_tools(self):
        asked = []

        def weather(city: str) -> str:
            """Tells how warm a city is."""
            asked.append(city)
            return "#result"

        with scripted() as model:
            agent = ai.Agent(chat(model.server.url + "/v1"), tools=[weather], model_settings=SETTINGS)
            self.assertEqual(agent.run_sync("#call").output, "18 degrees")
            # A stream's first text is its output, so the model calls without a word.
            streamed = agent.run_stream_sync("#go")
            self.assertEqual(list(streamed.stream_text(debounce_by=None))[-1], "18 degrees")
            self.assertEqual(asked, ["Rome", "Rome"])

    def test_json_from_the_prompt(self):
        with scripted() as model:
            agent = ai.Agent(chat(model.server.url + "/v1"), output_type=ai.PromptedOutput(Place),
                             model_settings=SETTINGS, retries=0)
            self.assertEqual(agent.run_sync("#place").output, Place(city="Bonn", days=3))


if __name__ == "__main__":
    main()
