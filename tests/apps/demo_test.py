"""zipage demo, inspect and chat, from outside."""
import json
import os
import pty
import re
import signal
import subprocess
import time
import unittest

from cli import MODEL, ZIPAGE, Cli
from served import PATIENCE


class Demo(Cli):
    def test_a_small_demo_solves_and_counts(self):
        path = self.folder / "rows.json"
        result = self.zipage("demo", "--questions", 2, "--level", "easy", "--kv-budget", 256, "--output-json", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        full, compressed = json.loads(path.read_text())
        self.assertEqual((full["asked"], compressed["asked"]), (8, 8))
        self.assertGreaterEqual(full["solved"], 7)
        self.assertEqual(full["compressions"], 0)
        self.assertGreater(compressed["compressions"], 0)
        self.assertLess(compressed["peak_kv_blocks"], full["peak_kv_blocks"])
        self.assertLessEqual(compressed["peak_kv_blocks"], (256 + 64) // 64 + 1)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100)
        self.assertRegex(result.stdout, r"full KV +\d+ / 8 ")
        self.assertRegex(result.stdout, r"content, budget 256 +\d+ / 8 ")
        self.assertIn("times the tokens a second", result.stdout)
        self.assertNotIn("\033", result.stdout)

    def test_ctrl_c_ends_it(self):
        process = subprocess.Popen([ZIPAGE, "demo", "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("interrupted", rest)


class Inspect(Cli):
    def inspect(self, *words):
        path = self.folder / "numbers.json"
        result = self.zipage("inspect", MODEL, "--output-json", path, *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(path.read_text()), result.stdout

    def test_numbers_of_the_reasoner(self):
        numbers, text = self.inspect("--num-gpu-blocks-override", 160, "--kv-budget", 512, "--kv-slack", 64)
        weights = sum(path.stat().st_size for path in MODEL.glob("*.safetensors"))
        self.assertEqual(numbers["architecture"], "Qwen3ForCausalLM")
        self.assertLess(abs(weights - numbers["weight_bytes"]), 100_000)  # the files' headers
        self.assertEqual(numbers["num_blocks"], 160)
        self.assertEqual(numbers["full_kv"]["blocks_per_request"], 8192 // 64)
        self.assertEqual(numbers["full_kv"]["requests"], 1)
        self.assertGreaterEqual(numbers["compressed"]["requests"], 15)
        self.assertIn("Qwen3ForCausalLM", text)
        self.assertIn("KV blocks", text)

    def test_shorter_requests_fit_more_often(self):
        long, _ = self.inspect("--num-gpu-blocks-override", 160, "--request-len", 4096)
        short, _ = self.inspect("--num-gpu-blocks-override", 160, "--request-len", 1024)
        self.assertEqual(long["full_kv"]["requests"], 2)
        self.assertEqual(short["full_kv"]["requests"], 10)

    def test_no_compression_has_no_row(self):
        numbers, _ = self.inspect("--kv-budget", 0)
        self.assertNotIn("compressed", numbers)

    def test_an_unknown_model_is_named(self):
        self.assert_fails(self.zipage("inspect", "no/such/model"), 3, "no/such/model")


class Chat(Cli):
    QUESTION = json.loads((MODEL.parent / "questions/boxes.jsonl").read_text().splitlines()[0])

    def test_questions_on_stdin_are_answered_one_by_one(self):
        text = self.QUESTION["messages"][0]["content"]
        result = self.zipage("chat", "--quiet", "--temperature", 0, "--hide-thinking", stdin=f"{text}\n/clear\n{text}\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.split(), [self.QUESTION["answer"]] * 2)

    def test_on_a_terminal_thoughts_are_dim_and_ctrl_c_stops_the_answer_only(self):
        master, slave = pty.openpty()
        process = subprocess.Popen([ZIPAGE, "chat", "--quiet", "--temperature", "0", "--ignore-eos"], stdin=slave,
                                   stdout=slave, stderr=slave)
        os.close(slave)
        seen = ""

        def read_until(pattern):
            nonlocal seen
            deadline = time.monotonic() + PATIENCE
            while not re.search(pattern, seen, re.DOTALL):
                self.assertLess(time.monotonic(), deadline, seen)
                seen += os.read(master, 4096).decode(errors="replace")

        read_until("> ")
        os.write(master, (self.QUESTION["messages"][0]["content"] + "\n").encode())
        read_until("\033\\[2m.{20}")
        process.send_signal(signal.SIGINT)
        seen = seen[-1:]
        read_until("\n> ")
        self.assertIsNone(process.poll())
        os.write(master, b"\x04")
        self.assertEqual(process.wait(timeout=PATIENCE), 0)
        os.close(master)


if __name__ == "__main__":
    unittest.main()
