// Element types of stored and computed tensors, and what one block of each takes.
#pragma once

#include <cstdint>
#include <string_view>

namespace zipage {

enum class DType : uint8_t {
  kF32, kF16, kBF16, kF8E4M3, kI8, kU8, kI32, kI64, kBool,
  // ggml's block formats, as GGUF files store them
  kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K,
};

struct DTypeTraits {
  std::string_view name;  // "bf16", "q4_k"
  int block_elements;     // elements that share one block; 1 for plain types
  int block_bytes;
};

const DTypeTraits& traits(DType dtype);

}  // namespace zipage
