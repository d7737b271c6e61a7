// Stage 1's kernel; a section of compress_kernels_impl.h. Keys are unpacked to fp32 once; then a few rows at a time, so
// that their z stay in the first-level cache, go through product, softmax, maximum over the group and mean.
//
// Multiplying pairs of bf16 (AVX512-BF16) is no faster: its instruction was measured at half the multiplications a
// second of fp32's on Sapphire Rapids (89 against 178 GFLOP/s).

// z of R rows over all tiles. z is [R][stride].
template <int R>
ZIPAGE_INLINE void score_rows(const float* queries, const float* keys, int head_dim, float* z, int stride) {
  int t = 0;
  const auto block = [&]<int N>() __attribute__((always_inline)) {
    const float* tiles[N];
    for (int n = 0; n < N; ++n) tiles[n] = keys + static_cast<ptrdiff_t>(t + n * 16) * head_dim;
    F16 out[R][N];
    dot_block<R, N>(queries, head_dim, 1, tiles, head_dim, out);
    for (int i = 0; i < R; ++i) {
      for (int n = 0; n < N; ++n) store(z + static_cast<ptrdiff_t>(i) * stride + t + n * 16, out[i][n]);
    }
    t += N * 16;
  };
  while (stride - t >= kTiles * 16) block.template operator()<kTiles>();
  while (t < stride) block.template operator()<1>();
}

void score_all(const float* queries, int rows, const float* keys, int head_dim, float* z, int stride) {
  int row = 0;
  const auto block = [&]<int R>() __attribute__((always_inline)) {
    for (; row + R <= rows; row += R) {
      score_rows<R>(queries + static_cast<ptrdiff_t>(row) * head_dim, keys, head_dim,
                    z + static_cast<ptrdiff_t>(row) * stride, stride);
    }
  };
  block.template operator()<kRows>();
  block.template operator()<(kRows + 1) / 2>();
  block.template operator()<1>();
}

// z = -inf where a row does not see a slot: positions behind the row's own, and lanes that hold no slot. The first
// `group` rows are window row first_row's.
void hide_invisible(const WindowKernelArgs& a, int first_row, int rows, float* z, int stride) {
  for (int tile = stride / 16 - 1; tile >= 0; --tile) {
    const bool full = (tile + 1) * 16 <= a.keys.num_slots;
    const int first_position = a.first_row_position + first_row * a.row_stride;
    if (full && a.keys.positions[tile * 16 + 15] <= first_position) break;  // and so are all tiles before it
    const I16 used = lanes_in_use(tile, a.keys.num_slots);
    const I16 position = load(a.keys.positions + tile * 16);
    for (int row = 0; row < rows; ++row) {
      const I16 visible = used & (position <= splat(first_position + row / a.group * a.row_stride));
      float* cell = z + static_cast<ptrdiff_t>(row) * stride + tile * 16;
      store(cell, visible ? load(cell) : splat(kNegInf));
    }
  }
}

// Turns a row of z into e^(scale (z - max)); returns the sum.
float exponentiate(float* line, int stride, float scale) {
  F16 high[4] = {splat(kNegInf), splat(kNegInf), splat(kNegInf), splat(kNegInf)};  // one would wait for itself
  int u = 0;
  for (; u + 64 <= stride; u += 64) {
    for (int i = 0; i < 4; ++i) high[i] = max(high[i], load(line + u + i * 16));
  }
  for (; u < stride; u += 16) high[0] = max(high[0], load(line + u));
  const float top = largest(max(max(high[0], high[1]), max(high[2], high[3])));
  if (top == kNegInf) {  // a row that sees nothing gives nothing
    for (int t = 0; t < stride; t += 16) store(line + t, F16{});
    return 1.0F;
  }
  const F16 factor = splat(scale * kLog2E);
  const F16 offset = splat(-top * scale * kLog2E);
  F16 total{};
  for (int t = 0; t < stride; t += 16) {
    const F16 e = exp2_nonpositive(fma(load(line + t), factor, offset));
    store(line + t, e);
    total += e;
  }
  return sum(total);
}

void window_scores(const WindowKernelArgs& a) {
  const int stride = ceil16(a.keys.num_slots);
  const int head_dim = a.keys.head_dim;
  auto* keys = reinterpret_cast<float*>(a.scratch);
  float* mean = keys + static_cast<ptrdiff_t>(stride) * head_dim;
  float* z = mean + stride;
  for (int tile = 0; tile * 16 < stride; ++tile) {
    unpack_tile(a.keys.tiles[tile], head_dim, keys + static_cast<ptrdiff_t>(tile) * 16 * head_dim);
    store(mean + tile * 16, F16{});
  }
  const int step = window_rows_at_once(a.group);
  for (int first = 0; first < a.window; first += step) {
    const int window_rows = a.window - first < step ? a.window - first : step;
    const int rows = window_rows * a.group;
    score_all(a.queries + static_cast<ptrdiff_t>(first) * a.group * head_dim, rows, keys, head_dim, z, stride);
    hide_invisible(a, first, rows, z, stride);
    for (int r = 0; r < window_rows; ++r) {
      float* lines = z + static_cast<ptrdiff_t>(r) * a.group * stride;
      float weight[kMaxGroup];
      for (int h = 0; h < a.group; ++h) {
        const float total = exponentiate(lines + static_cast<ptrdiff_t>(h) * stride, stride, a.scale);
        weight[h] = 1.0F / (total * static_cast<float>(a.window));
      }
      for (int t = 0; t < stride; t += 16) {
        F16 top{};
        for (int h = 0; h < a.group; ++h) {
          top = max(top, load(lines + static_cast<ptrdiff_t>(h) * stride + t) * splat(weight[h]));
        }
        store(mean + t, load(mean + t) + top);
      }
    }
  }
  std::memcpy(a.out, mean, sizeof(float) * static_cast<size_t>(a.keys.num_slots));
}
