"""The commands that speak with a server, or like one: chat --url, bench serve, bench latency, run-batch."""
import json
import unittest

from cli import MODEL, ZIPAGE, Cli
from served import Server

SMALL = ("--num-gpu-blocks-override", 64, "--kv-slack", 64, "--swap-space", 0)
HELLO = [{"role": "user", "content": "Hello"}]


class WithServer(Cli):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(ZIPAGE, MODEL, "--served-model-name", "reasoner", *SMALL))
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    def test_chat_prints_what_the_server_answers(self):
        body = {"messages": HELLO, "temperature": 0, "max_tokens": 30}
        message = json.loads(self.server.request("POST", "/v1/chat/completions", body)[1])["choices"][0]["message"]
        result = self.zipage("chat", "--url", self.url, "--temperature", 0, "--max-tokens", 30, stdin="Hello\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn((message["reasoning_content"] or message["content"]).strip(), result.stdout)
        result = self.zipage("chat", "--url", self.url + "/v1", "--model", "another", stdin="Hello\n")
        self.assertEqual(result.returncode, 1)
        self.assertIn("another", result.stderr)

    def test_bench_serve_has_vllms_keys(self):
        for backend in ("openai", "openai-chat"):
            path = self.folder / "numbers.json"
            result = self.zipage("bench", "serve", "--base-url", self.url, "--backend", backend, "--num-prompts", 6,
                                 "--random-input-len", 5, "--random-output-len", 8, "--max-concurrency", 3,
                                 "--metric-percentiles", "50,99", "--output-json", path, "--quiet")
            self.assertEqual(result.returncode, 0, result.stderr)
            numbers = json.loads(path.read_text())
            self.assertEqual((numbers["completed"], numbers["failed"], numbers["num_prompts"]), (6, 0, 6))
            self.assertEqual(numbers["total_output_tokens"], 48)
            if backend == "openai":
                self.assertEqual(numbers["total_input_tokens"], 30)
            self.assertLessEqual(numbers["max_concurrent_requests"], 3)
            for metric in ("ttft", "tpot", "itl", "e2el"):
                for statistic in ("mean", "median", "std", "p50", "p99"):
                    self.assertGreaterEqual(numbers[f"{statistic}_{metric}_ms"], 0)
            self.assertGreaterEqual(numbers["mean_e2el_ms"], numbers["mean_ttft_ms"])
            self.assertEqual(numbers["model_id"], "reasoner")

    def test_requests_that_fail_are_counted(self):
        result = self.zipage("bench", "serve", "--base-url", self.url, "--model", "another", "--num-prompts", 2, "--quiet")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stdout, r"failed +\| +2")


class Unreachable(Cli):
    def test_no_server_is_one_sentence(self):
        for words in (("chat", "--url", "http://127.0.0.1:1"), ("bench", "serve", "--base-url", "http://127.0.0.1:1")):
            self.assert_fails(self.zipage(*words), 3, "127.0.0.1:1")
        self.assert_fails(self.zipage("chat", "--url", "https://x"), 2, "https")


class Offline(Cli):
    def test_latency_of_a_batch(self):
        path = self.folder / "numbers.json"
        result = self.zipage("bench", "latency", MODEL, "--input-len", 8, "--output-len", 4, "--batch-size", 2, "--num-iters", 3,
                             "--num-iters-warmup", 1, "--output-json", path, "--quiet", *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        numbers = json.loads(path.read_text())
        self.assertEqual(len(numbers["latencies"]), 3)
        self.assertAlmostEqual(numbers["avg_latency"], sum(numbers["latencies"]) / 3)
        self.assertEqual(set(numbers["percentiles"]), {"10", "25", "50", "75", "90", "99"})

    def test_a_batch_file_is_answered_in_its_order(self):
        def line(id, url, **body):
            return json.dumps({"custom_id": id, "method": "POST", "url": url, "body": body})
        lines = [line("a", "/v1/chat/completions", messages=HELLO, max_tokens=20),
                 line("b", "/v1/completions", prompt="x", max_tokens=3, temperature=0),
                 line("c", "/v1/completions", prompt=""), "nonsense", line("d", "/v1/nowhere"),
                 line("e", "/v1/completions", prompt="x", stream=True),
                 line("f", "/v1/completions", prompt="x", structured_outputs={"choice": ["one", "two"]}),
                 line("g", "/v1/responses", input="Hello", max_output_tokens=5)]
        out = self.folder / "out.jsonl"
        result = self.zipage("run-batch", "-i", self.write("in.jsonl", "\n".join(lines)), "-o", out, MODEL, "--quiet", *SMALL)
        self.assertEqual(result.returncode, 1, result.stderr)
        rows = self.rows(out.read_text())
        self.assertEqual([row["custom_id"] for row in rows], ["a", "b", "c", "", "d", "", "f", "g"])
        self.assertEqual([row["response"]["status_code"] for row in rows], [200, 200, 400, 400, 404, 400, 200, 200])
        self.assertEqual(rows[0]["response"]["body"]["object"], "chat.completion")
        self.assertIsNone(rows[0]["error"])
        self.assertEqual(rows[2]["error"]["param"], "prompt")
        self.assertIn(rows[6]["response"]["body"]["choices"][0]["text"], ("one", "two"))
        self.assertEqual(rows[7]["response"]["body"]["object"], "response")


if __name__ == "__main__":
    unittest.main()
