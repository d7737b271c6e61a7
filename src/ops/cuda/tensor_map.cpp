#include "ops/cuda/tensor_map.h"

#include <fmt/format.h>

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

}  // namespace

CUtensorMap make_tensor_map(const void* data, int64_t rows, int64_t cols, int64_t stride, int box_rows) {
  static const EncodeTiled encode = encode_tiled();
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map{};
  const CUresult status = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides,
                                 box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw DeviceError(
        fmt::format("The CUDA driver refuses a tensor map of [{}, {}], stride {}, boxes of {} rows (error {}).", rows,
                    cols, stride, box_rows, static_cast<int>(status)));
  }
  return map;
}

}  // namespace zipage::cuda
