#!/usr/bin/env python3
"""All rows of the GPU's table (docs/performance-cuda.md) with Qwen3-8B's geometry and made-up weights.

    bench/h200.py [--bench build/cuda/bench/bench_engine] [--out bench/results] [--commit HASH] [ROW...]

Writes one h200-ROW.json a row, with the commit, the device, its clocks right after the run and the peaks that the
row is read against, and prints the table. Needs Python's standard library, and the GPU for itself.
"""
import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PEAKS = {"copy_terabytes_per_second": 4.28, "read_terabytes_per_second": 4.39, "bf16_teraflops": 812}
COMMON = ["--model", str(HERE / "models/qwen3-8b/config.json"), "--load-format", "dummy", "--device", "cuda",
          "--swap-space", "0", "--enable-prefix-caching", "false"]
FULL = ["--kv-budget", "0", "--max-num-seqs", "256", "--max-num-batched-tokens", "8192", "--max-model-len", "8704"]
POOL = ["--num-gpu-blocks-override", "1536", "--max-num-seqs", "64", "--max-model-len", "4352"]
WHOLE = ["--gpu-memory-utilization", "0.95", "--max-model-len", "16640"]

# row: flags, work, the table's figure (a key of the result), what to beat, what is asked for
ROWS = {
    "one-stream": (FULL, "128x512x1", "decode_step_ms_p50", 5.13, 4.2),
    "batch-32": (FULL, "512x256x32", "full_batch_tokens_per_second", 5300, 6000),
    "decode-256": (FULL, "2176x256x256", "full_batch_tokens_per_second", 8899, 9900),
    "decode-80": (FULL, "8192x256x80", "full_batch_tokens_per_second", 2935, 2950),
    "prefill-256": (FULL, "2176x1x256", "prefill_tokens_per_second", 41900, 42500),
    "prefill-80": (FULL, "8192x1x80", "prefill_tokens_per_second", 37700, 38500),
    "pool-compressed": (POOL + ["--kv-budget", "1024", "--kv-slack", "256"], "128x4096x64",
                        "output_tokens_per_second", 3881, 9000),
    "pool-full": (POOL + ["--kv-budget", "0"], "128x4096x64", "output_tokens_per_second", 3881, None),
    "steady-compressed": (WHOLE + ["--kv-budget", "2048", "--kv-slack", "256", "--max-num-seqs", "320"],
                          "steady:128x16384x320x15", "output_tokens_per_second", 2935, 9500),
    "steady-exact": (WHOLE + ["--kv-budget", "2048", "--kv-slack", "256", "--redundancy", "exact", "--max-num-seqs",
                             "320"], "steady:128x16384x320x15", "output_tokens_per_second", 2935, 9500),
    "steady-full": (WHOLE + ["--kv-budget", "0", "--max-num-seqs", "80"], "steady:128x16384x80x10",
                    "output_tokens_per_second", 2935, None),
    "uncompressed-320": (WHOLE + ["--kv-budget", "0", "--max-num-seqs", "320", "--max-num-batched-tokens", "8192"],
                         "2112x128x320", "full_batch_tokens_per_second", None, None),
}


def device():
    fields = ["name", "driver_version", "memory.total", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw"]
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"],
                              capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        return {"error": str(error)}
    return dict(zip(fields, (value.strip() for value in text.splitlines()[0].split(","))))


def commit():
    found = subprocess.run(["git", "-C", str(HERE), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/cuda/bench/bench_engine")
    parser.add_argument("--out", default=str(HERE / "results"))
    parser.add_argument("--commit", default=None)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    options = parser.parse_args()
    rows = options.rows or list(ROWS)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    hash_of_build = options.commit or commit()

    # Rows with the same flags share an engine.
    groups = {}
    for row in rows:
        groups.setdefault(tuple(ROWS[row][0]), []).append(row)
    failed = False
    print(f"{'row':<26} {'ours':>10} {'to beat':>10} {'asked for':>10}")
    for flags, names in groups.items():
        path = out / "run.json"
        path.unlink(missing_ok=True)
        command = [options.bench, *COMMON, *flags, "--output-json", str(path), *(ROWS[name][1] for name in names)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            print(f"{' '.join(names)}: status {run.returncode}\n{run.stderr[-2000:]}", flush=True)
            failed = True
            continue
        answer = json.loads(path.read_text())
        path.unlink()
        for name, result in zip(names, answer["results"]):
            key, beat, asked = ROWS[name][2:]
            record = {"row": name, "commit": hash_of_build, "device": device(), "peaks": PEAKS, "flags": list(flags),
                      "figure": key, "value": result[key], "to_beat": beat, "asked_for": asked,
                      "start_seconds": answer["start_seconds"], "result": result}
            (out / f"h200-{name}.json").write_text(json.dumps(record, indent=1) + "\n")
            print(f"{name:<26} {result[key]:>10.2f} {beat or '':>10} {asked or '':>10}   "
                  f"step {result['decode_step_ms_p50']:.2f} ms, idle {result['idle_us_p50']:.1f} us, "
                  f"{result['compressions']} compressions", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
