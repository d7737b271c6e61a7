#!/usr/bin/env python3
"""Writes the inputs that the fuzz targets safetensors, gguf and model_config start from: ../safetensors, ../gguf and
../model_config. Needs PyPI's gguf (0.19.0) and numpy."""

import json
import pathlib
import struct

import gguf
import numpy

DATA = pathlib.Path(__file__).resolve().parent.parent


def safetensors(tensors, data_bytes, metadata=None):
    header = json.dumps({**({"__metadata__": metadata} if metadata else {}), **tensors}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + bytes(range(data_bytes))


def write(folder, name, content):
    (DATA / folder).mkdir(exist_ok=True)
    (DATA / folder / name).write_bytes(content)


def write_gguf(name, architecture):
    (DATA / "gguf").mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(DATA / "gguf" / name, architecture)
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_context_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_token_list(["a", "b", "\u2581c"])
    writer.add_token_scores([0.0, -1.0, -2.0])
    writer.add_eos_token_id(2)
    random = numpy.random.default_rng(1)
    writer.add_tensor("token_embd.weight", random.normal(size=(3, 32)).astype(numpy.float16))
    rows = random.normal(size=(32, 32)).astype(numpy.float32)
    for tensor, kind in (("attn_q", gguf.GGMLQuantizationType.Q8_0), ("ffn_up", gguf.GGMLQuantizationType.Q4_1)):
        writer.add_tensor(f"blk.0.{tensor}.weight", gguf.quants.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    write("safetensors", "two.safetensors",
          safetensors({"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
                       "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]}}, 16, {"format": "pt"}))
    write("safetensors", "none.safetensors", safetensors({}, 0))
    for architecture in ("llama", "qwen3"):
        write_gguf(f"{architecture}.gguf", architecture)
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 512}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "mscale": 1.0,
            "mscale_all_dim": 0.5, "beta_fast": 32, "beta_slow": 1, "truncate": False}
    longrope = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
    configs = {
        "llama": {"architectures": ["LlamaForCausalLM"], "rope_parameters": llama3, "attention_bias": True},
        "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": None, "rope_scaling": longrope},
        "qwen2": {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 64, "eos_token_id": [1, 2]},
        "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32, "rope_scaling": yarn, "rope_theta": 1e6},
    }
    for name, fields in configs.items():
        write("model_config", f"{name}.json", json.dumps({**sizes, **fields}, indent=1).encode())


if __name__ == "__main__":
    main()
