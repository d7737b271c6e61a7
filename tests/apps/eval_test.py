"""zipage eval, from outside, on the model that ships with the project."""
import json
import unittest
import xml.etree.ElementTree

from cli import MODEL, SOURCE, Cli

FAST = ("--num-gpu-blocks-override", 64, "--max-model-len", 2048, "--kv-slack", 64, "--quiet")
QUESTIONS = SOURCE / "models/reasoner/questions"
KEYS = {"task", "kv_policy", "kv_budget", "n", "pass_at_1", "ci95", "mean_output_tokens", "tokens_per_second",
        "compressions", "preemptions", "peak_kv_blocks"}


class Questions(Cli):
    def eval(self, *words, code=0):
        path = self.folder / "rows.json"
        result = self.zipage("eval", *words, "--output-json", path, *FAST)
        self.assertEqual(result.returncode, code, result.stderr)
        return json.loads(path.read_text()), result

    def test_rows_table_and_plot_of_two_budgets(self):
        plot = self.folder / "plot.svg"
        rows, result = self.eval("--task", "paths,boxes", "--level", "easy", "--limit", 1, "--kv-budget", "0,128",
                                 "--kv-policy", "content,streaming", "--plot", plot, "--max-tokens", 300)
        for row in rows:
            self.assertEqual(set(row), KEYS)
            self.assertLessEqual(row["ci95"][0], row["pass_at_1"])
            self.assertGreaterEqual(row["ci95"][1], row["pass_at_1"])
            self.assertGreater(row["tokens_per_second"], 0)
            if row["task"] != "paths":  # its thought fits into the budget
                self.assertEqual(row["compressions"] > 0, row["kv_budget"] == 128, row)
        self.assertEqual([(row["kv_policy"], row["kv_budget"], row["task"]) for row in rows],
                         [(policy, budget, task) for policy, budget in
                          (("full", 0), ("content", 128), ("streaming", 128)) for task in ("boxes", "paths", "all")])
        full = [row for row in rows if row["task"] == "all"][0]
        self.assertEqual(full["n"], 2)
        self.assertEqual(full["pass_at_1"], 1)
        self.assertEqual(len(result.stdout.splitlines()), 2 + len(rows))
        text = plot.read_text()
        xml.etree.ElementTree.fromstring(text)
        for word in ("pass@1", "output tokens/s", "KV budget (tokens)", "full KV", "content", "streaming",
                     "prefers-color-scheme:dark"):
            self.assertIn(word, text)

    def checked(self, checker, answer):
        """Whether the model's answer to an easy question, which is the text 'no' or 'yes' or a number, counts."""
        line = json.loads((QUESTIONS / "paths.jsonl").read_text().splitlines()[0])
        asked = {"question": line["messages"][0]["content"], "answer": answer.replace("ANSWER", line["answer"])}
        path = self.write("mine.jsonl", json.dumps(asked) + "\n")
        rows, _ = self.eval("--questions", path, "--kv-budget", 0, "--checker", checker)
        self.assertEqual([row["task"] for row in rows], ["mine", "all"])
        return rows[0]["pass_at_1"]

    def test_checkers_differ_in_what_they_accept(self):
        self.assertEqual(self.checked("exact", " ANSWER "), 1)
        self.assertEqual(self.checked("exact", "ANSWER.0"), 0)
        self.assertEqual(self.checked("number", "it is ANSWER.0"), 1)
        self.assertEqual(self.checked("boxed", "ANSWER"), 0)

    def test_several_samples_of_a_question_are_one_question(self):
        rows, _ = self.eval("--task", "paths", "--level", "easy", "--limit", 1, "--kv-budget", 0, "--samples", 3,
                            "--temperature", 5, "--top-k", 2, "--max-tokens", 20)
        self.assertEqual(rows[0]["n"], 1)
        self.assertEqual(rows[0]["mean_output_tokens"], 20)

    def test_answers_that_fail_count_as_wrong_and_end_with_1(self):
        rows, result = self.eval("--task", "paths", "--level", "hard", "--limit", 1, "--kv-budget", 0,
                                 "--max-tokens", 2000, code=1)
        self.assertEqual(rows[0]["pass_at_1"], 0)
        self.assertIn("1 answers failed", result.stderr)

    def test_names_that_nobody_knows_name_the_nearest(self):
        for words in (("--checker", "boxd", "boxed"), ("--task", "pths", "paths"), ("--level", "hrd", "hard"),
                      ("--kv-policy", "snapkw", "snapkv")):
            self.assert_fails(self.zipage("eval", *words[:2]), 2, words[0], f"did you mean {words[2]}")

    def test_wrong_usage_is_refused_before_the_model_loads(self):
        self.assert_fails(self.zipage("eval", "--kv-budget", "0,100"), 2, "--kv-budget", "64", "128")
        self.assert_fails(self.zipage("eval", "--samples", 2), 2, "--temperature")
        self.assert_fails(self.zipage("eval", "--perplexity", "x", "--task", "paths"), 2, "--task")
        self.assert_fails(self.zipage("eval", "--questions", "no/such.jsonl"), 2, "no/such.jsonl")
        path = self.write("q.jsonl", '{"question": "a", "answer": "b"}\n{"question": "a"}\n')
        self.assert_fails(self.zipage("eval", "--questions", path), 2, f"{path}:2: ", "answer")


class Perplexity(Cli):
    def test_each_text_and_all_under_each_budget(self):
        paths = [self.write(f"{name}.txt", f"mod 100 . {name} has 3 more than Ben . " * 30) for name in ("Ann", "Tom")]
        out = self.folder / "rows.json"
        result = self.zipage("eval", MODEL, "--perplexity", *paths, "--kv-budget", "128,0", "--output-json", out,
                             "--max-tokens", 150, *FAST)
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(out.read_text())
        self.assertEqual([(row["task"], row["kv_budget"]) for row in rows],
                         [(text, budget) for budget in (128, 0) for text in ("Ann.txt", "Tom.txt", "all")])
        for row in rows:
            self.assertEqual(set(row), (KEYS - {"pass_at_1", "ci95", "mean_output_tokens"}) | {"mean_nll", "rise"})
            self.assertEqual(row["n"], 300 if row["task"] == "all" else 150)
            self.assertGreater(row["mean_nll"], 0)
            self.assertEqual(row["compressions"] > 0, row["kv_budget"] == 128)
        for compressed, full in zip(rows, rows[3:]):
            self.assertEqual(full["rise"], 0)
            self.assertAlmostEqual(compressed["rise"], compressed["mean_nll"] - full["mean_nll"])
        self.assertNotEqual(rows[2]["rise"], 0)

    def test_a_text_that_is_too_short_is_named(self):
        self.assert_fails(self.zipage("eval", "--perplexity", self.write("a.txt", "a"), *FAST), 2, "a.txt", "tokens")


if __name__ == "__main__":
    unittest.main()
