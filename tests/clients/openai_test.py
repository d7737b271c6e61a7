"""The official Python client against zipage: sync, async, streams, structured output, tools, responses, errors."""
import asyncio
import json
import unittest
from typing import Literal

import openai
from pydantic import BaseModel, Field
from server import Server


class Answer(BaseModel):
    word: Literal["ja", "nein"]
    number: int = Field(ge=0, le=99)


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Bern", "Zürich"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                   "required": ["city", "days"], "additionalProperties": False}}}
HELLO = [{"role": "user", "content": "Hello"}]
NO_THOUGHT = {"thinking_token_budget": 0}


class OpenAI(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.enterClassContext(cls.server)
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    def chat(self, **fields):
        fields = {"model": "reasoner", "messages": HELLO, "max_completion_tokens": 60, "seed": 1, **fields}
        return self.client.chat.completions.create(**fields)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["reasoner"])
        self.assertEqual(self.client.models.retrieve("reasoner").object, "model")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("another")

    def test_completions(self):
        answer = self.client.completions.create(model="reasoner", prompt=["a", "b"], max_tokens=5, n=2, temperature=0,
                                                logprobs=2, echo=True, extra_body={"ignore_eos": True})
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2, 3])
        self.assertEqual(answer.choices[0].text, answer.choices[1].text)
        self.assertTrue(answer.choices[2].text.startswith("b"))
        self.assertEqual(answer.usage.completion_tokens, 20)
        self.assertEqual(len(answer.choices[0].logprobs.tokens), 6)

    def test_a_stream_is_the_whole_answer_in_pieces(self):
        whole = self.chat(temperature=0)
        chunks = list(self.chat(temperature=0, stream=True, stream_options={"include_usage": True}))
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        self.assertEqual("".join(delta.content or "" for delta in deltas), whole.choices[0].message.content or "")
        reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        self.assertEqual(reasoning, whole.choices[0].message.reasoning_content or "")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(deltas[0].role, "assistant")

    def test_logprobs(self):
        answer = self.chat(logprobs=True, top_logprobs=3, max_completion_tokens=4, extra_body={"ignore_eos": True})
        self.assertEqual([len(entry.top_logprobs) for entry in answer.choices[0].logprobs.content], [3] * 4)

    def test_async_clients_at_once(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0) as client:
                async def one(seed):
                    stream = await client.chat.completions.create(model="reasoner", messages=HELLO, seed=seed, stream=True,
                                                                  max_completion_tokens=20, extra_body={"ignore_eos": True})
                    return [chunk async for chunk in stream][-1].choices[0].finish_reason
                return await asyncio.gather(*[one(seed) for seed in range(12)])
        self.assertEqual(asyncio.run(run()), ["length"] * 12)

    def test_structured_output_by_a_class(self):
        answer = self.client.chat.completions.parse(model="reasoner", messages=HELLO, response_format=Answer, seed=5,
                                                    max_completion_tokens=400, temperature=0,
                                                    extra_body=NO_THOUGHT)
        self.assertIsInstance(answer.choices[0].message.parsed, Answer)

    def test_choices_and_expressions(self):
        for seed in range(3):
            answer = self.chat(seed=seed, temperature=2, extra_body={"structured_outputs": {"choice": ["ja", "nein"]}, **NO_THOUGHT})
            self.assertIn(answer.choices[0].message.content, ("ja", "nein"))
            answer = self.chat(seed=seed, temperature=2, extra_body={"structured_outputs": {"regex": "[a-c]{3}-[0-9]"}, **NO_THOUGHT})
            self.assertRegex(answer.choices[0].message.content, "^[a-c]{3}-[0-9]$")

    def test_a_hopeless_schema_is_a_bad_request(self):
        for fields in ({"structured_outputs": {"regex": "("}}, {"structured_outputs": {"json": {"$ref": "http://x/y"}}},
                       {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}}):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat(extra_body=fields)
            self.assertEqual(caught.exception.body["param"], next(iter(fields)))

    def check_call(self, call):
        self.assertEqual(call.function.name, "get_weather")
        arguments = json.loads(call.function.arguments)
        self.assertIn(arguments["city"], ("Bern", "Zürich"))
        self.assertIn(arguments["days"], range(1, 10))
        self.assertTrue(call.id.startswith("call_"))

    def test_tools_that_must_be_called(self):
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            answer = self.chat(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, temperature=2,
                               max_completion_tokens=300, extra_body=NO_THOUGHT)
            self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
            (call,) = answer.choices[0].message.tool_calls
            self.check_call(call)

    def test_streamed_tool_calls(self):
        with self.client.chat.completions.stream(
                model="reasoner", messages=HELLO, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False,
                seed=3, temperature=2, max_completion_tokens=300, extra_body=NO_THOUGHT) as stream:
            events = list(stream)
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
        self.check_call(call)
        self.assertEqual("".join(event.delta for event in events if event.type == "content.delta"), "")

    def test_a_tool_round_trip_is_rendered(self):
        call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Bern\"}"}}
        answer = self.chat(messages=[*HELLO, {"role": "assistant", "content": "", "tool_calls": [call]},
                                     {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}], tools=[WEATHER], tool_choice="none")
        self.assertIsNone(answer.choices[0].message.tool_calls or None)

    def test_responses(self):
        response = self.client.responses.create(model="reasoner", input="Hello", instructions="Be short.",
                                                max_output_tokens=80, temperature=0, extra_body={"seed": 1})
        self.assertIn(response.status, ("completed", "incomplete"))
        self.assertEqual(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens)
        self.assertTrue(response.output)
        again = self.client.responses.create(model="reasoner", temperature=0, max_output_tokens=10,
                                             input=[{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
                                                    *response.output, {"role": "user", "content": "Again"}])
        self.assertIn(again.status, ("completed", "incomplete"))

    def test_streamed_responses_come_in_order(self):
        with self.client.responses.stream(model="reasoner", input="Hello", max_output_tokens=60, temperature=0) as stream:
            events = list(stream)
            final = stream.get_final_response()
        types = [event.type for event in events]
        self.assertEqual(types[:2], ["response.created", "response.in_progress"])
        self.assertIn(types[-1], ("response.completed", "response.incomplete"))
        numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
        self.assertEqual(numbers, sorted(numbers))
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        self.assertEqual(text, final.output_text)

    def test_responses_that_call_a_function(self):
        tool = {"type": "function", **WEATHER["function"]}
        response = self.client.responses.create(model="reasoner", input="Hello", tools=[tool], tool_choice="required",
                                                parallel_tool_calls=False, max_output_tokens=300, extra_body={**NO_THOUGHT, "seed": 2})
        (call,) = [item for item in response.output if item.type == "function_call"]
        self.assertIn(json.loads(call.arguments)["city"], ("Bern", "Zürich"))

    def test_responses_with_a_format(self):
        response = self.client.responses.parse(model="reasoner", input="Hello", text_format=Answer, max_output_tokens=400,
                                               temperature=0, extra_body=NO_THOUGHT)
        self.assertEqual(response.status, "completed")
        self.assertIsInstance(response.output_parsed, Answer)

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.chat(model="another")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.body["param"], "temperature")
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.create(model="reasoner", input="x", previous_response_id="resp_1")

    def test_a_stream_that_its_client_leaves_ends(self):
        stream = self.chat(stream=True, max_completion_tokens=2000, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        for _ in range(100):
            if json.loads(self.server.get("/load"))["server_load"] == 0:
                return
        self.assertEqual(json.loads(self.server.get("/load"))["server_load"], 0)


if __name__ == "__main__":
    unittest.main()
