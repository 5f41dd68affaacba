#!/usr/bin/env python3
"""instructor over the openai client, in its modes TOOLS, JSON and JSON_SCHEMA, whole and partial.
usage: agent_instructor.py OCTAVO [unittest arguments]"""

import unittest

from harness import main, need

instructor = need("instructor", venv="agents")

from agents import Place, demo, scripted  # noqa: E402

openai = need("openai")
pydantic = need("pydantic")
Mode = instructor.Mode


class Stay(pydantic.BaseModel):
    city: str
    days: int


class Instructor(unittest.TestCase):
    def client(self, url, mode):
        return instructor.from_openai(openai.OpenAI(base_url=url, api_key="none", max_retries=0), mode=mode)

    def ask(self, client, text, **more):
        return client.create(model="demo", response_model=Place, messages=[{"role": "user", "content": text}],
                             max_retries=0, **{"max_tokens": 300, "temperature": 0, "seed": 1, **more})

    def test_forms_that_a_schema_holds(self):
        server, url = demo()
        with server:
            for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA):
                with self.subTest(mode=mode):
                    self.assertIsInstance(self.ask(self.client(url, mode), "Where to?"), Place)

    def test_json(self):
        """The schema is in the prompt alone: the model has to follow it."""
        with scripted() as model:
            client = self.client(model.server.url + "/v1", Mode.JSON)
            self.assertEqual(self.ask(client, "#place").model_dump(), Place(city="Bonn", days=3).model_dump())
            parts = list(client.create_partial(  # which knows no enums
                model="demo", response_model=Stay, messages=[{"role": "user", "content": "#place"}], temperature=0))
            self.assertEqual((parts[-1].city, parts[-1].days), ("Bonn", 3))
            self.assertGreater(len(parts), 2)


if __name__ == "__main__":
    main()
