"""A running `zipage serve` for tests and soaks."""
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time

# Seconds that one answer, start or end may take. A sanitizer's build on a machine that is busy with other things needs
# minutes for what takes seconds otherwise.
PATIENCE = 900 if os.environ.get("ZIPAGE_SANITIZED") else 120


class Server:
    """Starts the server on a free port and waits until it is ready; ends it on exit."""

    def __init__(self, zipage, model, *flags, ssl_context=None, environment=None, patience=PATIENCE):
        """patience: seconds that an answer may take."""
        self.patience = patience
        self.port = free_port()
        self.ssl_context = ssl_context
        words = [zipage, "serve", model, "--host", "127.0.0.1", "--port", self.port, *flags]
        self.process = subprocess.Popen(list(map(str, words)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        text=True, env={**os.environ, **(environment or {})})
        self.log = ""

    def __enter__(self):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if self.request("GET", "/ready")[0] == 200:
                    return self
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end(signal.SIGKILL)
                raise RuntimeError("the server did not become ready:\n" + self.log)
            time.sleep(0.05)

    def __exit__(self, *_):
        self.end(signal.SIGKILL)

    def end(self, sent=signal.SIGTERM, timeout=PATIENCE):
        """Sends the signal and returns the exit status; the log is in self.log then."""
        if self.process.returncode is None:
            self.process.send_signal(sent)
        if not self.process.stderr.closed:
            self.log += self.process.communicate(timeout=timeout)[1]
            self.process.stderr.close()
        return self.process.wait(timeout)

    def connect(self, timeout=None):
        timeout = timeout or self.patience
        if self.ssl_context is not None:
            return http.client.HTTPSConnection("localhost", self.port, timeout=timeout, context=self.ssl_context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        """Status and text of one answer."""
        connection = self.connect()
        try:
            sent = {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def post(self, path, body):
        status, text = self.request("POST", path, body)
        if status != 200:
            raise AssertionError(f"{path}: {status} {text}")
        return json.loads(text)

    def metrics(self):
        """Samples by name with their own labels, those that every sample has left out: {"zipage:blocks{live}": 3.0}."""
        samples = {}
        for line in self.request("GET", "/metrics")[1].splitlines():
            found = re.match(r'([^#{]+)\{engine="0",model_name="[^"]*",?([^}]*)\} (\S+)$', line)
            if found:
                name, labels, value = found.groups()
                label = re.sub(r'[a-z_]+="([^"]*)"', r"\1", labels)
                samples[name + (f"{{{label}}}" if label else "")] = float(value)
        return samples

    def rss(self):
        """Bytes of memory that the process holds."""
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=self.patience)


def events(text):
    """The data of server-sent events, JSON but for [DONE]."""
    data = [line[len("data: "):] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) if each != "[DONE]" else each for each in data]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def trusting(certificate):
    """A TLS context that trusts this certificate alone."""
    return ssl.create_default_context(cafile=str(certificate))
