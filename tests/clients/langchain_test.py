"""LangChain's OpenAI classes against zipage."""
import unittest
from typing import Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from server import Server


class City(BaseModel):
    """A city."""
    name: Literal["Bern", "Chur"]
    people: int = Field(ge=1, le=999)


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class LangChain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.enterClassContext(cls.server)

    def model(self, **fields):
        return ChatOpenAI(model="reasoner", base_url=self.server.url + "/v1", api_key="none", temperature=0,
                          max_completion_tokens=300, extra_body={"thinking_token_budget": 0}, max_retries=0, **fields)

    def test_invoke_and_stream_agree(self):
        whole = self.model().invoke("Hello")
        pieces = "".join(chunk.content for chunk in self.model(stream_usage=True).stream("Hello"))
        self.assertEqual(pieces, whole.content)

    def test_structured_output(self):
        answer = self.model().with_structured_output(City, method="json_schema", include_raw=True).invoke("Name a city")
        self.assertIsInstance(answer["parsed"], City)

    def test_bound_tools(self):
        answer = self.model().bind_tools([add], tool_choice="add").invoke("Add 1 and 2")
        (call,) = answer.tool_calls
        self.assertEqual(call["name"], "add")
        self.assertEqual(set(call["args"]), {"a", "b"})


if __name__ == "__main__":
    unittest.main()
