#define ZIPAGE_KERNEL_NAMESPACE avx512
#include "ops/cpu/compress_kernels_impl.h"
