// The inner loops of the compression's stages, for one layer and KV head: written once (compress_kernels_impl.h) and
// compiled for each instruction set. Plain pointers only, so that no inline function of another header is compiled
// twice with different instructions.
//
// Slots lie in tiles of 16, the slot being the vector lane: key tiles are [head_dim / 2][16][2] bf16 as in kv_layout.h,
// fp32 tiles [head_dim][16]. Lanes at or beyond num_slots may hold anything, NaN included, and count for nothing.
//
// Thread-safety: pure functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/isa.h"

namespace zipage::cpu {

struct HeadKeys {
  const uint16_t* const* tiles = nullptr;  // [ceil(num_slots / 16)]
  const int32_t* positions = nullptr;      // [ceil(num_slots / 16) * 16]; ascending up to num_slots, then 0
  int num_slots = 0;
  int head_dim = 0;  // even
};

// Stage 1 of one head. scratch: window_scratch_bytes().
struct WindowKernelArgs {
  HeadKeys keys;
  const float* queries = nullptr;  // [window][group][head_dim]
  float scale = 0;
  int window = 0;
  int group = 0;
  int first_row_position = 0;  // position of row 0
  int row_stride = 1;          // positions from a row to the next
  std::byte* scratch = nullptr;
  float* out = nullptr;  // [num_slots]
};

// Stage 4 of one head. scratch: redundancy_scratch_bytes().
struct RedundancyKernelArgs {
  HeadKeys keys;
  const float* cos_sin = nullptr;  // [max_position, rotary_dim]; null leaves the rotation in
  int rotary_dim = 0;
  int chunk = 0;          // slots a chunk, a multiple of 16; >= num_slots for one chunk
  bool skip_last = true;  // leave out c[last(n), n] (and c[m, m]); false is scope mean
  float threshold = 0;
  float temperature = 0;
  std::byte* scratch = nullptr;
  float* out = nullptr;  // [num_slots]
};

constexpr int ceil16(int n) {
  return (n + 15) / 16 * 16;
}

constexpr int kMaxGroup = 64;  // query heads a KV head

// Window rows whose z stage 1 holds at a time.
constexpr int window_rows_at_once(int group) {
  return group < 8 ? 8 / group : 1;
}
// All keys in fp32, the mean, and z of the rows at hand.
constexpr size_t window_scratch_bytes(int num_slots, int head_dim, int group) {
  return sizeof(float) * static_cast<size_t>(ceil16(num_slots)) *
         static_cast<size_t>(head_dim + 1 + window_rows_at_once(group) * group);
}
// Unit keys, the columns still without last(n) (at most half of them are ever moved), their indices, and u.
constexpr size_t redundancy_scratch_bytes(int num_slots, int head_dim) {
  const auto slots = static_cast<size_t>(ceil16(num_slots));
  return sizeof(float) *
         ((slots + slots / 2 + 32U) * static_cast<size_t>(head_dim) + 4 * slots + static_cast<size_t>(head_dim) * 16U);
}

struct CompressKernels {
  void (*window_scores)(const WindowKernelArgs&);
  void (*redundancy)(const RedundancyKernelArgs&);
  // out[i] = |row i| of bf16 [n][head_dim], head_dim even.
  void (*row_norms)(const uint16_t* rows, int n, int head_dim, float* out);
  // How many of keys[0, n) are >= bound.
  int (*count_at_least)(const int32_t* keys, int n, int32_t bound);
  // One target tile of keys: lane i gets lane source_lanes[i] of source_tiles[i], which may be the target itself.
  void (*gather_key_tile)(uint16_t* target, const uint16_t* const* source_tiles, const int32_t* source_lanes,
                          int head_dim);
};

const CompressKernels& compress_kernels(Isa isa);

namespace portable {
extern const CompressKernels kCompressKernels;
}
namespace avx2 {
extern const CompressKernels kCompressKernels;
}
namespace avx512 {
extern const CompressKernels kCompressKernels;
}

}  // namespace zipage::cpu
