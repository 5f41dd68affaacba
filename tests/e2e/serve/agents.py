"""Shared by the suites of agent libraries (agent_*.py): the demo model with a template that shows
tools, whose answers only their forms make valid, and a model that says what a test wants."""

import enum

from harness import need

pydantic = need("pydantic", venv="agents")

from openai_tool_choice import serve  # noqa: E402
from openai_tools import Format  # noqa: E402


class City(enum.Enum):
    ROME = "Rome"
    BONN = "Bonn"


class Place(pydantic.BaseModel):
    """Where and how long."""
    model_config = {"extra": "forbid"}
    city: City
    days: int = pydantic.Field(ge=1, le=14)


# What the scripted model says: a call to "#call" and "#go", an answer to "#result", an object to
# "#place".
SCRIPTS = {
    "#call": ["Let me look.", '<tool_call>\n{"name": "weather", "argu', 'ments": {"ci', 'ty": "Ro', 'me"}}',
              "\n</tool_call>"],
    "#go": ['<tool_call>{"name": "weather", "arguments": {"city": "', 'Rome"}', '}</tool_call>'],
    "#result": ["18 ", "degrees"],
    "#place": ['{"city": "Bo', 'nn", "days"', ": 3}"],
}
LONG = "word " * 5000  # above the models' context


def demo():
    """A server of the demo model, which must be stopped, and the base URL of its API."""
    server = serve("hermes", "--served-model-name", "demo")
    return server, server.url + "/v1"


def scripted():
    """A model that says SCRIPTS; use it by `with`."""
    return Format("hermes", "--served-model-name", "demo", more=SCRIPTS)
