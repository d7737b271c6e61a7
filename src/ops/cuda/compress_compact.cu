// Stage 8: the kept slots move together.
//
// Slot i of the result comes from t_i >= i, and a target that is a source block has at most its own index there. So
// what a write to slot i destroys had index t <= i and was kept, if at all, as some j <= i (C1). One block of threads
// walks a unit's K (another its V) in tiles: tile n is written when it has been read whole, and reads run ahead through
// stages in shared memory, which is always safe.
#include "ops/cuda/compress_source.cuh"

namespace zipage::cuda {
namespace {

// ---- numbers ----
constexpr int kThreads = 256;
constexpr int kTile = 32;  // slots
constexpr int kStages = 4;
static_assert(kTile <= kThreads);

struct Args {
  Source source;
  int budget;
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
  for (int base = 0; base < a.budget; base += kThreads) {
    const int i = base + threadIdx.x;
    int position = 0;
    float score = 0.0F;
    if (i < a.budget) {
      position = s.position(unit, kept[i]);
      if (a.scores != nullptr) score = a.scores[int64_t{unit} * s.num_slots + kept[i]];
    }
    __syncthreads();
    if (i < a.budget) {
      const int64_t at =
          score_index(s.geometry, s.layer(unit), a.targets[i / s.kv.block_size], s.head(unit), i % s.kv.block_size);
      a.pool_positions[at] = position;
      if (a.scores != nullptr) a.pool_scores[at] = score;
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) compact_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(16) std::byte stages[];  // [kStages, kTile, row_bytes]
  const Source& s = a.source;
  const int unit = blockIdx.x, layer = s.layer(unit), head = s.head(unit);
  const int64_t part = blockIdx.y * s.kv.value_offset;
  const int row_bytes = s.kv.row_bytes, chunks = row_bytes / 16, block_size = s.kv.block_size;
  const int32_t* kept = a.kept + int64_t{unit} * a.budget;
  const int tiles = a.budget / kTile + (a.budget % kTile != 0 ? 1 : 0);

  const auto read = [&](int tile) {
    std::byte* stage = stages + (tile % kStages) * kTile * row_bytes;
    const int slots = min(kTile, a.budget - tile * kTile);
    for (int c = threadIdx.x; c < slots * chunks; c += kThreads) {
      const int row = c / chunks, column = c % chunks;
      copy_async16(shared_address(stage + row * row_bytes + column * 16),
                   s.key_row(unit, kept[tile * kTile + row]) + part + column * 16, true);
    }
  };
  const auto write = [&](int tile) {
    const std::byte* stage = stages + (tile % kStages) * kTile * row_bytes;
    const int slots = min(kTile, a.budget - tile * kTile);
    for (int c = threadIdx.x; c < slots * chunks; c += kThreads) {
      const int row = c / chunks, column = c % chunks, i = tile * kTile + row, t = kept[i];
      const int target = a.targets[i / block_size];
      if (t == i && target == s.blocks[t / block_size]) continue;  // stays where it is
      std::byte* to = s.kv.key_row(layer, target, head, i % block_size) + part + column * 16;
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(stage + row * row_bytes + column * 16);
    }
  };

  for (int tile = 0; tile < kStages - 1; ++tile) {
    if (tile < tiles) read(tile);
    copy_commit();
  }
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + kStages - 1 < tiles) read(tile + kStages - 1);
    copy_commit();
    copy_wait<kStages - 1>();
    __syncthreads();
    write(tile);
    __syncthreads();
  }
  if (blockIdx.y == 0) move_numbers(a, unit);
}

}  // namespace

// ---- launcher ----

void compact(const Launch& launch, const CompactParams& p) {
  const Args a{.source = Source(p.source),
               .budget = p.budget,
               .kept = p.kept,
               .scores = p.scores,
               .targets = p.target_blocks,
               .pool_scores = p.source.kv.scores,
               .pool_positions = p.source.kv.positions};
  const int bytes = kStages * kTile * a.source.kv.row_bytes;
  check(cudaFuncSetAttribute(compact_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "compact");
  compact_kernel<<<dim3(a.source.num_units(), 2), kThreads, bytes, launch.stream>>>(a);
}

}  // namespace zipage::cuda
