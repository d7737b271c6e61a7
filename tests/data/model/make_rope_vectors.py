#!/usr/bin/env python3
"""Writes rope_vectors.json: what transformers computes for every kind of scaled rotary embedding.

Needs PyPI's transformers (5.24.0 made the committed file) and numpy, not PyTorch: the few tensor calls that
modeling_rope_utils makes are answered by numpy in double precision.
"""

import json
import pathlib
import types

import numpy
import transformers
from transformers import modeling_rope_utils


class Tensor(numpy.ndarray):
    def to(self, device=None, dtype=None):
        return self.astype(dtype).view(Tensor) if dtype is not None else self

    def float(self):
        return self.astype(numpy.float64).view(Tensor)


def tensor(values, dtype=None, device=None):
    return numpy.asarray(values, dtype=dtype).view(Tensor)


modeling_rope_utils.torch = types.SimpleNamespace(
    Tensor=Tensor,
    float=numpy.float64,
    float32=numpy.float64,
    int64=numpy.int64,
    arange=lambda *args, dtype=None, device=None: tensor(numpy.arange(*args), dtype or numpy.int64),
    tensor=tensor,
    where=numpy.where,
    clamp=numpy.clip,
)

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def long_factors(count, top):
    return [round(1 + (top - 1) * (i / (count - 1)) ** 2, 4) for i in range(count)]


LONGROPE = {"rope_type": "longrope", "short_factor": long_factors(16, 1.5), "long_factor": long_factors(16, 40.0),
            "original_max_position_embeddings": 4096}


# name, fields beside the sizes, the longest sequence
CASES = [
    ("default", {}, 4096),
    ("default_theta", {"rope_theta": 1000000.0, "head_dim": 128}, 4096),
    ("default_partial", {"partial_rotary_factor": 0.5, "head_dim": 64}, 4096),
    ("rope_parameters", {"rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0}}, 4096),
    ("linear", {"rope_scaling": {"type": "linear", "factor": 4.0}}, 8192),
    ("linear_v5", {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 500000.0}}, 8192),
    ("dynamic_short", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 2048}, 2048),
    ("dynamic_long", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 2048}, 8192),
    ("llama3_1", {"rope_theta": 500000.0, "head_dim": 128, "max_position_embeddings": 131072,
                  "rope_scaling": LLAMA3}, 131072),
    ("llama3_2", {"rope_theta": 500000.0, "head_dim": 64, "max_position_embeddings": 131072,
                  "rope_scaling": {**LLAMA3, "factor": 32.0}}, 131072),
    ("yarn_qwen", {"rope_theta": 1000000.0, "head_dim": 128, "max_position_embeddings": 40960,
                   "rope_scaling": YARN}, 131072),
    ("yarn_no_truncate", {"rope_theta": 150000.0, "head_dim": 64,
                          "rope_scaling": {**YARN, "factor": 32.0, "original_max_position_embeddings": 4096,
                                           "truncate": False}}, 131072),
    ("yarn_betas", {"rope_scaling": {**YARN, "beta_fast": 16, "beta_slow": 2, "factor": 8.0}}, 131072),
    ("yarn_beta_zero", {"rope_scaling": {**YARN, "beta_fast": 0, "beta_slow": 0}}, 131072),
    ("yarn_default_original", {"max_position_embeddings": 8192,
                               "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 8192),
    ("yarn_outer_original", {"max_position_embeddings": 65536, "original_max_position_embeddings": 16384,
                             "rope_scaling": {"type": "yarn", "factor": 4.0}}, 65536),
    ("yarn_factor_null", {"max_position_embeddings": 65536, "rope_scaling": {**YARN, "factor": None}}, 65536),
    ("yarn_tiny_head", {"head_dim": 4, "rope_scaling": YARN}, 65536),
    ("yarn_mscale_equal", {"rope_scaling": {**YARN, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}}, 65536),
    ("yarn_mscale_apart", {"rope_scaling": {**YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.5}}, 65536),
    ("yarn_mscale_alone", {"rope_scaling": {**YARN, "factor": 16.0, "mscale": 2.0}}, 65536),
    ("yarn_mscale_zero", {"rope_scaling": {**YARN, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 0.0}}, 65536),
    ("yarn_attention_factor", {"rope_scaling": {**YARN, "factor": 16.0, "attention_factor": 0.75, "mscale": 1.0,
                                                "mscale_all_dim": 0.5}}, 65536),
    ("yarn_factor_one", {"rope_scaling": {**YARN, "factor": 1.0}}, 32768),
    ("longrope_short", {"max_position_embeddings": 131072, "rope_scaling": LONGROPE}, 4096),
    ("longrope_long", {"max_position_embeddings": 131072, "rope_scaling": LONGROPE}, 4097),
    ("longrope_factor", {"max_position_embeddings": 131072, "rope_scaling": {**LONGROPE, "factor": 8.0}}, 131072),
    ("longrope_attention_factor", {"max_position_embeddings": 131072,
                                   "rope_scaling": {**LONGROPE, "attention_factor": 1.25}}, 131072),
    ("longrope_not_longer", {"max_position_embeddings": 4096, "rope_scaling": LONGROPE}, 4096),
]


def vector(name, fields, max_model_len):
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1,
             "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 4096, "head_dim": 32}
    written = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes, **fields}
    config = transformers.LlamaConfig(**json.loads(json.dumps({**sizes, **fields})))
    parameters = config.rope_parameters
    if parameters["rope_type"] == "default":  # computed by each model's own code, not in the table
        dim = int(config.head_dim * parameters.get("partial_rotary_factor", 1.0))
        inv_freq, scale = parameters["rope_theta"] ** (-numpy.arange(0, dim, 2) / dim), 1.0
    else:
        compute = modeling_rope_utils.ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
        inv_freq, scale = compute(config, None, seq_len=max_model_len)
    return {"name": name, "config": written, "max_model_len": max_model_len, "attention_scale": float(f"{scale:.13g}"),
            "inv_freq": [float(f"{value:.13g}") for value in inv_freq]}


def main():
    lines = [json.dumps(vector(*case), separators=(",", ":")) for case in CASES]
    path = pathlib.Path(__file__).with_name("rope_vectors.json")
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
