// Stage 8: the kept slots move together.
//
// Slot i of the result comes from t_i >= i, and a target that is a source block has at most its own index there, but
// for the retained ones at the end, whose K and V stay where they lie. So what a write to slot i destroys had index
// t <= i and was kept, if at all, as some j <= i (C1). One block of threads walks a unit's K (another its V) in tiles:
// tile n is written when it has been read whole, and reads run ahead through stages in shared memory, which is always
// safe. The same holds of the segments by which addresses are worked out: a segment's sources lie at or behind its own
// begin, and everything before that has been read.
#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;
constexpr int kTile = 32;  // slots
constexpr int kStages = 4;
constexpr int kSegment = 1024;  // slots whose addresses lie in shared memory
static_assert(kSegment % kTile == 0);

struct Args {
  Source source;
  int budget, moved;  // kept slots, those of them whose K and V move
  const int32_t* kept;
  const float* scores;  // or null
  const int32_t* targets;
  float* pool_scores;
  int32_t* pool_positions;
};

// ---- kernels ----

// Scores and positions: staged in registers, a tile of the whole block at a time.
__device__ void move_numbers(const Args& a, int unit) {
  const Source& s = a.source;
  const int32_t* kept = a.kept + int64_t{unit} * a.budget;
  constexpr int kOwn = 4;
  for (int base = 0; base < a.budget; base += kOwn * kThreads) {
    int position[kOwn];
    float score[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int i = base + j * kThreads + threadIdx.x;
      if (i >= a.budget) break;
      const int t = kept[i];
      position[j] = s.position(unit, t);
      score[j] = a.scores != nullptr ? a.scores[int64_t{unit} * s.num_slots + t] : 0.0F;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int i = base + j * kThreads + threadIdx.x;
      if (i >= a.budget) break;
      const int64_t at =
          score_index(s.geometry, s.layer(unit), a.targets[i / s.kv.block_size], s.head(unit), i % s.kv.block_size);
      a.pool_positions[at] = position[j];
      if (a.scores != nullptr) a.pool_scores[at] = score[j];
    }
    __syncthreads();
  }
}

template <int kRowBytes>
__global__ void __launch_bounds__(kThreads) compact_kernel(const __grid_constant__ Args a) {
  wait_for_previous();
  constexpr int kChunks = kRowBytes / 16;
  extern __shared__ __align__(16) std::byte stages[];  // [kStages, kTile, kRowBytes]
  __shared__ int2 rows[kSegment];                      // of the unit in the layer: source, target (or -1: stays)
  const Source& s = a.source;
  const int unit = blockIdx.x, block_size = s.kv.block_size;
  if (blockIdx.y == 2) return move_numbers(a, unit);  // K, V, and what goes with them
  // Row r of the layer's pool seen as an array of rows; a block has `stride` of them.
  const int stride = 2 * s.kv.num_kv_heads * block_size, first = s.head(unit) * block_size;
  std::byte* pool = s.kv.data + s.layer(unit) * s.kv.layer_bytes + blockIdx.y * s.kv.value_offset;
  const int32_t* kept = a.kept + int64_t{unit} * a.budget;

  for (int begin = 0; begin < a.moved; begin += kSegment) {
    const int slots = min(kSegment, a.moved - begin), tiles = ceil_div(slots, kTile);
    for (int i = threadIdx.x; i < slots; i += kThreads) {
      const int t = kept[begin + i], to = begin + i;
      const int source = s.blocks[t / block_size] * stride + first + t % block_size;
      const int target = a.targets[to / block_size] * stride + first + to % block_size;
      rows[i] = make_int2(source, source == target ? -1 : target);
    }
    __syncthreads();
    const auto read = [&](int tile) {
      std::byte* stage = stages + (tile % kStages) * kTile * kRowBytes;
#pragma unroll
      for (int c = threadIdx.x; c < kTile * kChunks; c += kThreads) {
        const int i = tile * kTile + c / kChunks;
        if (i >= slots) break;
        const int2 row = rows[i];
        if (row.y < 0) continue;
        copy_async16(shared_address(stage + c * 16), pool + int64_t{row.x} * kRowBytes + c % kChunks * 16, true);
      }
    };
    const auto write = [&](int tile) {
      const std::byte* stage = stages + (tile % kStages) * kTile * kRowBytes;
#pragma unroll
      for (int c = threadIdx.x; c < kTile * kChunks; c += kThreads) {
        const int i = tile * kTile + c / kChunks;
        if (i >= slots) break;
        const int2 row = rows[i];
        if (row.y < 0) continue;
        *reinterpret_cast<uint4*>(pool + int64_t{row.y} * kRowBytes + c % kChunks * 16) =
            *reinterpret_cast<const uint4*>(stage + c * 16);
      }
    };
    for (int tile = 0; tile < kStages - 1; ++tile) {
      if (tile < tiles) read(tile);
      copy_commit();
    }
    for (int tile = 0; tile < tiles; ++tile) {
      copy_wait<kStages - 2>();
      __syncthreads();  // the tile has arrived, and the stage before it is free
      if (tile + kStages - 1 < tiles) read(tile + kStages - 1);
      copy_commit();
      write(tile);
    }
    copy_wait<0>();
    __syncthreads();
  }
}

// ---- launcher ----

template <int kRowBytes>
void launch_compact(const Launch& launch, const Args& a) {
  constexpr int kBytes = kStages * kTile * kRowBytes;
  check(cudaFuncSetAttribute(compact_kernel<kRowBytes>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "compact");
  run(launch, compact_kernel<kRowBytes>, dim3(a.source.num_units(), 3), kThreads, kBytes, a);
}

}  // namespace

void compact(const Launch& launch, const CompactParams& p) {
  const Args a{.source = Source(p.source),
               .budget = p.budget,
               .moved = p.budget - p.num_retained * p.source.kv.geometry.block_size,
               .kept = p.kept,
               .scores = p.scores,
               .targets = p.target_blocks,
               .pool_scores = p.source.kv.scores,
               .pool_positions = p.source.kv.positions};
  dispatch<64, 96, 128, 192, 256, 512>(a.source.kv.row_bytes,
                                       [&]<int kRowBytes>() { launch_compact<kRowBytes>(launch, a); });
}

}  // namespace zipage::cuda
