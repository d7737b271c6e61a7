"""One zipage server, on the model that ships with the project, for the tests beside this file."""
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
ZIPAGE = os.environ.get("ZIPAGE", str(SOURCE / "build" / "release" / "zipage"))
FLAGS = ("--port", "0", "--host", "127.0.0.1", "--served-model-name", "reasoner", "--num-gpu-blocks-override", "256",
         "--max-num-seqs", "16", "--swap-space", "0", "--kv-budget", "512", "--kv-slack", "64")


class Server:
    """with Server() as server: server.url is "http://127.0.0.1:PORT"."""

    def __init__(self, *flags):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen([ZIPAGE, "serve", *FLAGS, *flags], stdout=subprocess.DEVNULL, stderr=self.log)

    def __enter__(self):
        deadline = time.time() + 120
        while time.time() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server has ended:\n{self.text()}")
            found = re.search(r"serving reasoner at (http://\S+)", self.text())
            if found:
                self.url = found.group(1).rstrip("/")
                return self
            time.sleep(0.1)
        raise RuntimeError(f"the server does not start:\n{self.text()}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        if self.process.returncode not in (0, -15):
            raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.text()}")

    def text(self):
        return Path(self.log.name).read_text()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()
