#include "ops/compress_fixture.h"

namespace zipage::test {
namespace {

using Kept = std::vector<int32_t>;

class Compact : public ::testing::TestWithParam<cpu::Isa> {
 protected:
  // Compacts and compares every moved slot with the oracle's, and every block that is no target with what it was.
  void check(CompressFixture& f, const Kept& kept, int budget, const std::vector<int32_t>& targets,
             int num_retained = 0) {
    std::vector<std::pair<int32_t, std::vector<std::byte>>> before;
    for (int32_t block = 0; block < f.pool().geometry.num_blocks; ++block) {
      if (std::find(targets.begin(), targets.end(), block) == targets.end())
        before.emplace_back(block, f.block_bytes(block));
    }
    std::vector<float> scores = f.per_slot();
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(i) / 16.0F;

    cpu::CpuBackend backend({.num_threads = 2}, GetParam());
    const auto queue = backend.make_queue(QueuePriority::kNormal);
    backend.compact(*queue, {.source = f.source(),
                             .budget = budget,
                             .num_retained = num_retained,
                             .kept = kept.data(),
                             .scores = scores.data(),
                             .target_blocks = targets.data()});

    for (const auto& [block, bytes] : before) ASSERT_EQ(f.block_bytes(block), bytes) << "block " << block;
    for (int64_t task = 0; task < f.heads(); ++task) expect_moved(f, task, kept, budget, targets, scores);
  }

 private:
  static void expect_moved(const CompressFixture& f, int64_t task, const Kept& kept, int budget,
                           const std::vector<int32_t>& targets, const std::vector<float>& scores) {
    const int layer = static_cast<int>(task / f.shape().num_kv_heads);
    const int head = static_cast<int>(task % f.shape().num_kv_heads);
    const int b = f.shape().block_size;
    const oracle::Head& h = f.sequence().heads[static_cast<size_t>(layer)][static_cast<size_t>(head)];
    const cpu::KvLayerView view(f.pool(), layer);
    std::vector<float> k(static_cast<size_t>(f.shape().head_dim)), v = k;
    for (int i = 0; i < budget; ++i) {
      const int t = kept[static_cast<size_t>(task * budget + i)];
      const int block = targets[static_cast<size_t>(i / b)];
      view.read_key(block, head, i % b, k.data());
      view.read_value(block, head, i % b, v.data());
      const auto at = static_cast<size_t>(t);
      ASSERT_EQ(oracle::Row(k.begin(), k.end()), h.k[at])
          << f.shape().describe() << " head " << task << " K of " << i << " from " << t;
      ASSERT_EQ(oracle::Row(v.begin(), v.end()), h.v[at])
          << f.shape().describe() << " head " << task << " V of " << i << " from " << t;
      ASSERT_EQ(view.positions(block, head)[i % b], h.position[at]);
      ASSERT_EQ(view.scores(block, head)[i % b], scores[static_cast<size_t>(task * f.shape().num_slots + t)]);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, Compact, ::testing::ValuesIn(all_isas()),
                         [](const auto& isa) { return std::string(cpu::name(isa.param)); });

// Kept sets that come as close to overtaking the read position as they can, and random ones.
Kept make_kept(const CompressFixture& f, int budget, uint32_t kind) {
  const int num_slots = f.shape().num_slots;
  std::mt19937 random(kind);
  Kept kept;
  for (int64_t task = 0; task < f.heads(); ++task) {
    std::vector<int> slots(static_cast<size_t>(num_slots));
    std::iota(slots.begin(), slots.end(), 0);
    switch ((kind + static_cast<uint32_t>(task)) % 5) {
      case 0:
        break;  // the first: nothing moves
      case 1:
        slots.erase(slots.begin(), slots.end() - budget);
        break;  // the last: everything moves as far as it can
      case 2:
        slots.erase(slots.begin());
        break;  // every slot moves by one
      case 3:
        slots.erase(slots.begin() + budget / 2);
        break;  // stands still, then moves by one
      default:
        std::shuffle(slots.begin(), slots.end(), random);
    }
    slots.resize(static_cast<size_t>(budget));
    std::sort(slots.begin(), slots.end());
    kept.insert(kept.end(), slots.begin(), slots.end());
  }
  return kept;
}

TEST_P(Compact, C1_IntoTheSourcesOwnBlocksLosesNothing) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Shape shape = random_shape(seed);
    shape.num_slots = std::max(shape.num_slots, shape.block_size + 1);
    CompressFixture f(shape);
    const int most = (shape.num_slots - 1) / shape.block_size;
    const int k = 1 + static_cast<int>(seed % static_cast<uint32_t>(most));
    const std::vector<int32_t> targets(f.table().begin(), f.table().begin() + k);
    const int budget = k * shape.block_size;
    ASSERT_NO_FATAL_FAILURE(check(f, make_kept(f, budget, seed), budget, targets));
  }
}

TEST_P(Compact, C2_SharedLeadingBlocksStayByteForByte) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Shape shape = random_shape(seed);
    shape.num_slots = std::max(shape.num_slots, shape.block_size + 1);
    CompressFixture f(shape);
    const int k = (shape.num_slots - 1) / shape.block_size;
    const int shared = 1 + static_cast<int>(seed % static_cast<uint32_t>(k));
    std::vector<int32_t> targets(f.unused().begin(), f.unused().begin() + shared);
    targets.insert(targets.end(), f.table().begin() + shared, f.table().begin() + k);
    const int budget = k * shape.block_size;
    ASSERT_NO_FATAL_FAILURE(check(f, make_kept(f, budget, seed), budget, targets));
  }
}

