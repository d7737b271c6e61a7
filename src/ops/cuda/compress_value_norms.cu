// Between stages 1 and 2: A[t] *= |v[t]| / mean |v|. A cluster of blocks reads a unit's values, each block a share of
// the slots; its scores are weighed by the lengths on the way and by the mean at the end.
#include "ops/cuda/compress_source.cuh"
#include "ops/cuda/hopper.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 192;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kCluster = 4;

// On a multiprocessor: a segment's share lies in registers.
constexpr int blocks_at_once(int parts) {
  return parts > 16 ? 3 : 5;
}

// ---- kernels ----

// Some lanes hold one value, of which the first kParts, head_dim / 8, have a part: uint4, or uint2 of fp8.
template <int kParts, typename Part>
class ValueSegment {
 public:
  __device__ static const Part* row(const Source& source, int unit, int t) {
    return reinterpret_cast<const Part*>(source.key_row(unit, t) + source.kv.value_offset) + sub() * kParts + part();
  }
  // row(..., first slot), of whose segment so many slots are there.
  __device__ void fetch(const Part* row, int slots) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      raw_[i] = Part{};
      if (part() < kParts && (slots >= kSegment || i * kTogether + sub() < slots))
        raw_[i] = row[i * kTogether * kParts];
    }
  }
  // The length of the segment's slot slot(); two lanes have it, and one of them owns it.
  __device__ float norm() const {
    // Added up over the lanes of a value, for all of them at once.
    float sum[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum[i] = squares(raw_[i]);
    float square[1];
    share_out<Sum, kLanes / 2, 2>(sum, square);
    return sqrtf(square[0] + __shfl_xor_sync(kFullMask, square[0], 1));
  }
  __device__ static int slot() {
    return part() / 2 * kTogether + sub();
  }
  __device__ static bool owns() {
    return part() % 2 == 0;
  }

 private:
  static constexpr int kLanes = kParts <= 8 ? 8 : kParts <= 16 ? 16 : 32;
  static constexpr int kTogether = kWarpSize / kLanes;  // values that a warp asks for at once
  static constexpr int kLoads = kSegment / kTogether;   // of a lane
  static_assert(kLoads == kLanes / 2);
  __device__ static int part() {
    return static_cast<int>(threadIdx.x) % kLanes;
  }
  __device__ static int sub() {
    return static_cast<int>(threadIdx.x) % kWarpSize / kLanes;
  }

  Part raw_[kLoads];
};

// The same on all blocks of the cluster: the sum of what they bring, in their order.
__device__ __forceinline__ float cluster_total(float own, int cluster, float* shared) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (cluster > 1) {
    if (threadIdx.x == 0) *shared = own;
    cluster_sync();
    float total = 0;
    for (int rank = 0; rank < cluster; ++rank)
      total += load_cluster_float(cluster_address(shared_address(shared), rank));
    cluster_sync();  // nobody leaves while others read
    return total;
  }
#endif
  return own;
}

template <int kParts, typename Part>
__global__ void __launch_bounds__(kThreads, blocks_at_once(kParts))
    value_norms_kernel(const __grid_constant__ Source source, float* scores, int cluster) {
  wait_for_previous();
  using Values = ValueSegment<kParts, Part>;
  __shared__ float partial[kWarpSize], brought;
  const int unit = static_cast<int>(blockIdx.x) / cluster, rank = static_cast<int>(blockIdx.x) % cluster;
  const int num_slots = source.num_slots, lane = threadIdx.x % kWarpSize;
  float* a = scores + int64_t{unit} * num_slots;
  const int segments = ceil_div(num_slots, kSegment);
  const int first = rank * kWarps + static_cast<int>(threadIdx.x) / kWarpSize, step = cluster * kWarps;
  float total = 0;
  const Part* row = first < segments ? Values::row(source, unit, first * kSegment) : nullptr;
  for (int segment = first; segment < segments; segment += step) {
    const int begin = segment * kSegment;
    Values values;
    values.fetch(row, num_slots - begin);
    // What the next round needs to begin, and this one to end, comes meanwhile.
    if (segment + step < segments) row = Values::row(source, unit, (segment + step) * kSegment);
    const int t = begin + Values::slot();
    const bool owns = Values::owns() && t < num_slots;
    const float score = owns ? a[t] : 0.0F;
    const float norm = values.norm();
    if (owns) {
      a[t] = score * norm;
      total += norm;
    }
  }
  total = cluster_total(block_reduce<Sum>(total, partial), cluster, &brought);
  const float scale = total > 0 ? static_cast<float>(num_slots) / total : 0.0F;
  for (int segment = first; segment < segments; segment += step) {
    const int t = segment * kSegment + lane;
    if (lane < kSegment && t < num_slots) a[t] *= scale;
  }
}

template <int kHeadDim>
void start(const Launch& launch, const Source& source, float* scores) {
  constexpr int kParts = kHeadDim / 8;
  const int cluster = launch.compute_capability < 90 ? 1 : kCluster;
  const auto kernel = source.kv.is_fp8 ? value_norms_kernel<kParts, uint2> : value_norms_kernel<kParts, uint4>;
  run_in_clusters(launch, cluster, kernel, source.num_units() * cluster, kThreads, 0, source, scores, cluster);
}

}  // namespace

// ---- launcher ----

void value_norms(const Launch& launch, const ValueNormsParams& p) {
  const Source source(p.source);
  dispatch<64, 96, 128, 256>(source.geometry.head_dim,
                             [&]<int kHeadDim>() { start<kHeadDim>(launch, source, p.scores); });
}

}  // namespace zipage::cuda
