// How fast a device reads its memory: the yardstick of everything that streams weights and KV.
#pragma once

#include <string_view>

#include "ops/ops.h"

namespace zipage {

// Bytes a second at best, measured at each call (some tenths of a second; on the CPU with `cpu`'s threads). 0 where it
// cannot be measured. `device` as for make_backend().
double measure_read_bandwidth(std::string_view device, const CpuOptions& cpu);

}  // namespace zipage