// The kept slots end with the last blocks' own.
Kept keep_last_blocks(const CompressFixture& f, Kept kept, int budget, int num_retained) {
  const int whole = num_retained * f.shape().block_size, moved = budget - whole;
  for (int64_t task = 0; task < f.heads(); ++task) {
    int32_t* of_task = kept.data() + task * budget;
    for (int i = moved; i < budget; ++i) of_task[i] = f.shape().num_slots - budget + i;
    // What is kept in front of them lies in front of them.
    for (int i = 0; i < moved; ++i) of_task[i] = std::min(of_task[i], f.shape().num_slots - whole - moved + i);
  }
  return kept;
}

TEST_P(Compact, RetainedBlocksStayWhereTheyLie) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Shape shape = random_shape(seed);
    const int num_blocks = 3 + static_cast<int>(seed % 7),
              k = 2 + static_cast<int>(seed % static_cast<uint32_t>(num_blocks - 2));
    const int num_retained = 1 + static_cast<int>(seed % static_cast<uint32_t>(k));
    shape.num_slots = num_blocks * shape.block_size;
    shape.num_scored = std::min(shape.num_scored, shape.num_slots);
    CompressFixture f(shape);
    std::vector<int32_t> targets(f.table().begin(), f.table().begin() + k - num_retained);
    targets.insert(targets.end(), f.table().begin() + num_blocks - num_retained, f.table().begin() + num_blocks);
    const int budget = k * shape.block_size;
    const Kept kept = keep_last_blocks(f, make_kept(f, budget, seed), budget, num_retained);
    ASSERT_NO_FATAL_FAILURE(check(f, kept, budget, targets, num_retained));
  }
}

TEST_P(Compact, C1_RefusesATargetThatIsNotReadByThen) {
  CompressFixture f({.num_slots = 256});
  const std::vector<int32_t> targets = {f.table()[1], f.table()[0]};
  const Kept kept = make_kept(f, 128, 4);
  cpu::CpuBackend backend({.num_threads = 1}, GetParam());
  const auto queue = backend.make_queue(QueuePriority::kNormal);
  EXPECT_DEATH(backend.compact(
                   *queue, {.source = f.source(), .budget = 128, .kept = kept.data(), .target_blocks = targets.data()}),
               "C1");
}

}  // namespace
}  // namespace zipage::test
