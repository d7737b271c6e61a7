#include "ops/cpu/kernel_table.h"
#include "ops/cpu/simd_avx2.h"

namespace zipage::cpu {

extern constexpr Kernels kAvx2Kernels = kernel_table<Avx2>();

}  // namespace zipage::cpu
