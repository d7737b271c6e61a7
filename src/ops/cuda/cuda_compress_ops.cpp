// The Backend's stages of compression on CUDA: checks, then the kernels' launchers.
#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/op_checks.h"

namespace zipage::cuda {
namespace {

void check_source(const CompressionSource& s, const char* stage) {
  const KvGeometry& g = s.kv.geometry;
  ZIPAGE_CHECK(s.kv.data != nullptr && s.source_blocks != nullptr, "{}: no pool or no blocks", stage);
  ZIPAGE_CHECK(s.kv.positions != nullptr || s.num_scored == 0, "{}: a pool without positions", stage);
  ZIPAGE_CHECK(s.num_slots > 0 && s.num_scored >= 0 && s.num_scored <= s.num_slots, "{}: {} of {} slots scored", stage,
               s.num_scored, s.num_slots);
  ZIPAGE_CHECK(
      g.block_size % 16 == 0 && (g.head_dim == 64 || g.head_dim == 96 || g.head_dim == 128 || g.head_dim == 256),
      "{}: blocks of {} and heads of {}", stage, g.block_size, g.head_dim);
  // A grid's second dimension counts layers and KV heads.
  ZIPAGE_CHECK(g.num_layers * g.num_kv_heads <= 65535, "{}: {} layers of {} KV heads", stage, g.num_layers,
               g.num_kv_heads);
}

void check_window(const WindowScoreParams& p) {
  check_source(p.source, "window_scores");
  ZIPAGE_CHECK(p.ring.data != nullptr && p.query_slot >= 0 && p.query_slot < p.ring.num_query_slots,
               "window_scores: query slot {} of {}", p.query_slot, p.ring.num_query_slots);
  const int num_kv_heads = p.source.kv.geometry.num_kv_heads;
  ZIPAGE_CHECK(p.num_heads > 0 && p.num_heads % num_kv_heads == 0 && p.num_heads / num_kv_heads <= kMaxDecodeGroup,
               "window_scores: {} heads over {} KV heads", p.num_heads, num_kv_heads);
  ZIPAGE_CHECK(p.ring.window > 0 && p.ring.stride > 0 && p.scratch != nullptr,
               "window_scores: {} queries, {} apart, or no scratch", p.ring.window, p.ring.stride);
}

void check_redundancy(const RedundancyParams& p) {
  check_source(p.source, "redundancy");
  const int head_dim = p.source.kv.geometry.head_dim;
  ZIPAGE_CHECK(p.scope != RedundancyScope::kOff && p.redundancy != nullptr && p.scratch != nullptr,
               "redundancy: nothing to compute");
  ZIPAGE_CHECK(p.keys == RedundancyKeys::kRotated ||
                   (p.cos_sin != nullptr && p.rotary_dim > 0 && p.rotary_dim % 16 == 0 && p.rotary_dim <= head_dim),
               "redundancy: content keys need the rotation table (rotary size {}, head size {})", p.rotary_dim,
               head_dim);
  ZIPAGE_CHECK(p.temperature > 0 && p.threshold >= 0, "redundancy: temperature {}, threshold {}", p.temperature,
               p.threshold);
}

}  // namespace

size_t CudaBackend::compression_scratch_bytes(const KvGeometry& geometry, int num_heads, int window,
                                              int max_slots) const {
  return std::max({window_scores_scratch_bytes(geometry, num_heads, window, max_slots),
                   redundancy_scratch_bytes(geometry, max_slots),
                   final_scores_scratch_bytes(geometry, properties_.multiProcessorCount, max_slots)});
}

void CudaBackend::window_scores(Queue& queue, const WindowScoreParams& p) {
  check_window(p);
  cuda::window_scores(launch(queue), p);
  done("window_scores");
}

void CudaBackend::value_norms(Queue& queue, const ValueNormsParams& p) {
  check_source(p.source, "value_norms");
  cuda::value_norms(launch(queue), p);
  done("value_norms");
}

void CudaBackend::carry(Queue& queue, const CarryParams& p) {
  check_source(p.source, "carry");
  ZIPAGE_CHECK(p.source.kv.scores != nullptr || p.source.num_scored == 0, "carry: a pool without scores");
  if (p.carry == ScoreCarry::kOff || p.source.num_scored == 0) return;
  cuda::carry(launch(queue), p);
  done("carry");
}

void CudaBackend::pool_scores(Queue& queue, const PoolScoresParams& p) {
  check_source(p.source, "pool_scores");
  ZIPAGE_CHECK(p.width >= 1 && p.width % 2 == 1, "pool_scores: width {} must be odd", p.width);
  ZIPAGE_CHECK(p.scores != p.out, "pool_scores: in place");
  cuda::pool_scores(launch(queue), p);
  done("pool_scores");
}

void CudaBackend::redundancy(Queue& queue, const RedundancyParams& p) {
  check_redundancy(p);
  cuda::redundancy(launch(queue), p);
  done("redundancy");
}

void CudaBackend::combine(Queue& queue, const CombineParams& p) {
  check_source(p.source, "combine");
  ZIPAGE_CHECK(p.out != nullptr && p.out != p.scores && p.out != p.redundancy, "combine: in place");
  cuda::combine(launch(queue), p);
  done("combine");
}

void CudaBackend::final_scores(Queue& queue, const FinalScoresParams& p) {
  check_source(p.source, "final_scores");
  if (!serves_final_scores(launch(queue), p)) return Backend::final_scores(queue, p);
  check_window(p.window());
  check_redundancy(p.of_keys());
  ZIPAGE_CHECK(p.params.pool % 2 == 1, "final_scores: pool's width {} must be odd", p.params.pool);
  ZIPAGE_CHECK(p.source.kv.scores != nullptr || p.source.num_scored == 0, "final_scores: a pool without scores");
  cuda::final_scores(launch(queue), p);
  done("final_scores");
}

void CudaBackend::select(Queue& queue, const SelectParams& p) {
  check_source(p.source, "select");
  ZIPAGE_CHECK(p.budget > 0 && p.budget <= p.source.num_slots, "select: {} of {} slots", p.budget, p.source.num_slots);
  cuda::select(launch(queue), p);
  done("select");
}

void CudaBackend::compact(Queue& queue, const CompactParams& p) {
  check_source(p.source, "compact");
  const int block_size = p.source.kv.geometry.block_size;
  ZIPAGE_CHECK(p.budget > 0 && p.budget % block_size == 0 && p.budget <= p.source.num_slots,
               "compact: a budget of {} for {} slots in blocks of {}", p.budget, p.source.num_slots, block_size);
  ZIPAGE_CHECK(p.num_retained == 0 || (p.num_retained <= p.budget / block_size && p.source.num_slots % block_size == 0),
               "compact: {} of {} blocks retained of {} slots", p.num_retained, p.budget / block_size,
               p.source.num_slots);
  ZIPAGE_CHECK(p.source.kv.positions != nullptr, "compact: a pool without positions");
  ZIPAGE_CHECK(p.scores == nullptr || p.source.kv.scores != nullptr, "compact: a pool without scores");
  cuda::compact(launch(queue), p);
  done("compact");
}

}  // namespace zipage::cuda
