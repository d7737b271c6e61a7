"""zipage generate, from outside, on the model that ships with the project."""
import json
import signal
import subprocess
import unittest

from cli import MODEL, SOURCE, ZIPAGE, Cli
from served import PATIENCE

SMALL = ("--num-gpu-blocks-override", 64, "--quiet")


def question(task, index=0):
    path = SOURCE / "models/reasoner/questions" / f"{task}.jsonl"
    return json.loads(path.read_text().splitlines()[index])


class Single(Cli):
    def test_a_prompt_s_text_goes_to_stdout_and_its_row_to_the_file(self):
        path = self.folder / "row.json"
        result = self.zipage("generate", MODEL, "-p", "mod 100 .", "--max-tokens", 8, "--temperature", 0,
                             "--output-json", path, *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        row = json.loads(path.read_text())
        self.assertEqual(result.stdout, row["text"] + "\n")
        self.assertEqual(row["finish_reason"], "length")
        self.assertEqual(row["usage"]["completion_tokens"], 8)
        self.assertEqual(len(row["token_ids"]), 8)
        self.assertEqual(result.stderr, "")

    def test_the_shipped_model_is_used_when_none_is_named(self):
        words = ("-p", "mod 100 .", "--max-tokens", 4, "--temperature", 0, *SMALL)
        self.assertEqual(self.zipage("generate", *words).stdout, self.zipage("generate", MODEL, *words).stdout)

    def test_text_on_stdin_is_a_prompt(self):
        words = ("--max-tokens", 4, "--temperature", 0, *SMALL)
        named = self.zipage("generate", "-p", "mod 100 .", *words)
        self.assertEqual(self.zipage("generate", *words, stdin="mod 100 .").stdout, named.stdout)

    def test_case_14_an_empty_prompt_is_refused(self):
        self.assert_fails(self.zipage("generate", "-p", "", *SMALL), 2, "no tokens")

    def test_start_up_prints_configuration_and_memory_plan_to_stderr(self):
        result = self.zipage("generate", "-p", "a", "--max-tokens", 1, "--num-gpu-blocks-override", 64)
        self.assertIn("KV blocks", result.stderr)
        self.assertIn("--num-gpu-blocks-override 64", result.stderr)


class Prompts(Cli):
    def generate(self, lines, *words, code=0):
        path = self.write("prompts.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        result = self.zipage("generate", MODEL, "--prompts", path, "--temperature", 0, *words, *SMALL)
        self.assertEqual(result.returncode, code, result.stderr)
        return self.rows(result.stdout)

    def test_rows_come_in_input_order_with_ids_and_defaults(self):
        lines = [{"prompt": "mod 100 .", "max_tokens": 40}, {"prompt": "roads .", "id": "second"},
                 {"prompt_token_ids": [1, 2, 3], "id": 7}]
        rows = self.generate(lines, "--max-tokens", 3)
        self.assertEqual([row["id"] for row in rows], [0, "second", 7])
        self.assertEqual([row["usage"]["completion_tokens"] for row in rows], [40, 3, 3])
        self.assertEqual(rows[2]["usage"]["prompt_tokens"], 3)
        for row in rows:
            self.assertEqual(set(row["kv_stats"]), {"resident_tokens", "evicted_tokens", "compressions", "swaps"})

    def test_greedy_tokens_equal_the_reference(self):
        entries = json.loads((SOURCE / "models/reasoner/reference.json").read_text())["rows"][:4]
        lines = [{"prompt_token_ids": entry["prompt_token_ids"], "max_tokens": 32} for entry in entries]
        for row, entry in zip(self.generate(lines), entries):
            self.assertEqual(row["token_ids"], entry["greedy_token_ids"][:32])

    def test_thoughts_are_apart_from_answers(self):
        asked = question("boxes")
        row, = self.generate([asked])
        self.assertEqual(row["text"].strip(), asked["answer"])
        self.assertNotIn("think>", row["reasoning_content"])
        self.assertGreater(len(row["reasoning_content"]), 100)
        self.assertEqual(row["finish_reason"], "stop")

    def test_bad_lines_get_an_error_and_the_rest_goes_on(self):
        path = self.write("prompts.jsonl", '{"prompt": "mod 100 .", "max_tokens": 2}\nnot json\n\n'
                          '{"id": "x", "prompt": "a", "temperature": -1}\n{"prompt": ""}\n'
                          '{"prompt": "a", "max_tokens": 9999999}\n{"prompt": "roads .", "max_tokens": 2}\n')
        result = self.zipage("generate", MODEL, "--prompts", path, *SMALL)
        self.assertEqual(result.returncode, 1, result.stderr)
        rows = self.rows(result.stdout)
        self.assertEqual([("error" in row) for row in rows], [False, True, True, True, True, False])
        self.assertIn("not valid JSON", rows[1]["error"])
        self.assertEqual(rows[2], {"id": "x", "error": rows[2]["error"]})
        self.assertIn("temperature", rows[2]["error"])

    def test_prompts_of_1_and_3000_tokens_in_one_run(self):
        rows = self.generate([{"prompt_token_ids": [5], "max_tokens": 4},
                              {"prompt_token_ids": [5 + i % 500 for i in range(3000)], "max_tokens": 4}])
        self.assertEqual([row["usage"]["prompt_tokens"] for row in rows], [1, 3000])
        self.assertEqual([row["usage"]["completion_tokens"] for row in rows], [4, 4])

    def test_logprobs_come_where_they_are_asked_for(self):
        row, = self.generate([{"prompt": "mod 100 .", "max_tokens": 3, "logprobs": 2}])
        self.assertEqual([entry["token"] for entry in row["logprobs"]], row["token_ids"])
        self.assertEqual([len(entry["top"]) for entry in row["logprobs"]], [2, 2, 2])
        self.assertEqual([entry["rank"] for entry in row["logprobs"]], [1, 1, 1])

    def test_an_input_that_is_not_there_or_named_twice_is_refused(self):
        self.assert_fails(self.zipage("generate", "--prompts", "no/such.jsonl"), 2, "no/such.jsonl")
        self.assert_fails(self.zipage("generate", "-p", "a", "--prompts", "b"), 2, "exclude each other")


class Machine(Cli):
    def test_case_15_a_pool_of_8_blocks_serves_what_fits_and_refuses_the_rest(self):
        words = ("--num-gpu-blocks-override", 8, "--kv-budget", 0, "--quiet")
        self.assertEqual(self.zipage("generate", "-p", "mod 100 .", "--max-tokens", 4, *words).returncode, 0)
        path = self.write("p.jsonl", json.dumps({"prompt_token_ids": [5] * 520, "max_tokens": 4}) + "\n")
        result = self.zipage("generate", "--prompts", path, *words)
        self.assertEqual(result.returncode, 1)
        self.assertIn("9", self.rows(result.stdout)[0]["error"])
        self.assertIn("8", self.rows(result.stdout)[0]["error"])

    def test_a_budget_that_is_no_multiple_of_the_block_is_refused(self):
        self.assert_fails(self.zipage("generate", "-p", "a", "--kv-budget", 100), 2, "--kv-budget", "100", "64")

    def test_an_unknown_model_is_named(self):
        self.assert_fails(self.zipage("generate", "no/such/model", "-p", "a"), 3, "no/such/model")

    def test_case_47_a_truncated_shard_is_named_with_its_sizes(self):
        for path in MODEL.iterdir():
            target = self.folder / path.name
            if path.name.startswith("model-00002"):
                target.write_bytes(path.read_bytes()[:-1000])
            else:
                target.symlink_to(path)
        self.assert_fails(self.zipage("generate", self.folder, "-p", "a"), 3, "model-00002-of-00002.safetensors")

    def test_a_flag_s_bad_sampling_value_is_refused_before_the_model_loads(self):
        self.assert_fails(self.zipage("generate", "no/such/model", "-p", "a", "--top-p", 2), 2, "--top-p")


class Interrupt(Cli):
    def test_ctrl_c_writes_finished_rows_and_ends_with_130(self):
        lines = [{"prompt": "mod 100 .", "max_tokens": 2, "id": "short"},
                 {"prompt": "mod 100 .", "max_tokens": 7000, "ignore_eos": True, "id": "long"}]
        path = self.write("p.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        process = subprocess.Popen([ZIPAGE, "generate", str(MODEL), "--prompts", str(path), "--quiet",
                                    "--num-gpu-blocks-override", "128"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 130, errors)
        self.assertEqual(json.loads(first)["id"], "short")
        self.assertEqual(rest, "")


if __name__ == "__main__":
    unittest.main()
