// A named tensor in host memory, as a file holds it. A view: the file's mapping owns the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace zipage {

struct HostTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;       // [out_features, in_features] for a linear layer; row-major, last one contiguous
  std::span<const std::byte> data;  // exactly the bytes that shape and dtype ask for, aligned to their scalars

  int64_t rows() const { return shape.empty() ? 1 : shape.front(); }
  int64_t cols() const {
    int64_t product = 1;
    for (size_t i = 1; i < shape.size(); ++i) product *= shape[i];
    return product;
  }
};

// Expands `count` elements that start at row-major element `first` to fp32.
// REQUIRES: first and count are multiples of the type's block_elements; is_weight_dtype(tensor.dtype).
// Thread-safety: may run concurrently.
void dequantize(const HostTensor& tensor, int64_t first, int64_t count, float* out);

}  // namespace zipage
