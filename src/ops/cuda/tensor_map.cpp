#include "ops/cuda/tensor_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ops/cuda/launch.h"

namespace zipage::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's function without linking the driver: the program starts on machines that have none.
EncodeTiled encode_tiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        "looking for cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess)
    throw DeviceError("The CUDA driver has no cuTensorMapEncodeTiled; update it.");
  return reinterpret_cast<EncodeTiled>(function);
}

// Dimensions from the innermost on, in elements; strides of all but the innermost.
template <size_t kRank>
CUtensorMap encode_map(const void* data, const cuuint64_t (&sizes)[kRank], const cuuint64_t (&strides)[kRank - 1],
                       const cuuint32_t (&box)[kRank]) {
  static const EncodeTiled encode = encode_tiled();
  cuuint32_t steps[kRank];
  cuuint64_t stride_bytes[kRank - 1];
  std::fill_n(steps, kRank, 1);
  std::transform(strides, strides + kRank - 1, stride_bytes, [](cuuint64_t stride) { return stride * 2; });
  CUtensorMap map{};
  const CUresult status = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(data), sizes,
                                 stride_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw DeviceError(fmt::format("The CUDA driver refuses a tensor map of sizes {}, strides {}, boxes {} (error {}).",
                                  fmt::join(sizes, "x"), fmt::join(strides, ", "), fmt::join(box, "x"),
                                  static_cast<int>(status)));
  }
  return map;
}

}  // namespace

CUtensorMap make_tensor_map(const void* data, int64_t rows, int64_t cols, int64_t stride, int box_rows) {
  const auto size = [](int64_t v) { return static_cast<cuuint64_t>(v); };
  return encode_map<2>(data, {size(cols), size(rows)}, {size(stride)}, {64, static_cast<cuuint32_t>(box_rows)});
}

CUtensorMap make_heads_map(const void* data, int64_t rows, int64_t heads, int64_t head_dim, int64_t stride,
                           int box_heads, int box_rows) {
  const auto size = [](int64_t v) { return static_cast<cuuint64_t>(v); };
  return encode_map<3>(data, {size(head_dim), size(heads), size(rows)}, {size(head_dim), size(stride)},
                       {64, static_cast<cuuint32_t>(box_heads), static_cast<cuuint32_t>(box_rows)});
}

}  // namespace zipage::cuda
