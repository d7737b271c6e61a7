// Between stages 1 and 2: A[t] *= |v[t]| / mean |v|. One block of threads reads all values of a unit; its scores are
// weighed by the lengths on the way and by the mean at the end.
#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kVector = 8;    // elements a lane holds of a value
constexpr int kInFlight = 4;  // values that a lane has asked for at a time

// ---- kernels ----

__device__ __forceinline__ float squares(uint4 v) {
  float x[8];
  unpack8(v, x);
  float sum = 0;
#pragma unroll
  for (float e : x) sum += e * e;
  return sum;
}

__device__ __forceinline__ float squares(uint2 v) {
  float sum = 0;
#pragma unroll
  for (const uint32_t word : {v.x, v.y}) {
    const float2 a = fp8x2_to_float2(word), b = fp8x2_to_float2(word >> 16U);
    sum += a.x * a.x + a.y * a.y + b.x * b.x + b.y * b.y;
  }
  return sum;
}

// kLanes lanes hold one value, of which the first head_dim / 8 have a part.
template <int kLanes, typename Part>
__global__ void __launch_bounds__(kThreads) value_norms_kernel(const __grid_constant__ Source source, float* scores) {
  wait_for_previous();
  __shared__ float partial[kWarpSize];
  constexpr int kTogether = kWarpSize / kLanes;  // values of a warp
  const int unit = blockIdx.x, num_slots = source.num_slots, parts = source.geometry.head_dim / kVector;
  const int part = threadIdx.x % kLanes, mine = threadIdx.x / kLanes;
  float* a = scores + int64_t{unit} * num_slots;
  float total = 0;
  for (int base = 0; base < num_slots; base += kWarps * kTogether * kInFlight) {
    Part raw[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int t = base + j * kWarps * kTogether + mine;
      raw[j] = t < num_slots && part < parts
                   ? reinterpret_cast<const Part*>(source.key_row(unit, t) + source.kv.value_offset)[part]
                   : Part{};
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int t = base + j * kWarps * kTogether + mine;
      float sum = squares(raw[j]);
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset >>= 1) sum += __shfl_xor_sync(kFullMask, sum, offset);
      if (part != 0 || t >= num_slots) continue;
      const float norm = sqrtf(sum);
      a[t] *= norm;
      total += norm;
    }
  }
  total = block_reduce<Sum>(total, partial);  // and all of `a` is written
  const float scale = total > 0 ? num_slots / total : 0.0F;
  for (int t = threadIdx.x; t < num_slots; t += kThreads) a[t] *= scale;
}

template <int kLanes>
void start(const Launch& launch, const Source& source, float* scores) {
  if (source.kv.is_fp8) {
    run(launch, value_norms_kernel<kLanes, uint2>, source.num_units(), kThreads, 0, source, scores);
  } else {
    run(launch, value_norms_kernel<kLanes, uint4>, source.num_units(), kThreads, 0, source, scores);
  }
}

}  // namespace

// ---- launcher ----

void value_norms(const Launch& launch, const ValueNormsParams& p) {
  const Source source(p.source);
  const int parts = p.source.kv.geometry.head_dim / kVector;
  if (parts <= 8) return start<8>(launch, source, p.scores);
  if (parts <= 16) return start<16>(launch, source, p.scores);
  start<32>(launch, source, p.scores);
}

}  // namespace zipage::cuda
