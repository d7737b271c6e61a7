#include "ops/cpu/compress_kernels.h"

namespace zipage::cpu {

const CompressKernels& compress_kernels(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return avx512::kCompressKernels;
    case Isa::kAvx2:
      return avx2::kCompressKernels;
    case Isa::kPortable:
      break;
  }
  return portable::kCompressKernels;
}

}  // namespace zipage::cpu
