#include "ops/cpu/kernel_table.h"
#include "ops/cpu/simd_portable.h"

namespace zipage::cpu {

extern constexpr Kernels kPortableKernels = kernel_table<Portable>();

}  // namespace zipage::cpu
