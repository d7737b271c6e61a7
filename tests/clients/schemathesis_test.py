"""schemathesis makes requests out of /openapi.json; no answer may be a server error or another shape than promised."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from server import Server


class Schemathesis(unittest.TestCase):
    def test_answers_are_as_promised(self):
        with Server("--max-model-len", "512") as server:
            command = [Path(sys.executable).parent / "schemathesis", "run", server.url + "/openapi.json",
                       "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
                       "--max-examples", os.environ.get("SCHEMATHESIS_EXAMPLES", "20"), "--seed", "1", "--request-timeout", "60", "--phases", "examples,fuzzing",
                       "--exclude-path", "/abort_requests"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=900,
                                    cwd=tempfile.gettempdir())  # it leaves a folder behind
            self.assertEqual(result.returncode, 0, result.stdout[-6000:] + result.stderr[-2000:])
            self.assertIsNone(server.process.poll())


if __name__ == "__main__":
    unittest.main()
