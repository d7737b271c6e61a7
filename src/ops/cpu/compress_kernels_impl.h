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
constexpr int kStrip = 4;  // key tiles that are unpacked to fp32 at a time
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

// ---- stage 1 ----

// z of rows [first, first + R) of the strip's tiles. z is [rows][stride].
template <int R>
ZIPAGE_INLINE void score_rows(const WindowKernelArgs& a, int first, const float* strip, int tile0, int num_tiles,
                              float* z, int stride) {
  const int head_dim = a.keys.head_dim;
  const float* queries = a.queries + static_cast<ptrdiff_t>(first) * head_dim;
  int j = 0;
  const auto block = [&]<int N>() __attribute__((always_inline)) {
    const float* tiles[N];
    for (int n = 0; n < N; ++n) tiles[n] = strip + static_cast<ptrdiff_t>(j + n) * 16 * head_dim;
    F16 out[R][N];
    dot_block<R, N>(queries, head_dim, 1, tiles, head_dim, out);
    for (int i = 0; i < R; ++i) {
      for (int n = 0; n < N; ++n)
        store(z + static_cast<ptrdiff_t>(first + i) * stride + (tile0 + j + n) * 16, out[i][n]);
    }
    j += N;
  };
  while (num_tiles - j >= kTiles) block.template operator()<kTiles>();
  while (j < num_tiles) block.template operator()<1>();
}

// z = -inf where a row does not see a slot: positions behind the row's own, and lanes that hold no slot.
void hide_invisible(const WindowKernelArgs& a, float* z, int stride) {
  const int num_tiles = stride / 16;
  for (int tile = num_tiles - 1; tile >= 0; --tile) {
    const I16 used = lanes_in_use(tile, a.keys.num_slots);
    const int last = (tile + 1) * 16 <= a.keys.num_slots ? tile * 16 + 15 : a.keys.num_slots - 1;
    if (last == tile * 16 + 15 && a.keys.positions[last] <= a.first_row_position) break;  // and all tiles before it
    const I16 position = load(a.keys.positions + tile * 16);
    for (int row = 0; row < a.window * a.group; ++row) {
      const I16 visible = used & (position <= splat(a.first_row_position + row / a.group));
      float* cell = z + static_cast<ptrdiff_t>(row) * stride + tile * 16;
      store(cell, visible ? load(cell) : splat(kNegInf));
    }
  }
}

void window_scores(const WindowKernelArgs& a) {
  const int head_dim = a.keys.head_dim;
  const int stride = ceil16(a.keys.num_slots);
  const int num_tiles = stride / 16;
  const int rows = a.window * a.group;
  float* strip = reinterpret_cast<float*>(a.scratch);
  float* z = strip + kStrip * 16 * head_dim;
  float* weight = z + static_cast<ptrdiff_t>(rows) * stride;

  for (int tile = 0; tile < num_tiles; tile += kStrip) {
    const int n = num_tiles - tile < kStrip ? num_tiles - tile : kStrip;
    for (int i = 0; i < n; ++i)
      unpack_tile(a.keys.tiles[tile + i], head_dim, strip + static_cast<ptrdiff_t>(i) * 16 * head_dim);
    int row = 0;
    for (; row + kRows <= rows; row += kRows) score_rows<kRows>(a, row, strip, tile, n, z, stride);
    for (; row < rows; ++row) score_rows<1>(a, row, strip, tile, n, z, stride);
  }
  hide_invisible(a, z, stride);

  for (int row = 0; row < rows; ++row) {
    float* line = z + static_cast<ptrdiff_t>(row) * stride;
    F16 high = load(line);
    for (int t = 16; t < stride; t += 16) high = max(high, load(line + t));
    const float top = largest(high);
    weight[row] = 0;
    if (top == kNegInf) {  // a row that sees nothing gives nothing
      for (int t = 0; t < stride; t += 16) store(line + t, F16{});
      continue;
    }
    F16 total{};
    for (int t = 0; t < stride; t += 16) {
      const F16 e = exp_nonpositive(load(line + t) - splat(top));
      store(line + t, e);
      total += e;
    }
    weight[row] = 1.0F / (sum(total) * static_cast<float>(a.window));
  }
  for (int tile = 0; tile < num_tiles; ++tile) {
    F16 mean{};
    for (int r = 0; r < a.window; ++r) {
      F16 top{};
      for (int h = 0; h < a.group; ++h) {
        const int row = r * a.group + h;
        top = max(top, load(z + static_cast<ptrdiff_t>(row) * stride + tile * 16) * splat(weight[row]));
      }
      mean += top;
    }
    const int n = a.keys.num_slots - tile * 16 < 16 ? a.keys.num_slots - tile * 16 : 16;
    std::memcpy(a.out + tile * 16, &mean, sizeof(float) * static_cast<size_t>(n));
  }
}

