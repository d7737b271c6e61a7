// The kernels of one instruction set, as a table that launchers pick from. Kernels trust their arguments.
//
// A row's result never depends on the other rows of the batch, on the number of threads or on how a prompt is cut into
// chunks: every sum runs in one fixed order. So a sequence's tokens are the same alone, in company and after
// preemption.
//
// Thread-safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/isa.h"
#include "ops/sample_noise.h"
#include "tensor/bf16.h"

namespace zipage::cpu {

constexpr int kPanelColumns = 64;   // output columns of one weight panel
constexpr int kAttentionRows = 24;  // (token, head) rows that one attention call takes
constexpr int kSegmentSlots = 256;  // slots whose softmax is taken at once; segments are merged in order
constexpr int kSegmentTiles = kSegmentSlots / 16;
constexpr int64_t kLogitBlock = 64;  // logits whose maximum is kept

// How a panel's weights are stored. Quantised panels have groups of 32 elements of k, one after the other:
//   kNibbles: u32 [4][64] (eight k each, lowest nibble first) | f16 scale [64] | f16 minimum [64]
//   kBytes:   i8 [32][64]                                     | f16 scale [64] | f16 minimum [64]
// and a weight is q * scale + minimum.
enum class PanelKind : uint8_t { kBf16, kNibbles, kBytes };
constexpr int kQuantGroup = 32;
constexpr int64_t kGroupScaleBytes = 2 * 2 * kPanelColumns;
constexpr int64_t kNibbleGroupBytes = kQuantGroup / 2 * kPanelColumns + kGroupScaleBytes;
constexpr int64_t kByteGroupBytes = kQuantGroup * kPanelColumns + kGroupScaleBytes;

// out[r, c] = x[r, :] . panel[:, c] (+ bias[c]) for the `columns` <= 64 columns of one panel.
struct PanelArgs {
  const float* x = nullptr;  // [rows, in_features]
  int64_t x_stride = 0;
  int64_t rows = 0;
  int64_t in_features = 0;
  const std::byte* panel = nullptr;   // kBf16: [ceil(in_features / 2)][64][2]
  const float* group_sums = nullptr;  // [rows, in_features / 32] sums of x; quantised panels only
  const float* bias = nullptr;        // [columns] or null
  float* out = nullptr;               // [rows, columns]
  int64_t out_stride = 0;
  int columns = kPanelColumns;
};

// One segment of the slots of one KV head against rows of queries.
struct SegmentArgs {
  int num_rows = 0;   // <= kAttentionRows
  int head_dim = 0;   // a multiple of 16
  int num_slots = 0;  // of the segment, <= kSegmentSlots
  float scale = 0;
  const float* queries[kAttentionRows] = {};    // [head_dim] each
  int visible[kAttentionRows] = {};             // leading slots of the segment that the row sees; may be <= 0
  const Bf16* key_tiles[kSegmentTiles] = {};    // [head_dim / 2][16][2]; null past num_slots
  const Bf16* value_tiles[kSegmentTiles] = {};  // [16][head_dim]
  // Keys that the thread will read next, fetched on the way; null, or entries null, where there are none.
  const Bf16* const* next_key_tiles = nullptr;
  float* scores = nullptr;  // workspace [num_rows][kSegmentSlots]
};
// Softmax state of rows: sum of exp(score - largest), and the V rows weighted by it.
struct SegmentState {
  float largest[kAttentionRows];  // -inf where a row has seen nothing
  float sum[kAttentionRows];
  float* values = nullptr;  // [num_rows][head_dim]
};

struct Kernels {
  void (*panel)(const PanelArgs& args);
  void (*nibble_panel)(const PanelArgs& args);
  void (*byte_panel)(const PanelArgs& args);
  void (*group_sums)(const float* x, int64_t n, float* sums);  // of 32 elements each
  void (*segment)(const SegmentArgs& args, SegmentState& state);
  // total = total_scale * total + part_scale * part
  void (*merge_values)(float total_scale, float part_scale, const float* part, int64_t n, float* total);
  // y = x / rms(x) * weight; x and y may be the same.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
  void (*add)(const float* x, float* sum, int64_t n);  // sum += x
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*rope)(float* x, const float* cos_sin, int rotary_dim);         // NeoX halves, in place
  double (*exp_sum)(const float* x, float shift, int64_t n);            // sum of exp(x - shift); exp(-inf) = 0
  void (*finite_copy)(const float* x, int64_t n, float* out);           // NaN and infinities become -inf
  void (*block_maxima)(const float* x, int64_t n, float* maxima);       // [ceil(n / kLogitBlock)]
  void (*shift_scale)(float* x, int64_t n, float shift, float factor);  // x = (x - shift) * factor
  // An upper bound of x[i] + noise of token first_id + i over n <= kLogitBlock tokens.
  float (*noise_bound)(const float* x, int64_t n, uint32_t first_id, SampleNoiseKey key);
};

const Kernels& kernels(Isa isa);

}  // namespace zipage::cpu
