// Stage 4's kernel; a section of compress_kernels_impl.h. Its functions follow the README of src/compress.

// The rotation table's lines of a tile's 16 slots, the slot as the lane: [rotary_dim][16]. A lane without a slot gets
// the line of position 0.
ZIPAGE_INLINE void read_angles(const RedundancyKernelArgs& a, int tile, float* out) {
  const float* line[16];
  for (int i = 0; i < 16; ++i) {
    line[i] = a.cos_sin + static_cast<ptrdiff_t>(a.keys.positions[tile * 16 + i]) * a.rotary_dim;
  }
  int j = 0;
  for (; j + 16 <= a.rotary_dim; j += 16) {
    F16 v[16];
    for (int i = 0; i < 16; ++i) v[i] = load(line[i] + j);
    transpose(v);
    for (int i = 0; i < 16; ++i) store(out + (j + i) * 16, v[i]);
  }
  for (; j < a.rotary_dim; ++j) {
    for (int i = 0; i < 16; ++i) out[j * 16 + i] = line[i][j];
  }
}

// Turns a tile back by each slot's angle. The table's factor on cosines and sines is divided out: it was on k as well.
ZIPAGE_INLINE void undo_rope(const RedundancyKernelArgs& a, int tile, float* k, float* angles) {
  read_angles(a, tile, angles);
  const int half = a.rotary_dim / 2;
  const float factor = a.cos_sin[0];  // position 0: cosine 1 times the factor
  const F16 scale = splat(1.0F / (factor * factor));
  for (int j = 0; j < half; ++j) {
    const F16 c = load(angles + j * 16) * scale;
    const F16 s = load(angles + (j + half) * 16) * scale;
    const F16 x = load(k + j * 16);
    const F16 y = load(k + (j + half) * 16);
    store(k + j * 16, fma(x, c, y * s));
    store(k + (j + half) * 16, fma(y, c, -(x * s)));
  }
}

// Unit keys [tiles][head_dim][16], and c[m, m] for each: 1, but 0 for a key of length 0 and for lanes without a slot.
void unit_keys(const RedundancyKernelArgs& a, float* unit, float* self, float* angles) {
  const int head_dim = a.keys.head_dim;
  for (int tile = 0; tile * 16 < a.keys.num_slots; ++tile) {
    float* k = unit + static_cast<ptrdiff_t>(tile) * 16 * head_dim;
    unpack_tile(a.keys.tiles[tile], head_dim, k);
    if (a.cos_sin != nullptr) undo_rope(a, tile, k, angles);
    F16 part[2] = {};  // two sums, since one would wait for itself
    for (int d = 0; d < head_dim; d += 2) {
      part[0] = fma(load(k + d * 16), load(k + d * 16), part[0]);
      part[1] = fma(load(k + d * 16 + 16), load(k + d * 16 + 16), part[1]);
    }
    const F16 square = part[0] + part[1];
    const I16 used = lanes_in_use(tile, a.keys.num_slots) & (square > F16{});
    const F16 scale = splat(1.0F) / square_root(used ? square : splat(1.0F));
    store(self + tile * 16, used ? splat(1.0F) : F16{});
    for (int d = 0; d < head_dim; ++d) store(k + d * 16, used ? load(k + d * 16) * scale : F16{});
  }
}

