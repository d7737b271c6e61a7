// The kernels of compress_kernels.h, compiled once per instruction set into ZIPAGE_KERNEL_NAMESPACE.
#include "ops/cpu/compress_kernels.h"
#include "ops/cpu/compress_simd.h"

namespace zipage::cpu::ZIPAGE_KERNEL_NAMESPACE {
namespace {

// Accumulators of a register block: kRows x kTiles vectors of 16.
#if defined(__AVX512F__)
constexpr int kRows = 8, kTiles = 3;
#elif defined(__AVX2__)
constexpr int kRows = 4, kTiles = 1;
#else
constexpr int kRows = 2, kTiles = 1;
#endif
constexpr float kLog2E = 1.44269504088896341F;
constexpr float kNegInf = -__builtin_inff();

// out[i][j] = row i . tile j: element d of row i is rows[i * row_step + d * element_step], tiles are [head_dim][16].
template <int R, int N>
ZIPAGE_INLINE void dot_block(const float* rows, int row_step, int element_step, const float* const* tiles, int head_dim,
                             F16 (&out)[R][N]) {
  F16 acc[R][N] = {};
  for (int d = 0; d < head_dim; ++d) {
    F16 k[N];
    for (int j = 0; j < N; ++j) k[j] = load(tiles[j] + d * 16);
    for (int i = 0; i < R; ++i) {
      const F16 q = splat(rows[i * row_step + d * element_step]);
      for (int j = 0; j < N; ++j) acc[i][j] = fma(q, k[j], acc[i][j]);
    }
  }
  for (int i = 0; i < R; ++i) {
    for (int j = 0; j < N; ++j) out[i][j] = acc[i][j];
  }
}

// [head_dim / 2][16][2] bf16 -> [head_dim][16] fp32.
ZIPAGE_INLINE void unpack_tile(const uint16_t* tile, int head_dim, float* out) {
  for (int d = 0; d < head_dim; d += 2) {
    int32_t pairs[16];
    std::memcpy(pairs, tile + d * 16, sizeof pairs);
    const I16 both = load(pairs);
    store(out + d * 16, as_float(both << 16));
    store(out + d * 16 + 16, as_float(both & splat(static_cast<int32_t>(0xffff0000))));
  }
}

ZIPAGE_INLINE I16 lanes_in_use(int tile, int num_slots) {
  return lane_index() < splat(num_slots - tile * 16);
}

#include "ops/cpu/compress_redundancy_kernel.h"
#include "ops/cpu/compress_window_scores_kernel.h"

// ---- between stages 1 and 2 ----

void row_norms(const uint16_t* rows, int n, int head_dim, float* out) {
  for (int i = 0; i < n; ++i, rows += head_dim) {
    F16 squares = {};
    int d = 0;
    for (; d + 32 <= head_dim; d += 32) {
      int32_t pairs[16];
      std::memcpy(pairs, rows + d, sizeof pairs);
      const I16 both = load(pairs);
      const F16 low = as_float(both << 16), high = as_float(both & splat(static_cast<int32_t>(0xffff0000)));
      squares = fma(low, low, fma(high, high, squares));
    }
    float sum = 0;
    for (; d < head_dim; ++d) {
      const auto bits = static_cast<uint32_t>(rows[d]) << 16U;
      float x;
      std::memcpy(&x, &bits, sizeof x);
      sum += x * x;
    }
    for (int lane = 0; lane < 16; ++lane) sum += squares[lane];
    out[i] = __builtin_sqrtf(sum);
  }
}

// ---- stages 7 and 8 ----

int count_at_least(const int32_t* keys, int n, int32_t bound) {
  int count = 0;
  for (int i = 0; i < n; ++i) count += keys[i] >= bound ? 1 : 0;
  return count;
}

#if defined(__AVX512F__)
// All lanes from at most two source tiles: one permutation a pair of elements.
ZIPAGE_INLINE void gather_two(uint32_t* target, const uint32_t* a, const uint32_t* b, const int32_t* select,
                              int pairs) {
  const __m512i choose = _mm512_loadu_si512(select);
  for (int p = 0; p < pairs; ++p) {
    const __m512i x = _mm512_loadu_si512(a + p * 16);
    const __m512i y = _mm512_loadu_si512(b + p * 16);
    _mm512_storeu_si512(target + p * 16, _mm512_permutex2var_epi32(x, choose, y));
  }
}
#endif

void gather_key_tile(uint16_t* target, const uint16_t* const* source_tiles, const int32_t* source_lanes, int head_dim) {
  const int pairs = head_dim / 2;
  auto* to = reinterpret_cast<uint32_t*>(target);
#if defined(__AVX512F__)
  const uint16_t* first = source_tiles[0];
  const uint16_t* second = source_tiles[15];  // kept slots ascend, so tiles between them lie in the middle
  bool two = true;
  int32_t select[16];
  for (int i = 0; i < 16; ++i) {
    two = two && (source_tiles[i] == first || source_tiles[i] == second);
    select[i] = source_lanes[i] + (source_tiles[i] == first ? 0 : 16);
  }
  if (two) {
    gather_two(to, reinterpret_cast<const uint32_t*>(first), reinterpret_cast<const uint32_t*>(second), select, pairs);
    return;
  }
#endif
  for (int p = 0; p < pairs; ++p) {
    uint32_t row[16];
    for (int i = 0; i < 16; ++i) row[i] = reinterpret_cast<const uint32_t*>(source_tiles[i])[p * 16 + source_lanes[i]];
    std::memcpy(to + p * 16, row, sizeof row);
  }
}

}  // namespace

const CompressKernels kCompressKernels = {window_scores, redundancy, row_norms, count_at_least, gather_key_tile};

}  // namespace zipage::cpu::ZIPAGE_KERNEL_NAMESPACE
