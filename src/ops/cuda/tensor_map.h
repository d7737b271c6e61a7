// Descriptions of matrices for Hopper's tensor copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace zipage::cuda {

// A bf16 matrix [rows, cols], rows `stride` elements apart, read in boxes of [box_rows, 64], which land in shared
// memory as rows of 128 bytes in the 128-byte swizzle; what a box covers beyond the matrix reads as zero. REQUIRES:
// data 16-byte aligned, stride a multiple of 8, box_rows <= 256. Throws DeviceError.
CUtensorMap make_tensor_map(const void* data, int64_t rows, int64_t cols, int64_t stride, int box_rows);

// The same of rows that are `heads` vectors of head_dim, read in boxes of [box_rows, box_heads, 64]: a row's heads one
// behind the other. REQUIRES: box_heads * box_rows <= 256.
CUtensorMap make_heads_map(const void* data, int64_t rows, int64_t heads, int64_t head_dim, int64_t stride,
                           int box_heads, int box_rows);

}  // namespace zipage::cuda
