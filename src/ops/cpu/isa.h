// Instruction sets that the kernels are written for. Files *_avx512.cpp and *_avx2.cpp are compiled for theirs and
// reached only through a launcher that has asked here.
//
// Thread-safety: all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace zipage::cpu {

enum class Isa : uint8_t {
  kPortable,  // any processor: the compiler's own vectors
  kAvx2,      // AVX2, FMA, F16C
  kAvx512,    // AVX-512 F, BW, VL, DQ, VNNI
};

std::string_view name(Isa isa);  // "portable", "avx2", "avx512"
bool supported(Isa isa);         // by this processor and its operating system
Isa best_isa();

}  // namespace zipage::cpu