// ---- stage 4 ----

// Turns a tile back by each slot's angle. The table's factor on cosines and sines is divided out: it was on k as well.
ZIPAGE_INLINE void undo_rope(const RedundancyKernelArgs& a, int tile, float* k, float* table) {
  const int half = a.rotary_dim / 2;
  const int n = a.keys.num_slots - tile * 16 < 16 ? a.keys.num_slots - tile * 16 : 16;
  for (int i = 0; i < n; ++i) {
    const float* line = a.cos_sin + static_cast<ptrdiff_t>(a.keys.positions[tile * 16 + i]) * a.rotary_dim;
    for (int j = 0; j < a.rotary_dim; ++j) table[j * 16 + i] = line[j];
  }
  const float factor = a.cos_sin[0];  // position 0: cosine 1 times the factor
  const F16 scale = splat(1.0F / (factor * factor));
  for (int j = 0; j < half; ++j) {
    const F16 c = load(table + j * 16) * scale;
    const F16 s = load(table + (j + half) * 16) * scale;
    const F16 x = load(k + j * 16);
    const F16 y = load(k + (j + half) * 16);
    store(k + j * 16, fma(x, c, y * s));
    store(k + (j + half) * 16, fma(y, c, -(x * s)));
  }
}

// Unit keys [tiles][head_dim][16]; a key of length 0 and lanes without a slot are 0.
void unit_keys(const RedundancyKernelArgs& a, float* unit, float* table) {
  const int head_dim = a.keys.head_dim;
  for (int tile = 0; tile * 16 < a.keys.num_slots; ++tile) {
    float* k = unit + static_cast<ptrdiff_t>(tile) * 16 * head_dim;
    unpack_tile(a.keys.tiles[tile], head_dim, k);
    if (a.cos_sin != nullptr) undo_rope(a, tile, k, table);
    F16 square{};
    for (int d = 0; d < head_dim; ++d) square = fma(load(k + d * 16), load(k + d * 16), square);
    float inverse[16];
    store(inverse, square);
    for (float& x : inverse) x = x > 0 ? 1.0F / __builtin_sqrtf(x) : 0.0F;
    const I16 used = lanes_in_use(tile, a.keys.num_slots) & (square > F16{});
    const F16 scale = load(inverse);
    for (int d = 0; d < head_dim; ++d) store(k + d * 16, used ? load(k + d * 16) * scale : F16{});
  }
}

// R[m] = k^[m] . u over the chunk's tiles [first, last), u = sum of the chunk's unit keys.
void sum_of_cosines(const float* unit, int first, int last, int head_dim, float* u, float* r) {
  for (int d = 0; d < head_dim; ++d) {
    F16 total{};
    for (int tile = first; tile < last; ++tile)
      total += load(unit + (static_cast<ptrdiff_t>(tile) * head_dim + d) * 16);
    u[d] = sum(total);
  }
  for (int tile = first; tile < last; ++tile) {
    const float* k = unit + static_cast<ptrdiff_t>(tile) * 16 * head_dim;
    F16 dot{};
    for (int d = 0; d < head_dim; ++d) dot = fma(load(k + d * 16), splat(u[d]), dot);
    store(r + tile * 16, dot);
  }
}

