#define ZIPAGE_KERNEL_NAMESPACE portable
#include "ops/cpu/compress_kernels_impl.h"
