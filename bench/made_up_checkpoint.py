#!/usr/bin/env python3
"""A Hugging Face directory with made-up weights of a Qwen3, to time how it loads.

    bench/made_up_checkpoint.py CONFIG FOLDER [--layers N]

CONFIG is a config.json (bench/models/qwen3-8b/config.json: 16.4 GB). Writes config.json and model.safetensors, bf16, all
numbers small. Needs Python's standard library alone.
"""
import argparse
import json
import math
import pathlib
import random

PIECE_WORDS = 1 << 22  # written again and again


def shapes(config):
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", [vocab, hidden]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", [hidden]
        for name, rows in ("q", queries), ("k", keys), ("v", keys):
            yield layer + f"self_attn.{name}_proj.weight", [rows, hidden]
        yield layer + "self_attn.o_proj.weight", [hidden, queries]
        for name in "q", "k":
            yield layer + f"self_attn.{name}_norm.weight", [head]
        yield layer + "post_attention_layernorm.weight", [hidden]
        for name in "gate", "up":
            yield layer + f"mlp.{name}_proj.weight", [inner, hidden]
        yield layer + "mlp.down_proj.weight", [hidden, inner]
    yield "model.norm.weight", [hidden]
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", [vocab, hidden]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, help="in place of the configuration's")
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    if options.layers:
        config["num_hidden_layers"] = options.layers
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")

    header, end = {}, 0
    for name, shape in shapes(config):
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Of random bits the sign and the mantissa, with the exponent of numbers from 2^-7 on.
    mask, exponent = (int.from_bytes(word * PIECE_WORDS, "little") for word in (b"\x7f\x80", b"\x00\x3c"))
    piece = (random.Random(1).getrandbits(16 * PIECE_WORDS) & mask | exponent).to_bytes(2 * PIECE_WORDS, "little")
    with open(options.folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, len(piece)):
            file.write(piece[: end - begin])
    print(f"{end} bytes of weights")


if __name__ == "__main__":
    main()
