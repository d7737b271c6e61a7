"""zipage serve, from outside, on the model that ships with the project."""
import json
import signal
import subprocess
import sys
import threading
import time
import unittest

from cli import MODEL, SOURCE, ZIPAGE, Cli
from served import PATIENCE, Server, events, free_port, trusting

SMALL = ("--num-gpu-blocks-override", 64, "--quiet")


def user(text):
    return [{"role": "user", "content": text}]


class Serve(Cli):
    def serve(self, *flags, **options):
        return Server(ZIPAGE, MODEL, *SMALL, *flags, **options)

    def test_a_served_answer_is_generate_s(self):
        line = {"prompt": "mod 100 .", "max_tokens": 12, "temperature": 0}
        offline = self.zipage("generate", MODEL, *SMALL, stdin=json.dumps(line))
        with self.serve() as server:
            answer = server.post("/v1/completions", line)
            self.assertEqual(answer["choices"][0]["text"], json.loads(offline.stdout)["text"])
            self.assertEqual(answer["model"], str(MODEL))
            streamed = events(server.request("POST", "/v1/completions", {**line, "stream": True})[1])
            text = "".join(event["choices"][0]["text"] for event in streamed[:-1])
            self.assertEqual(text, answer["choices"][0]["text"])

    def test_kv_stats_and_budget_on_request(self):
        body = {"prompt": "mod 100 .", "max_tokens": 300, "temperature": 0, "ignore_eos": True, "kv_stats": True}
        with self.serve("--kv-slack", 64, "--block-size", 16) as server:
            full = server.post("/v1/completions", {**body, "kv_budget": 0})["usage"]
            small = server.post("/v1/completions", {**body, "vllm_xargs": {"kv_budget": 64}})["usage"]
        self.assertEqual(full["kv_stats"]["evicted_tokens"], 0)
        self.assertGreater(small["kv_stats"]["compressions"], 0)
        self.assertLess(small["kv_stats"]["resident_tokens"], full["kv_stats"]["resident_tokens"])

    def test_a_thought_ends_at_its_budget(self):
        question = (SOURCE / "models/reasoner/questions/quantities.jsonl").read_text().splitlines()[0]
        body = {"messages": json.loads(question)["messages"], "max_tokens": 40, "temperature": 0}
        with self.serve() as server:
            free = server.post("/v1/chat/completions", body)["choices"][0]["message"]
            bound = server.post("/v1/chat/completions", {**body, "thinking_token_budget": 5})["choices"][0]["message"]
        self.assertTrue(free["reasoning_content"].startswith(bound["reasoning_content"]))
        self.assertLess(len(bound["reasoning_content"]), len(free["reasoning_content"]))
        self.assertTrue(bound["content"])

    def test_tls(self):
        data = SOURCE / "tests/data/server"
        flags = ("--ssl-certfile", data / "localhost.crt", "--ssl-keyfile", data / "localhost.key")
        with self.serve(*flags, ssl_context=trusting(data / "localhost.crt")) as server:
            body = {"prompt": "mod 100 .", "max_tokens": 4, "stream": True}
            self.assertEqual(events(server.request("POST", "/v1/completions", body)[1])[-1], "[DONE]")
            connection = server.connect()
            for _ in range(3):
                connection.request("GET", "/health")
                self.assertEqual(connection.getresponse().read(), b"")
            connection.close()

    def test_keys_come_from_the_environment_too(self):
        with self.serve(environment={"VLLM_API_KEY": "secret"}) as server:
            self.assertEqual(server.request("GET", "/v1/models")[0], 401)
            self.assertEqual(server.request("GET", "/v1/models", headers={"Authorization": "Bearer secret"})[0], 200)

    def test_sigterm_lets_running_requests_end_and_the_exit_status_is_0(self):
        with self.serve("--shutdown-timeout", PATIENCE) as server:
            result = {}
            body = {"prompt": "mod 100 .", "max_tokens": 400, "ignore_eos": True}
            running = threading.Thread(target=lambda: result.update(server.post("/v1/completions", body)))
            running.start()
            while server.metrics()["vllm:num_requests_running"] == 0:
                time.sleep(0.005)
            self.assertEqual(server.end(), 0)
            running.join()
            self.assertEqual(result["usage"]["completion_tokens"], 400)

    def test_a_second_signal_ends_at_once(self):
        with self.serve("--shutdown-timeout", 100) as server:
            connection = server.socket()
            body = json.dumps({"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True})
            connection.sendall(f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            connection.recv(100)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            self.assertEqual(server.end(), 130)
            connection.close()

    def test_what_cannot_be_served_is_said_before_the_model_is_loaded(self):
        self.assert_fails(self.zipage("serve", MODEL, "--host", "no.such.host.invalid", *SMALL), 2, "--host")
        self.assert_fails(self.zipage("serve", MODEL, "--ssl-certfile", "x", *SMALL), 2, "go together")
        taken = free_port()
        with Server(ZIPAGE, MODEL, *SMALL) as server:
            taken = server.port
            self.assert_fails(self.zipage("serve", MODEL, "--host", "127.0.0.1", "--port", taken, *SMALL), 3,
                              "cannot listen")
        self.assert_fails(self.zipage("serve", MODEL, "--port", 0, "--reasoning-parser", "qwen33", *SMALL), 2, "qwen33")

    def test_a_short_soak(self):
        soak = SOURCE / "tests/journeys/server_soak.py"
        result = subprocess.run([sys.executable, "-B", soak, "--zipage", ZIPAGE, "--model", MODEL, "--seconds", "5"],
                                capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
