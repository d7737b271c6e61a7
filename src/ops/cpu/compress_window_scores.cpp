// Stage 1: how much the window's queries look at each slot.
#include "ops/cpu/compress_source.h"

namespace zipage::cpu {
namespace {

// The window's queries of one layer and group, oldest first: [rows][group][head_dim].
void read_queries(const WindowScoreParams& p, int64_t task, int group, float* out) {
  const KvGeometry& g = p.source.kv.geometry;
  const int window = p.ring.window;
  const int layer = static_cast<int>(task / g.num_kv_heads);
  const int first_head = static_cast<int>(task % g.num_kv_heads) * group;
  const int num_rows = p.ring.num_rows(p.source.logical_len());
  const int first_position = p.ring.first_position(p.source.logical_len());
  const auto* ring = static_cast<const float*>(p.ring.data) +
                     (int64_t{layer} * p.ring.num_query_slots + p.query_slot) * window * p.num_heads * g.head_dim;
  for (int r = 0; r < num_rows; ++r) {
    const int ring_row = p.ring.row(first_position + r * p.ring.stride);
    const float* row = ring + (int64_t{ring_row} * p.num_heads + first_head) * g.head_dim;
    for (int i = 0; i < group * g.head_dim; ++i) *out++ = row[i];
  }
}

}  // namespace

void CpuBackend::window_scores(Queue& queue, const WindowScoreParams& p) {
  check_source(p.source, "window_scores");
  const KvGeometry& g = p.source.kv.geometry;
  const int num_slots = p.source.num_slots;
  ZIPAGE_CHECK(p.ring.data != nullptr && p.query_slot >= 0 && p.query_slot < p.ring.num_query_slots,
               "window_scores: query slot {} of {}", p.query_slot, p.ring.num_query_slots);
  ZIPAGE_CHECK(p.num_heads > 0 && p.num_heads % g.num_kv_heads == 0 && p.num_heads / g.num_kv_heads <= kMaxGroup,
               "window_scores: {} heads over {} KV heads", p.num_heads, g.num_kv_heads);
  ZIPAGE_CHECK(p.ring.window > 0 && p.ring.stride > 0, "window_scores: {} queries, {} apart", p.ring.window,
               p.ring.stride);
  const int group = p.num_heads / g.num_kv_heads;
  const int window = p.ring.num_rows(p.source.logical_len());
  const int rows = window * group;
  const CompressKernels& kernels = compress_kernels(isa_);
  Executor& executor = CpuBackend::executor(queue);

  for_each_head(executor, p.source, [&](int64_t task, int thread) {
    const size_t query_bytes = sizeof(float) * static_cast<size_t>(rows) * static_cast<size_t>(g.head_dim);
    std::byte* memory = executor.scratch(
        thread, query_bytes + head_keys_bytes(p.source) + window_scratch_bytes(num_slots, g.head_dim, group));
    auto* queries = reinterpret_cast<float*>(memory);
    read_queries(p, task, group, queries);
    const auto [keys, rest] = fill_head_keys(p.source, SourceHead(p.source, task), memory + query_bytes);
    kernels.window_scores({.keys = keys,
                           .queries = queries,
                           .scale = p.scale,
                           .window = window,
                           .group = group,
                           .first_row_position = p.ring.first_position(p.source.logical_len()),
                           .row_stride = p.ring.stride,
                           .scratch = rest,
                           .out = p.scores + task * num_slots});
  });
}

}  // namespace zipage::cpu
