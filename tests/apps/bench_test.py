"""zipage bench, from outside, on the model that ships with the project."""
import json
import unittest

from cli import MODEL, Cli

SMALL = ("--num-gpu-blocks-override", 64, "--kv-slack", 64, "--quiet")
KEYS = {"elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second",
        "output_tokens_per_second", "step_ms_p50", "step_ms_p99", "compression_fraction",
        "memory_bandwidth_fraction", "compressions", "preemptions", "swaps", "peak_kv_blocks"}


class Throughput(Cli):
    def bench(self, *words):
        path = self.folder / "numbers.json"
        result = self.zipage("bench", "throughput", MODEL, *words, "--output-json", path, *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(path.read_text()), result.stdout

    def test_random_requests_have_the_lengths_asked_for(self):
        numbers, text = self.bench("--num-prompts", 3, "--input-len", 20, "--output-len", 7)
        self.assertEqual(set(numbers), KEYS)
        self.assertEqual(numbers["num_requests"], 3)
        self.assertEqual(numbers["total_num_tokens"], 3 * 27)
        self.assertAlmostEqual(numbers["output_tokens_per_second"] * numbers["elapsed_time"], 21)
        self.assertAlmostEqual(numbers["requests_per_second"] * numbers["elapsed_time"], 3)
        self.assertGreaterEqual(numbers["step_ms_p99"], numbers["step_ms_p50"])
        self.assertGreater(numbers["step_ms_p50"], 0)
        self.assertGreater(numbers["memory_bandwidth_fraction"], 0)
        self.assertEqual(numbers["compressions"], 0)
        self.assertEqual(len(text.splitlines()), 3)

    def test_lines_keep_their_fields_and_are_repeated_in_turn(self):
        path = self.write("p.jsonl", '{"prompt_token_ids": [1, 2, 3], "max_tokens": 4, "ignore_eos": true}\n'
                          '{"prompt_token_ids": [1], "max_tokens": 2, "ignore_eos": true}\n')
        numbers, _ = self.bench("--dataset-path", path)
        self.assertEqual((numbers["num_requests"], numbers["total_num_tokens"]), (2, 10))
        numbers, _ = self.bench("--dataset-path", path, "--dataset-name", "jsonl", "--num-prompts", 3,
                                "--output-len", 6)
        self.assertEqual((numbers["num_requests"], numbers["total_num_tokens"]), (3, 7 + 18))

    def test_two_configurations_take_turns(self):
        numbers, text = self.bench("--num-prompts", 1, "--input-len", 150, "--output-len", 100, "--kv-budget", 128,
                                   "--compare", "--kv-budget 0")
        self.assertEqual([[set(run) for run in numbers[side]["runs"]] for side in "ab"], [[KEYS] * 3] * 2)
        for a, b in zip(numbers["a"]["runs"], numbers["b"]["runs"]):
            self.assertGreater(a["compressions"], 0)
            self.assertGreater(a["compression_fraction"], 0)
            self.assertEqual((b["compressions"], b["compression_fraction"]), (0, 0))
        self.assertIn("--kv-budget 128", numbers["a"]["flags"])
        self.assertIn("--kv-budget 0", numbers["b"]["flags"])
        ratio = numbers["ratio"]
        self.assertEqual(sorted(ratio["rounds"]), [ratio["min"], ratio["median"], ratio["max"]])
        self.assertIn("times B's output tokens/s", text)

    def test_wrong_usage_is_refused(self):
        for words, part in ((("--compare", "--kv-bugdet 0"), "did you mean --kv-budget"),
                            (("--compare", "--kv-budget 100"), "--kv-budget"),
                            (("--dataset-name", "sharegpt"), "--dataset-name"),
                            (("--dataset-path", "no/such.jsonl"), "no/such.jsonl"),
                            (("--dataset-name", "random", "--dataset-path", "x"), "--dataset-path"),
                            (("--dataset-name", "jsonl", "--input-len", "3"), "--input-len"),
                            (("--num-prompts", "0"), "--num-prompts")):
            self.assert_fails(self.zipage("bench", "throughput", *words), 2, part)

    def test_an_unknown_bench_names_the_nearest(self):
        self.assert_fails(self.zipage("bench", "throughputs"), 2, "did you mean 'bench-throughput'")


if __name__ == "__main__":
    unittest.main()
