#include "tensor/dtype.h"

#include <array>

namespace zipage {

const DTypeTraits& traits(DType dtype) {
  static constexpr std::array<DTypeTraits, 17> kTraits{{
      {"f32", 1, 4},  {"f16", 1, 2},  {"bf16", 1, 2},  {"f8_e4m3", 1, 1}, {"i8", 1, 1},      {"u8", 1, 1},
      {"i32", 1, 4},  {"i64", 1, 8},  {"bool", 1, 1},  {"q4_0", 32, 18},  {"q4_1", 32, 20},  {"q5_0", 32, 22},
      {"q5_1", 32, 24}, {"q8_0", 32, 34}, {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210},
  }};
  return kTraits[static_cast<size_t>(dtype)];
}

}  // namespace zipage
