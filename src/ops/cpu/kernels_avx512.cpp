#include "ops/cpu/kernel_table.h"
#include "ops/cpu/simd_avx512.h"

namespace zipage::cpu {

extern constexpr Kernels kAvx512Kernels = kernel_table<Avx512>();

}  // namespace zipage::cpu
