#!/usr/bin/env python3
"""Writes block_vectors.txt: blocks of each ggml format and the values that PyPI's gguf (0.19.0) expands them to.

A line is "type blocks values": hexadecimal bytes of whole blocks, and of their values as little-endian fp32.
"""

import pathlib

import gguf
import numpy

# The fp16 fields of a block (byte offsets) and its size.
FORMATS = {
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, [0], 18),
    "q4_1": (gguf.GGMLQuantizationType.Q4_1, [0, 2], 20),
    "q5_0": (gguf.GGMLQuantizationType.Q5_0, [0], 22),
    "q5_1": (gguf.GGMLQuantizationType.Q5_1, [0, 2], 24),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, [0], 34),
    "q4_k": (gguf.GGMLQuantizationType.Q4_K, [0, 2], 144),
    "q5_k": (gguf.GGMLQuantizationType.Q5_K, [0, 2], 176),
    "q6_k": (gguf.GGMLQuantizationType.Q6_K, [208], 210),
}
# Ordinary, negative, largest, smallest normal, subnormal and zero scales.
SCALES = [0.0123, -0.75, 65504.0, 6.104e-05, 5.96e-08, 0.0]


def main():
    random = numpy.random.default_rng(20240607)
    lines = []
    for name, (kind, halves, size) in FORMATS.items():
        count = len(SCALES) if size < 64 else 3
        blocks = random.integers(0, 256, (count, size), dtype=numpy.uint8)
        for row in range(count):
            for field, offset in enumerate(halves):
                scale = numpy.float16(SCALES[(row + 2 * field) % len(SCALES)])
                blocks[row, offset:offset + 2] = numpy.frombuffer(scale.tobytes(), numpy.uint8)
        values = gguf.quants.dequantize(blocks.reshape(-1), kind).astype("<f4")
        lines.append(f"{name} {blocks.tobytes().hex()} {values.tobytes().hex()}")
    pathlib.Path(__file__).with_name("block_vectors.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
