"""Runs the zipage binary for the tests beside this file."""
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ZIPAGE = os.environ["ZIPAGE"]
SOURCE = Path(os.environ["ZIPAGE_SOURCE_DIR"])
MODEL = SOURCE / "models" / "reasoner" / "model"


class Cli(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def zipage(self, *words, stdin="", timeout=600):
        return subprocess.run([ZIPAGE, *map(str, words)], input=stdin, capture_output=True, text=True, timeout=timeout)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def assert_fails(self, result, code, *parts):
        """One sentence on stderr, nothing on stdout, this exit status."""
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        last = result.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith("zipage: "), result.stderr)
        for part in parts:
            self.assertIn(part, last)

    def rows(self, text):
        return [json.loads(line) for line in text.splitlines()]
