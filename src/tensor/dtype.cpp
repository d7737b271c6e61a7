#include "tensor/dtype.h"

#include <array>

namespace zipage {

const DTypeTraits& traits(DType dtype) {
  static constexpr std::array<DTypeTraits, 28> kTraits{{
      {"f32", 1, 4},      {"f16", 1, 2},      {"bf16", 1, 2},   {"f8_e4m3", 1, 1}, {"i8", 1, 1},
      {"u8", 1, 1},       {"i32", 1, 4},      {"i64", 1, 8},    {"bool", 1, 1},    {"q4_0", 32, 18},
      {"q4_1", 32, 20},   {"q5_0", 32, 22},   {"q5_1", 32, 24}, {"q8_0", 32, 34},  {"q4_k", 256, 144},
      {"q5_k", 256, 176}, {"q6_k", 256, 210}, {"f64", 1, 8},    {"c64", 1, 8},     {"i16", 1, 2},
      {"u16", 1, 2},      {"u32", 1, 4},      {"u64", 1, 8},    {"f8_e5m2", 1, 1}, {"f8_e8m0", 1, 1},
      {"f6_e2m3", 4, 3},  {"f6_e3m2", 4, 3},  {"f4", 2, 1},
  }};
  return kTraits[static_cast<size_t>(dtype)];
}

bool is_weight_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ8_0:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return true;
    default:
      return false;
  }
}

}  // namespace zipage