// Columns of one chunk whose last(n) has not been found, in tiles of 16.
struct OpenColumns {
  float* spare;       // room for half of the chunk's columns, in tiles
  const float* keys;  // [num_tiles][head_dim][16]
  int32_t* index;     // [num_tiles * 16] n of each lane
  uint32_t* open;     // [num_tiles] bit: the lane still looks
  int num_tiles;
  int num_open;

  // Brings the open lanes together once at most half of all lanes are. In-place from the second time on: a lane moves
  // to the front only.
  void pack(int head_dim) {
    int to = 0;
    for (int tile = 0; tile < num_tiles; ++tile) {
      for (uint32_t left = open[tile]; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        const float* source = keys + static_cast<ptrdiff_t>(tile) * 16 * head_dim + lane;
        float* target = spare + static_cast<ptrdiff_t>(to / 16) * 16 * head_dim + to % 16;
        for (int d = 0; d < head_dim; ++d) target[d * 16] = source[d * 16];
        index[to] = index[tile * 16 + lane];
        ++to;
      }
    }
    keys = spare;
    num_tiles = (to + 15) / 16;
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int lanes = to - tile * 16 < 16 ? to - tile * 16 : 16;
      open[tile] = (1U << lanes) - 1U;
    }
  }
};

// Takes the hits of row m in one tile of columns: c[m, n] leaves R[m], the column is closed.
ZIPAGE_INLINE void take_hits(OpenColumns& columns, int tile, int m, F16 c, uint32_t hits, float* r) {
  float value[16];
  store(value, c);
  for (; hits != 0; hits &= hits - 1) {
    const int lane = __builtin_ctz(hits);
    if (columns.index[tile * 16 + lane] == m) continue;
    r[m] -= value[lane];
    columns.open[tile] &= ~(1U << lane);
    --columns.num_open;
  }
}

// One block of rows [m0, m0 + kRows), newest first, against N tiles of columns.
template <int N>
ZIPAGE_INLINE void search_block(OpenColumns& columns, const int* column_tiles, const float* rows, int m0, int num_slots,
                                int head_dim, float threshold, float* r) {
  const float* tiles[N];
  for (int j = 0; j < N; ++j) tiles[j] = columns.keys + static_cast<ptrdiff_t>(column_tiles[j]) * 16 * head_dim;
  F16 c[kRows][N];
  dot_block<kRows, N>(rows, 1, 16, tiles, head_dim, c);
  for (int i = kRows - 1; i >= 0; --i) {
    if (m0 + i >= num_slots) continue;
    for (int j = 0; j < N; ++j) {
      const uint32_t hits = bits(c[i][j] > splat(threshold)) & columns.open[column_tiles[j]];
      if (hits != 0) take_hits(columns, column_tiles[j], m0 + i, c[i][j], hits, r);
    }
  }
}

// For each column n of the chunk finds last(n), the newest m != n with c[m, n] > threshold, from the newest row down,
// and takes c[last(n), n] out of R[last(n)]. A column that has found its row is never looked at again.
void subtract_last(const RedundancyKernelArgs& a, const float* unit, int first, int last, OpenColumns columns,
                   float* r) {
  const int head_dim = a.keys.head_dim;
  columns.keys = unit + static_cast<ptrdiff_t>(first) * 16 * head_dim;
  columns.num_tiles = last - first;
  columns.num_open = 0;
  for (int tile = first; tile < last; ++tile) {
    columns.open[tile - first] = bits(lanes_in_use(tile, a.keys.num_slots));
    columns.num_open += __builtin_popcount(columns.open[tile - first]);
    for (int lane = 0; lane < 16; ++lane) columns.index[(tile - first) * 16 + lane] = tile * 16 + lane;
  }
  for (int m0 = last * 16 - kRows; m0 >= first * 16 && columns.num_open > 0; m0 -= kRows) {
    if (m0 >= a.keys.num_slots) continue;
    const float* rows = unit + static_cast<ptrdiff_t>(m0 / 16) * 16 * head_dim + m0 % 16;
    int waiting[kTiles];
    int n = 0;
    for (int tile = 0; tile < columns.num_tiles; ++tile) {
      if (columns.open[tile] == 0) continue;
      waiting[n++] = tile;
      if (n < kTiles) continue;
      search_block<kTiles>(columns, waiting, rows, m0, a.keys.num_slots, head_dim, a.threshold, r);
      n = 0;
    }
    for (int j = 0; j < n; ++j) {
      search_block<1>(columns, waiting + j, rows, m0, a.keys.num_slots, head_dim, a.threshold, r);
    }
    if (columns.num_open * 2 <= columns.num_tiles * 16 && columns.num_tiles > 1) columns.pack(head_dim);
  }
}

