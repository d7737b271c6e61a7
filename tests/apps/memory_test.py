"""What zipage generate keeps in memory, from outside."""
import json
import os
import re
import subprocess
import unittest

from cli import MODEL, ZIPAGE, Cli

MIB = 1 << 20


class Memory(Cli):
    def generate(self, lines, *words):
        """The largest resident size of the process, bytes, and what it wrote to stderr."""
        path = self.write("prompts.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        with open(self.folder / "stderr", "w+") as stderr:
            process = subprocess.Popen([ZIPAGE, "generate", MODEL, "--prompts", path, "--temperature", "0", *words], stdout=subprocess.DEVNULL, stderr=stderr)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            stderr.seek(0)
            text = stderr.read()
        self.assertEqual(process.returncode, 0, text)
        return usage.ru_maxrss * 1024, text

    @unittest.skipIf(os.environ.get("ZIPAGE_SANITIZED"), "a sanitizer's own memory would be measured")
    def test_the_resident_size_is_weights_pool_and_at_most_120_mb(self):
        size, text = self.generate([{"prompt": "mod 100 .", "max_tokens": 64}], "--num-gpu-blocks-override", "64")
        plan = {name.strip(): float(mib) for name, mib in re.findall(r"^\W*(weights|KV blocks).*?([\d.]+) MiB", text, re.M)}
        self.assertEqual(set(plan), {"weights", "KV blocks"}, text)
        self.assertLess(size, sum(plan.values()) * MIB + 120e6)

    @unittest.skipIf(os.environ.get("ZIPAGE_SANITIZED"), "a sanitizer's own memory would be measured")
    def test_nothing_grows_with_the_tokens_made(self):
        request = {"prompt": "mod 100 .", "ignore_eos": True, "kv_budget": 512}
        # The few are enough to have touched each of the pool's blocks.
        flags = ("--kv-slack", "64", "--num-gpu-blocks-override", "16")
        few, _ = self.generate([request | {"max_tokens": 1200}], *flags)
        many, _ = self.generate([request | {"max_tokens": 4000}], *flags)
        self.assertLess(many, few + 1 * MIB)

    @unittest.skipIf(os.environ.get("ZIPAGE_SANITIZED"), "a sanitizer's own memory would be measured")
    def test_a_queued_request_costs_at_most_20_kb(self):
        request = {"prompt": "mod 100 . a = 3 ; b = a + 4 ; b ?", "max_tokens": 2}
        flags = ("--max-num-seqs", "4", "--num-gpu-blocks-override", "64")
        few, _ = self.generate([request] * 8, *flags)
        many, _ = self.generate([request] * 1008, *flags)
        self.assertLess(many, few + 1000 * 20_000)


if __name__ == "__main__":
    unittest.main()
