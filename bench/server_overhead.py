#!/usr/bin/env python3
"""What the server costs beside the engine alone, on one machine with its client: tokens a second at 64 clients over those
of `zipage bench throughput`, in turn, and the time to the first token over the time of its prefill at low load.

    bench/server_overhead.py [--zipage build/release/zipage] [--rounds 9] [--json FILE]
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import time
import urllib.request

MODEL = "models/reasoner/model"
ENGINE = "--max-num-seqs 64 --num-gpu-blocks-override 1200 --kv-budget 0 --swap-space 0 --no-enable-prefix-caching"
NUM_FIRST_TOKENS = 30


class Server:
    def __init__(self, zipage, port):
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [zipage, "serve", MODEL, *ENGINE.split(), "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while True:
            try:
                urllib.request.urlopen(self.url + "/ready")
                return
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit("the server does not start")
                time.sleep(0.05)

    def seconds(self, histogram):
        text = urllib.request.urlopen(self.url + "/metrics").read().decode()
        return float(re.search(rf"^vllm:{histogram}_sum{{[^}}]*}} (\S+)", text, re.M).group(1))

    def stop(self):
        self.process.terminate()
        self.process.wait()


def run(*command):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run(
            [*command, "-q", "--output-json", file.name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return json.load(open(file.name))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zipage", default="build/release/zipage")
    parser.add_argument("--port", type=int, default=18990)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json")
    options = parser.parse_args()
    zipage = options.zipage

    def offline():
        command = [zipage, "bench", "throughput", MODEL, *ENGINE.split()]
        return run(*command, "--num-prompts", "64", "--input-len", "32", "--output-len", "256")[
            "output_tokens_per_second"
        ]

    def load(server, *flags):
        return run(zipage, "bench", "serve", "--base-url", server.url, *flags)

    server = Server(zipage, options.port)
    try:
        alone, served, ratios, first = [offline()], [], [], []
        for _ in range(options.rounds):
            flags = "--num-prompts 64 --random-input-len 32 --random-output-len 256"
            served.append(load(server, *flags.split())["output_throughput"])
            alone.append(offline())
            ratios.append(served[-1] / statistics.mean(alone[-2:]))
        for length in (32, 512):
            for rate in ("inf", "5"):
                for _ in range(3):
                    before = server.seconds("request_prefill_time_seconds")
                    flags = f"--num-prompts {NUM_FIRST_TOKENS} --max-concurrency 1 --request-rate {rate}"
                    flags += f" --random-input-len {length} --random-output-len 8"
                    ttft = load(server, *flags.split())["mean_ttft_ms"]
                    prefill = (server.seconds("request_prefill_time_seconds") - before) / NUM_FIRST_TOKENS * 1e3
                    first.append(
                        {
                            "prompt_tokens": length,
                            "requests_per_second": rate,
                            "ttft_ms": round(ttft, 2),
                            "prefill_ms": round(prefill, 2),
                            "over_prefill_ms": round(ttft - prefill, 2),
                        }
                    )
    finally:
        server.stop()
    result = {
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip(),
        "command": f"bench/server_overhead.py --rounds {options.rounds}",
        "model": MODEL,
        "flags": ENGINE,
        "clients": 64,
        "offline_output_tokens_per_second": [round(x) for x in alone],
        "served_output_tokens_per_second": [round(x) for x in served],
        "served_over_mean_of_offline_before_and_after": [round(x, 3) for x in ratios],
        "median_ratio": round(statistics.median(ratios), 3),
        "first_token": first,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        open(options.json, "w").write(text + "\n")


if __name__ == "__main__":
    main()
