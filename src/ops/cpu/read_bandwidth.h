// How fast this machine reads memory: the yardstick of everything that streams weights and KV.
#pragma once

#include <cstdint>

#include "ops/cpu/thread_pool.h"

namespace zipage::cpu {

// Bytes a second that the pool's threads read together, from a buffer of `bytes`: the best of `tries`, since others may
// be using the machine. More bytes than the last-level cache holds measure the memory. 0 without AVX2.
double read_bytes_per_second(ThreadPool& pool, int64_t bytes, int tries);

}  // namespace zipage::cpu
