#define ZIPAGE_KERNEL_NAMESPACE avx2
#include "ops/cpu/compress_kernels_impl.h"
