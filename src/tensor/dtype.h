// Element types of stored and computed tensors, and what one block of each takes.
#pragma once

#include <cstdint>
#include <string_view>

namespace zipage {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kI8,
  kU8,
  kI32,
  kI64,
  kBool,
  // ggml's block formats, as GGUF files store them
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  // what safetensors files may hold besides; no weight of ours is read from these
  kF64,
  kC64,
  kI16,
  kU16,
  kU32,
  kU64,
  kF8E5M2,
  kF8E8M0,
  kF6E2M3,
  kF6E3M2,
  kF4,
};

struct DTypeTraits {
  std::string_view name;  // "bf16", "q4_k"
  int block_elements;     // elements that share one block; 1 for plain types
  int block_bytes;
};

const DTypeTraits& traits(DType dtype);

// The types that dequantize() expands: f32, f16, bf16 and ggml's block formats.
bool is_weight_dtype(DType dtype);

}  // namespace zipage
