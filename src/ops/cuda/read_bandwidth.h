// How fast the device reads its memory.
#pragma once

#include "ops/ops.h"

namespace zipage {

// Bytes a second, the best of some tries over memory larger than the caches; 0 where no memory is free for it.
// REQUIRES: the CUDA backend
double cuda_read_bytes_per_second(Backend& backend);

}  // namespace zipage
