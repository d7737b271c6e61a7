#include "compress/compress.h"

#include <algorithm>

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
  ZIPAGE_CHECK(job.num_retained == 0 || (job.num_slots % b == 0 &&
                                         job.num_retained * b <= std::min(job.params.newest_kept(), job.params.budget)),
               "C4: {} blocks of {} are retained of {} slots, of which the newest {} stay in any case",
               job.num_retained, b, job.num_slots, job.params.newest_kept());
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
  const FinalScoresParams scoring{.source = source,
                                  .params = p,
                                  .ring = job.ring,
                                  .query_slot = job.query_slot,
                                  .num_heads = model.num_heads,
                                  .scale = model.scale,
                                  .cos_sin = model.cos_sin,
                                  .rotary_dim = model.rotary_dim,
                                  .scores = ws.scores(),
                                  .pooled = ws.pooled(),
                                  .redundancy = ws.redundancy(),
                                  .final_scores = ws.final_scores(),
                                  .scratch = ws.scratch()};
  backend.final_scores(queue, scoring);
  backend.select(queue, {.source = source,
                         .budget = p.budget,
                         .whole_blocks = p.whole_blocks,
                         .final_scores = ws.final_scores(),
                         .kept = ws.kept()});
  backend.compact(queue, {.source = source,
                          .budget = p.budget,
                          .num_retained = job.num_retained,
                          .kept = ws.kept(),
                          .scores = scoring.kept_scores(),
                          .target_blocks = ws.target_blocks()});
}

}  // namespace zipage
