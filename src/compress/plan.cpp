#include "compress/plan.h"

#include <algorithm>

#include "base/check.h"

namespace zipage {
namespace {

[[maybe_unused]] bool contains(std::span<const BlockId> blocks, BlockId id) {
  return std::find(blocks.begin(), blocks.end(), id) != blocks.end();
}

}  // namespace

std::vector<BlockId> CompressionPlan::table_after() const {
  std::vector<BlockId> table = targets;
  table.insert(table.end(), kept_empty.begin(), kept_empty.end());
  return table;
}

int retained_blocks(int shared, int num_slots, const CompressionParams& params, int block_size) {
  if (num_slots % block_size != 0) return 0;  // the last block is not full
  const int own = num_slots / block_size - shared;
  return std::clamp(std::min(params.newest_kept(), params.budget) / block_size, 0, std::max(own, 0));
}

int fresh_blocks_needed(int shared, int num_slots, const CompressionParams& params, int block_size) {
  return std::min(shared, params.budget / block_size - retained_blocks(shared, num_slots, params, block_size));
}

CompressionPlan plan_compression(std::span<const BlockId> table, int shared, std::span<const BlockId> fresh,
                                 int num_slots, const CompressionParams& params, int block_size) {
  const int b = block_size;
  const int n = static_cast<int>(table.size());
  const int k = params.budget / b;
  const int r = retained_blocks(shared, num_slots, params, b);
  const int f = fresh_blocks_needed(shared, num_slots, params, b);
  ZIPAGE_CHECK(params.enabled() && params.budget % b == 0 && params.slack % b == 0,
               "budget {} and slack {} must be multiples of the block size {}", params.budget, params.slack, b);
  ZIPAGE_CHECK(num_slots > params.budget, "{} resident slots fit the budget {} already", num_slots, params.budget);
  ZIPAGE_CHECK(n * b >= num_slots, "a table of {} blocks of {} does not hold {} slots", n, b, num_slots);
  ZIPAGE_CHECK(shared >= 0 && shared <= n, "{} shared blocks of a table of {}", shared, n);
  ZIPAGE_CHECK(static_cast<int>(fresh.size()) == f, "{} fresh blocks given, {} needed", fresh.size(), f);

  CompressionPlan plan;
  plan.num_retained = r;
  plan.num_source_blocks = (num_slots + b - 1) / b;
  const auto retained = table.subspan(static_cast<size_t>(plan.num_source_blocks - r), static_cast<size_t>(r));
  std::vector<BlockId> own(table.begin() + shared, table.end());
  if (r > 0) own.erase(own.end() - (n - plan.num_source_blocks) - r, own.end() - (n - plan.num_source_blocks));
  const int own_targets = k - r - f;
  const int num_empty = std::min(static_cast<int>(own.size()) - own_targets, params.slack / b);

  plan.targets.assign(fresh.begin(), fresh.end());
  plan.targets.insert(plan.targets.end(), own.begin(), own.begin() + own_targets);
  plan.targets.insert(plan.targets.end(), retained.begin(), retained.end());
  plan.kept_empty.assign(own.begin() + own_targets, own.begin() + own_targets + num_empty);
  plan.released.assign(table.begin(), table.begin() + shared);
  plan.released.insert(plan.released.end(), own.begin() + own_targets + num_empty, own.end());

  ZIPAGE_CHECK(static_cast<int>(plan.targets.size()) == k, "C3: {} targets for a budget of {} blocks",
               plan.targets.size(), k);
  for (int i = 0; i < k; ++i) {
    const BlockId target = plan.targets[static_cast<size_t>(i)];
    // An own target is the block its slots lay in before, so position i of the result never lies behind its source; a
    // retained one keeps its distance from the end.
    ZIPAGE_DCHECK(i < f       ? !contains(table, target)
                  : i < k - r ? target == table[static_cast<size_t>(i)]
                              : target == table[static_cast<size_t>(plan.num_source_blocks - k + i)],
                  "C1: target {} is block {}, which lies elsewhere in the table", i, target.value());
    ZIPAGE_DCHECK(!contains(table.first(static_cast<size_t>(shared)), target),
                  "C2: target {} is block {}, which is shared", i, target.value());
    (void)target;
  }
  return plan;
}

}  // namespace zipage
