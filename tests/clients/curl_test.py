"""curl against zipage: plain bytes on the wire."""
import json
import subprocess
import unittest

from server import Server


class Curl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.enterClassContext(cls.server)

    def curl(self, path, *words, **body):
        if body:
            words = (*words, "-H", "Content-Type: application/json", "-d", json.dumps(body))
        result = subprocess.run(["curl", "-sS", "-N", "--max-time", "60", self.server.url + path, *words],
                                capture_output=True, text=True, check=True)
        return result.stdout

    def test_chunks_end_with_done(self):
        text = self.curl("/v1/completions", prompt="a", max_tokens=3, ignore_eos=True, stream=True, stream_options={"include_usage": True})
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(json.loads(events[-2])["choices"], [])
        self.assertEqual(json.loads(events[-2])["usage"]["completion_tokens"], 3)

    def test_responses_name_their_events(self):
        text = self.curl("/v1/responses", input="Hello", max_output_tokens=5, stream=True)
        names = [line[7:] for line in text.splitlines() if line.startswith("event: ")]
        data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        self.assertEqual(names, [event["type"] for event in data])
        self.assertEqual([event["sequence_number"] for event in data], list(range(len(data))))

    def test_large_bodies_wait_for_continue(self):
        answer = json.loads(self.curl("/tokenize", "-H", "Expect: 100-continue", prompt="a" * 5000))
        self.assertGreater(answer["count"], 100)

    def test_the_description_is_there(self):
        self.assertEqual(json.loads(self.curl("/openapi.json"))["openapi"], "3.1.0")
        self.assertIn("openapi.json", self.curl("/docs"))


if __name__ == "__main__":
    unittest.main()