// R[m] = k^[m] . u over the chunk's tiles [first, last), u = sum of the chunk's unit keys. lane_sums: [head_dim][16].
void sum_of_cosines(const float* unit, int first, int last, int head_dim, float* lane_sums, float* r) {
  for (int d = 0; d < head_dim; ++d) store(lane_sums + d * 16, F16{});
  for (int tile = first; tile < last; ++tile) {
    const float* k = unit + static_cast<ptrdiff_t>(tile) * 16 * head_dim;
    for (int d = 0; d < head_dim; ++d) store(lane_sums + d * 16, load(lane_sums + d * 16) + load(k + d * 16));
  }
  float* u = lane_sums;  // sum d takes the place of lane sum d / 16, which has been read by then
  for (int d = 0; d < head_dim; ++d) u[d] = sum(load(lane_sums + d * 16));
  int tile = first;
  const auto dots = [&]<int N>() __attribute__((always_inline)) {
    for (; tile + N <= last; tile += N) {
      F16 dot[N] = {};
      const float* k = unit + static_cast<ptrdiff_t>(tile) * 16 * head_dim;
      for (int d = 0; d < head_dim; ++d) {
        for (int n = 0; n < N; ++n) dot[n] = fma(load(k + (n * head_dim + d) * 16), splat(u[d]), dot[n]);
      }
      for (int n = 0; n < N; ++n) store(r + (tile + n) * 16, dot[n]);
    }
  };
  dots.template operator()<4>();
  dots.template operator()<1>();
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

// One block of rows [m0, m0 + kRows), newest first, against N tiles of columns: each open column that a row hits is
// closed, and its cosine goes to the row's `removed`.
template <int N>
ZIPAGE_INLINE void search_block(OpenColumns& columns, const int* column_tiles, const float* rows, int m0, int num_slots,
                                int head_dim, float threshold, F16* removed) {
  const float* tiles[N];
  for (int j = 0; j < N; ++j) tiles[j] = columns.keys + static_cast<ptrdiff_t>(column_tiles[j]) * 16 * head_dim;
  F16 c[kRows][N];
  dot_block<kRows, N>(rows, 1, 16, tiles, head_dim, c);
  for (int i = kRows - 1; i >= 0; --i) {
    if (m0 + i >= num_slots) continue;
    for (int j = 0; j < N; ++j) {
      const int tile = column_tiles[j];
      I16 hit = c[i][j] > splat(threshold);
      if ((bits(hit) & columns.open[tile]) == 0) continue;
      const I16 lane_bit = splat(1) << lane_index();
      hit &= load(columns.index + tile * 16) != splat(m0 + i);
      hit &= (splat(static_cast<int32_t>(columns.open[tile])) & lane_bit) != I16{};
      removed[i] += hit ? c[i][j] : F16{};
      const uint32_t closed = bits(hit);
      columns.open[tile] &= ~closed;
      columns.num_open -= __builtin_popcount(closed);
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
    F16 removed[kRows] = {};
    int waiting[kTiles];
    int n = 0;
    for (int tile = 0; tile < columns.num_tiles; ++tile) {
      if (columns.open[tile] == 0) continue;
      waiting[n++] = tile;
      if (n < kTiles) continue;
      search_block<kTiles>(columns, waiting, rows, m0, a.keys.num_slots, head_dim, a.threshold, removed);
      n = 0;
    }
    if (n >= 2) {
      search_block<2>(columns, waiting, rows, m0, a.keys.num_slots, head_dim, a.threshold, removed);
    }
    if (n % 2 == 1) {
      search_block<1>(columns, waiting + n - 1, rows, m0, a.keys.num_slots, head_dim, a.threshold, removed);
    }
    for (int i = 0; i < kRows; ++i) r[m0 + i] -= sum(removed[i]);
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
    const F16 e = exp2_nonpositive((load(r + t) - top) * splat(kLog2E));
    store(r + t, e);
    total += e;
  }
  const F16 inverse = splat(1.0F / sum(total));
  for (int t = 0; t < num_slots; t += 16) store(r + t, load(r + t) * inverse);
  std::memcpy(a.out, r, sizeof(float) * static_cast<size_t>(num_slots));
}

void redundancy(const RedundancyKernelArgs& a) {
  const int head_dim = a.keys.head_dim;
  const int slots = ceil16(a.keys.num_slots);
  float* unit = reinterpret_cast<float*>(a.scratch);
  float* spare = unit + static_cast<ptrdiff_t>(slots) * head_dim;
  float* angles = spare + static_cast<ptrdiff_t>(slots / 2 + 32) * head_dim;  // [head_dim][16], later lane sums
  float* r = angles + static_cast<ptrdiff_t>(head_dim) * 16;
  float* self = r + slots;
  auto* index = reinterpret_cast<int32_t*>(self + slots);
  auto* open = reinterpret_cast<uint32_t*>(index + slots);

  unit_keys(a, unit, self, angles);
  for (int start = 0; start < a.keys.num_slots; start += a.chunk) {
    const int end = a.keys.num_slots - start < a.chunk ? a.keys.num_slots : start + a.chunk;
    const int first = start / 16;
    const int last = (end + 15) / 16;
    sum_of_cosines(unit, first, last, head_dim, angles, r);
    if (!a.skip_last) continue;
    for (int t = first * 16; t < last * 16; t += 16) store(r + t, load(r + t) - load(self + t));
    const OpenColumns columns = {
        .spare = spare, .keys = nullptr, .index = index, .open = open, .num_tiles = 0, .num_open = 0};
    subtract_last(a, unit, first, last, columns, r);
  }
  normalise(a, r);
}