// out = softmax over all slots of r / (temperature * length of the slot's chunk).
void normalise(const RedundancyKernelArgs& a, float* r) {
  const int num_slots = a.keys.num_slots;
  F16 high = splat(kNegInf);
  for (int t = 0; t < num_slots; t += 16) {
    const int chunk_start = t / a.chunk * a.chunk;
    const int length = num_slots - chunk_start < a.chunk ? num_slots - chunk_start : a.chunk;
    const F16 x = load(r + t) * splat(1.0F / (a.temperature * static_cast<float>(length)));
    const F16 used = lanes_in_use(t / 16, num_slots) ? x : splat(kNegInf);
    store(r + t, used);
    high = max(high, used);
  }
  const F16 top = splat(largest(high));
  F16 total{};
  for (int t = 0; t < num_slots; t += 16) {
    const F16 e = exp_nonpositive(load(r + t) - top);
    store(r + t, e);
    total += e;
  }
  const float inverse = 1.0F / sum(total);
  for (int t = 0; t < num_slots; ++t) a.out[t] = r[t] * inverse;
}

void redundancy(const RedundancyKernelArgs& a) {
  const int head_dim = a.keys.head_dim;
  const int slots = ceil16(a.keys.num_slots);
  float* unit = reinterpret_cast<float*>(a.scratch);
  float* spare = unit + static_cast<ptrdiff_t>(slots) * head_dim;
  float* r = spare + static_cast<ptrdiff_t>(slots / 2 + 32) * head_dim;
  float* u = r + slots;
  float* table = u + head_dim;  // [rotary_dim][16]
  auto* index = reinterpret_cast<int32_t*>(table + static_cast<ptrdiff_t>(head_dim) * 16);
  auto* open = reinterpret_cast<uint32_t*>(index + slots);

  unit_keys(a, unit, table);
  for (int start = 0; start < a.keys.num_slots; start += a.chunk) {
    const int end = a.keys.num_slots - start < a.chunk ? a.keys.num_slots : start + a.chunk;
    const int first = start / 16;
    const int last = (end + 15) / 16;
    sum_of_cosines(unit, first, last, head_dim, u, r);
    if (!a.skip_last) continue;
    for (int tile = first; tile < last; ++tile) {  // c[m, m] = 1, but for a key of length 0
      F16 self{};
      const float* k = unit + static_cast<ptrdiff_t>(tile) * 16 * head_dim;
      for (int d = 0; d < head_dim; ++d) self = fma(load(k + d * 16), load(k + d * 16), self);
      store(r + tile * 16, load(r + tile * 16) - self);
    }
    subtract_last(a, unit, first, last,
                  {.spare = spare, .keys = nullptr, .index = index, .open = open, .num_tiles = 0, .num_open = 0}, r);
  }
  normalise(a, r);
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

const CompressKernels kCompressKernels = {window_scores, redundancy, count_at_least, gather_key_tile};

}  // namespace zipage::cpu::ZIPAGE_KERNEL_NAMESPACE
