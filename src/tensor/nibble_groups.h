// Four-bit weights as the file has them: groups of 32 elements, element = q * scale + minimum.
//
// Thread-safety: all functions may run concurrently.
#pragma once

#include <cstdint>

#include "tensor/host_tensor.h"

namespace zipage {

constexpr int kNibbleGroup = 32;

// Q4_0, Q4_1 and Q4_K.
bool has_nibble_groups(DType dtype);

// Elements [first, first + count): q [count] in 0..15, scales and minima [count / 32]; the element is theirs exactly
// but for the rounding of q4_k's products to fp32. REQUIRES: has_nibble_groups(tensor.dtype); first and count are
// multiples of the type's block_elements.
void read_nibble_groups(const HostTensor& tensor, int64_t first, int64_t count, uint8_t* q, float* scales,
                        float* minima);

}  // namespace zipage
