#include "compress/compress.h"

#include "base/check.h"

namespace zipage {
namespace {

CompressionSource make_source(const CompressionJob& job, const CompressionWorkspace& workspace) {
  return {.kv = job.kv,
          .source_blocks = workspace.source_blocks(),
          .num_slots = job.num_slots,
          .num_scored = job.num_scored,
          .first_position = job.logical_len - (job.num_slots - job.num_scored),
          .prompt_len = job.prompt_len};
}

void check(const CompressionJob& job, const CompressionWorkspace& workspace) {
  const CompressionShape& shape = workspace.shape();
  const int b = job.kv.geometry.block_size;
  ZIPAGE_CHECK(job.params.budget < job.num_slots, "{} slots fit the budget {} already", job.num_slots,
               job.params.budget);
  ZIPAGE_CHECK(job.num_slots <= shape.max_slots && job.params.budget <= shape.max_budget,
               "a compression of {} slots to {} does not fit a workspace for {} to {}", job.num_slots,
               job.params.budget, shape.max_slots, shape.max_budget);
  ZIPAGE_CHECK(static_cast<int>(job.table.size()) * b >= job.num_slots, "{} blocks of {} do not hold {} slots",
               job.table.size(), b, job.num_slots);
  ZIPAGE_CHECK(static_cast<int>(job.targets.size()) * b == job.params.budget,
               "{} target blocks of {} for a budget of {}", job.targets.size(), b, job.params.budget);
  ZIPAGE_CHECK(
      !job.params.attention || (job.ring.window == job.params.window && job.ring.stride == job.params.query_stride),
      "a ring of {} queries {} apart for a window of {} {} apart", job.ring.window, job.ring.stride, job.params.window,
      job.params.query_stride);
  ZIPAGE_CHECK(job.logical_len >= job.num_slots, "{} resident slots of {} tokens", job.num_slots, job.logical_len);
}

}  // namespace

void compress(Backend& backend, Queue& queue, const CompressionModel& model, const CompressionJob& job,
              CompressionWorkspace& ws) {
  check(job, ws);
  const CompressionParams& p = job.params;
  const auto num_sources = static_cast<size_t>((job.num_slots - 1) / job.kv.geometry.block_size + 1);
  ws.upload_blocks(backend, queue, job.table.first(num_sources), job.targets);

  const CompressionSource source = make_source(job, ws);
  float* scores = p.attention ? ws.scores() : nullptr;  // S; null while no stage makes one
  const float* redundancy = p.scope == RedundancyScope::kOff ? nullptr : ws.redundancy();

  if (p.attention) {
    backend.window_scores(queue, {.source = source,
                                  .ring = job.ring,
                                  .query_slot = job.query_slot,
                                  .num_heads = model.num_heads,
                                  .scale = model.scale,
                                  .scores = scores,
                                  .scratch = ws.scratch()});
  }
  if (p.attention && p.value_norms) backend.value_norms(queue, {.source = source, .scores = scores});
  if (p.attention && p.carry != ScoreCarry::kOff) {
    backend.carry(queue, {.source = source, .carry = p.carry, .decay = p.decay, .scores = scores});
  }
  if (p.attention && p.pool > 1) {
    backend.pool_scores(queue, {.source = source, .width = p.pool, .scores = scores, .out = ws.pooled()});
    scores = ws.pooled();
  }
  if (p.scope != RedundancyScope::kOff) {
    backend.redundancy(queue, {.source = source,
                               .scope = p.scope,
                               .keys = p.keys,
                               .threshold = p.threshold,
                               .temperature = p.temperature,
                               .cos_sin = model.cos_sin,
                               .rotary_dim = model.rotary_dim,
                               .redundancy = ws.redundancy(),
                               .scratch = ws.scratch()});
  }
  backend.combine(
      queue, {.source = source, .params = p, .scores = scores, .redundancy = redundancy, .out = ws.final_scores()});
  backend.select(queue, {.source = source,
                         .budget = p.budget,
                         .whole_blocks = p.whole_blocks,
                         .final_scores = ws.final_scores(),
                         .kept = ws.kept()});
  backend.compact(
      queue,
      {.source = source, .budget = p.budget, .kept = ws.kept(), .scores = scores, .target_blocks = ws.target_blocks()});
}

}  // namespace zipage
