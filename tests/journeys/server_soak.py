#!/usr/bin/env python3
"""Mixed traffic against a small pool with compression: answers, aborts, slow readers, malformed requests.

Fails when an error comes that no client caused, when the canary's answer changes, when blocks or query slots do not
come back, or when memory keeps growing.

  tests/journeys/server_soak.py --zipage build/release/zipage --model models/reasoner/model --seconds 1200
"""
import argparse
import json
import random
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "apps"))
from served import Server, events  # noqa: E402

CANARY = {"prompt": "mod 100 .", "max_tokens": 24, "temperature": 0, "kv_budget": 0}
PROMPTS = ["mod 100 .", "roads .", "a", "boxes and more boxes " * 20, "the quick brown fox " * 40]
MALFORMED = [b"{", b'{"prompt": 1}', b'{"prompt": "a", "max_tokens": -1}', b'{"prompt": [99999999]}', b"[" * 5000,
             b'{"prompt": "a", "kv_budget": 3}', b"\xff\xfe", b'{"messages": []}']


class Soak:
    def __init__(self, server, seed):
        self.server = server
        self.seed = seed
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.counts = {}
        self.faults = []

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fault(self, what):
        with self.lock:
            self.faults.append(what)
        self.stop.set()

    def body(self, rng):
        return {"prompt": rng.choice(PROMPTS), "max_tokens": rng.randint(1, 300), "temperature": rng.choice([0, 1]),
                "ignore_eos": rng.random() < 0.5, "kv_budget": rng.choice([0, 64, 128]), "n": rng.choice([1, 1, 1, 3]),
                "priority": rng.randint(-1, 1), "seed": rng.randint(0, 9)}

    def raw(self, body, path="/v1/completions"):
        connection = self.server.socket()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        return connection

    # ---- kinds of clients

    def whole(self, rng):
        status, text = self.server.request("POST", "/v1/completions", self.body(rng))
        if status not in (200, 429):
            self.fault(f"{status}: {text[:300]}")
        self.count("whole" if status == 200 else "refused")

    def streamed(self, rng):
        body = {**self.body(rng), "stream": True, "stream_options": {"include_usage": True}}
        status, text = self.server.request("POST", "/v1/completions", body)
        if status == 429:
            return self.count("refused")
        received = events(text)
        if status != 200 or received[-1] != "[DONE]" or "error" in received[-2]:
            return self.fault(f"{status}: {text[-300:]}")
        finished = sum(c["finish_reason"] is not None for event in received[:-2] for c in event["choices"])
        if finished != body["n"]:
            self.fault(f"{finished} of {body['n']} choices finished")
        self.count("streamed")

    def leaves(self, rng):
        connection = self.raw({**self.body(rng), "max_tokens": 300, "ignore_eos": True, "stream": rng.random() < 0.5})
        time.sleep(rng.random() * 0.3)
        connection.close()
        self.count("left")

    def slow(self, rng):
        connection = self.raw({**self.body(rng), "stream": True})
        while True:
            piece = connection.recv(256)
            if not piece or b"[DONE]" in piece or self.stop.is_set():
                break
            time.sleep(0.01)
        connection.close()
        self.count("slow")

    def malformed(self, rng):
        connection = self.raw(rng.choice(MALFORMED))
        answer = connection.recv(4096)
        connection.close()
        if not answer.startswith(b"HTTP/1.1 400"):
            self.fault(f"malformed: {answer[:300]}")
        self.count("malformed")

    def run_client(self, number):
        rng = random.Random(self.seed * 1000 + number)
        kinds = [self.whole, self.streamed, self.leaves, self.slow, self.malformed]
        while not self.stop.is_set():
            try:
                rng.choices(kinds, weights=[4, 4, 3, 1, 2])[0](rng)
            except OSError as error:
                self.fault(f"connection: {error}")

    def canary(self):
        return self.server.post("/v1/completions", CANARY)["choices"][0]["text"]


def idle(server, seconds=30):
    """Waits until nothing runs; returns what has not come back."""
    until = time.monotonic() + seconds
    while True:
        metrics = server.metrics()
        left = {name: metrics[name] for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                                                 "zipage:blocks{live}", "zipage:query_slots_used") if metrics[name]}
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--zipage", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-json", help="the numbers, with memory over time")
    arguments = parser.parse_args()
    flags = ("--block-size", 16, "--num-gpu-blocks-override", 80, "--max-num-seqs", 8, "--kv-budget", 128, "--kv-slack",
             32, "--max-queued-requests", 64, "--scheduling-policy", "priority", "--quiet")
    # A soak is about what is lost and what leaks: beside other work on the machine it may take its time.
    with Server(arguments.zipage, arguments.model, *flags, patience=600) as server:
        soak = Soak(server, arguments.seed)
        expected = soak.canary()
        threads = [threading.Thread(target=soak.run_client, args=(i,)) for i in range(arguments.clients)]
        for thread in threads:
            thread.start()
        begin = time.monotonic()
        memory = []
        # The first tenth fills caches and buffers.
        while time.monotonic() - begin < arguments.seconds and not soak.stop.is_set():
            soak.stop.wait(min(5.0, arguments.seconds / 5))
            memory.append((time.monotonic() - begin, server.rss()))
            if arguments.seconds > 60:
                print(f"{memory[-1][0]:6.0f} s  {memory[-1][1] / 2**20:.1f} MiB  {soak.counts}", flush=True)
            try:
                text = soak.canary()
                if text != expected:
                    soak.fault(f"the canary said {text!r}, before {expected!r}")
            except AssertionError as error:
                if "429" not in str(error):
                    soak.fault(str(error))
        soak.stop.set()
        for thread in threads:
            thread.join()
        left = idle(server)
        if left:
            soak.faults.append(f"not given back: {left}")
        if soak.canary() != expected:
            soak.faults.append("the canary's answer has changed")
        growth = None
        warm = [size for at, size in memory if at > arguments.seconds / 10]
        if len(warm) >= 20:
            half = len(warm) // 2
            growth = max(warm[half:]) - max(warm[:half])
            print(f"memory: {max(warm[:half]) / 2**20:.1f} MiB in the first half, {growth / 2**20:+.1f} in the second")
            if growth > 8 * 2**20:
                soak.faults.append(f"memory has grown by {growth} bytes")
        counts = server.metrics()
        print(soak.counts, {name: counts[name] for name in ("zipage:compressions_total", "vllm:num_preemptions_total",
                                                            "vllm:request_success_total{abort}")})
        if server.end() != 0:
            soak.faults.append("the server did not end well:\n" + server.log)
        if arguments.output_json:
            numbers = {"seconds": round(time.monotonic() - begin), "clients": arguments.clients, "flags": list(map(str, flags)),
                       "requests": soak.counts, "faults": soak.faults, "not_given_back": left, "growth_bytes_second_half": growth,
                       "metrics": {name: value for name, value in sorted(counts.items()) if name.endswith("_total") or "_total{" in name},
                       "rss_mib": [[round(at), round(size / 2**20, 1)] for at, size in memory[::12]]}
            Path(arguments.output_json).write_text(json.dumps(numbers, indent=1) + "\n")
        for fault in soak.faults:
            print("FAULT", fault, file=sys.stderr)
        return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
