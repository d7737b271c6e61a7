#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "ops/compare.h"
#include "ops/device.h"
#include "ops/oracle.h"
#include "ops/paged_kv.h"
#include "ops/random.h"

namespace zipage::test {
namespace {

class AttentionTest : public OpTest {
 protected:
  Tolerance tolerance() const { return device.f32() ? Tolerance{3e-6, 1e-5} : Tolerance{4e-3, 1.0 / 64}; }
};

struct Heads {
  int num_heads, num_kv_heads, head_dim;
};

// A pool with random K and V of some sequences and their queries of one step; keys get longer by `growth` a slot.
struct Scene {
  Scene(Device& device, Heads shape, int block_size, const std::vector<TestSequence>& sequences, Random& random,
        float growth = 0)
      : heads(shape),
        kv(device, {2, blocks(sequences, block_size), block_size, shape.num_kv_heads, shape.head_dim, DType::kBF16}) {
    std::vector<int> lengths;
    for (const TestSequence& sequence : sequences) lengths.push_back(sequence.seq_len());
    tables = kv.make_tables(lengths, random);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int64_t elements = static_cast<int64_t>(lengths[i]) * heads.num_kv_heads * heads.head_dim;
      std::vector<float> numbers = random.normals(elements);
      const int64_t row = static_cast<int64_t>(heads.num_kv_heads) * heads.head_dim;
      for (int64_t e = 0; e < elements; ++e)
        numbers[static_cast<size_t>(e)] *= 1 + growth * static_cast<float>(e / row);
      const std::vector<float> k = rounded_to_bf16(numbers);
      const std::vector<float> v = rounded_to_bf16(random.normals(elements));
      kv.write(1, tables[i], 0, k, v);
      keys.push_back(by_head(k));
      values.push_back(by_head(v));
    }
    batch = std::make_unique<TestBatch>(device, sequences, tables, block_size);
    queries = device.stored(random.normals(static_cast<int64_t>(batch->view().num_tokens) * width(), 2.0F));
  }

  static int blocks(const std::vector<TestSequence>& sequences, int block_size) {
    int count = 2;
    for (const TestSequence& sequence : sequences) count += (sequence.seq_len() + block_size - 1) / block_size;
    return count;
  }
  // [slots, num_kv_heads, head_dim] as the oracle takes it.
  std::vector<oracle::Reals> by_head(const std::vector<float>& values_of_slots) const {
    std::vector<oracle::Reals> out(static_cast<size_t>(heads.num_kv_heads));
    for (size_t at = 0; at < values_of_slots.size(); ++at) {
      out[at / static_cast<size_t>(heads.head_dim) % out.size()].push_back(static_cast<double>(values_of_slots[at]));
    }
    return out;
  }
  int64_t width() const { return static_cast<int64_t>(heads.num_heads) * heads.head_dim; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(heads.head_dim)); }

  // Row of `head` and the token that sees the first `visible` slots of `sequence`.
  oracle::Reals expected(size_t sequence, int token, int head, int visible) const {
    const auto kv_head = static_cast<size_t>(head / (heads.num_heads / heads.num_kv_heads));
    const auto elements = static_cast<size_t>(visible * heads.head_dim);
    const auto q = queries.begin() + token * width() + static_cast<int64_t>(head) * heads.head_dim;
    return oracle::attention_row(oracle::Reals(q, q + heads.head_dim),
                                 std::span(keys[sequence][kv_head]).first(elements),
                                 std::span(values[sequence][kv_head]).first(elements), static_cast<double>(scale()));
  }

  Heads heads;
  PagedKv kv;
  std::vector<std::vector<int32_t>> tables;
  std::vector<std::vector<oracle::Reals>> keys, values;  // [sequence][kv head] of [slots, head_dim]
  std::unique_ptr<TestBatch> batch;
  std::vector<float> queries;  // [tokens, num_heads * head_dim]
};

// q is a view of wider rows, as in qkv.
std::vector<float> attend(Device& device, const Scene& scene) {
  const int64_t tokens = scene.batch->view().num_tokens;
  ActMatrix q = device.act(scene.queries, tokens, scene.width(), 48);
  ActMatrix out = device.act({}, tokens, scene.width(), 16);
  device.backend().attention(device.queue(), {.q = q.matrix(),
                                              .num_heads = scene.heads.num_heads,
                                              .scale = scene.scale(),
                                              .layer = 1,
                                              .batch = scene.batch->view(),
                                              .kv = scene.kv.pool(),
                                              .out = out.matrix()});
  EXPECT_TRUE(out.gap_untouched());
  return out.values();
}

TEST_P(AttentionTest, MixedBatchesOfAnyShapeEqualDenseAttention) {
  Random random(1);
  const std::vector<Heads> shapes{{8, 2, 64},  {9, 3, 64},  {16, 1, 128}, {4, 4, 32},  {6, 2, 80},  {2, 1, 256},
                                  {25, 1, 48}, {30, 1, 16}, {4, 4, 96},   {24, 1, 64}, {8, 2, 128}, {11, 1, 256}};
  const int block_sizes[] = {16, 64, 256, 48};
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Heads heads = shapes[i];
    if (!device.serves_head_dim(heads.head_dim)) continue;
    const int block_size = block_sizes[i % 4];
    std::vector<TestSequence> sequences{
        {random.between(0, 700), 1}, {-1, 1}, {0, 1}, {block_size - 1, 1}, {block_size, 1}};
    sequences.push_back({0, random.between(2, 40)});
    sequences.push_back({random.between(200, 300), random.between(2, 70)});
    Scene scene(device, heads, block_size, sequences, random);
    const std::vector<float> actual = attend(device, scene);
    oracle::Reals expected;
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int t = 0; t < sequences[s].num_tokens; ++t) {
        const int visible = sequences[s].padding() ? 0 : sequences[s].context + t + 1;
        for (int head = 0; head < heads.num_heads; ++head) {
          const auto row = scene.expected(s, scene.batch->first_token(s) + t, head, visible);
          expected.insert(expected.end(), row.begin(), row.end());
        }
      }
    }
    EXPECT_TRUE(close(actual, expected, scene.width(), tolerance()))
        << heads.num_heads << "/" << heads.num_kv_heads << " heads of " << heads.head_dim << ", blocks of "
        << block_size;
  }
}

TEST_P(AttentionTest, LongSequencesAloneAndTogether) {
  Random random(2);
  for (const std::vector<TestSequence>& sequences :
       {std::vector<TestSequence>{{2999, 1}}, {{1023, 1}, {1024, 1}, {255, 1}, {256, 1}, {257, 1}}, {{2000, 9}}}) {
    Scene scene(device, {4, 2, 64}, 64, sequences, random);
    const std::vector<float> actual = attend(device, scene);
    oracle::Reals expected;
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int t = 0; t < sequences[s].num_tokens; ++t) {
        for (int head = 0; head < 4; ++head) {
          const auto row = scene.expected(s, scene.batch->first_token(s) + t, head, sequences[s].context + t + 1);
          expected.insert(expected.end(), row.begin(), row.end());
        }
      }
    }
    EXPECT_TRUE(close(actual, expected, scene.width(), tolerance()));
  }
}

TEST_P(AttentionTest, PromptsOfMorePiecesThanADeviceRunsAtATime) {
  Random random(8);
  const Heads heads{16, 8, 64};
  const std::vector<TestSequence> sequences{{40, 1}, {0, 900}, {130, 203}, {0, 2}, {511, 100}};
  Scene scene(device, heads, 32, sequences, random);
  const std::vector<float> first = attend(device, scene);
  EXPECT_EQ(attend(device, scene), first);
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int t = 0; t < sequences[s].num_tokens; t += t < 70 ? 1 : 31) {
      oracle::Reals expected;
      for (int head = 0; head < heads.num_heads; ++head) {
        const auto row = scene.expected(s, scene.batch->first_token(s) + t, head, sequences[s].context + t + 1);
        expected.insert(expected.end(), row.begin(), row.end());
      }
      const auto begin = first.begin() + (scene.batch->first_token(s) + t) * scene.width();
      ASSERT_TRUE(close({begin, begin + scene.width()}, expected, scene.width(), tolerance())) << s << ", " << t;
    }
  }
}

// Decodes of so many sequences that every part of a device works on several, and on parts of some. They begin alike, in
// the same blocks, and have the same query.
struct ManySequences {
  ManySequences(Device& on, Heads heads, int block, int longest, Random& random, float growth = 0)
      : device(on), block_size(block), scene(on, heads, block, {{longest - 1, 1}}, random, growth) {
    query = scene.queries;
    table = scene.tables.front();
  }

  const oracle::Reals& expected(int length) {
    oracle::Reals& row = rows[length];
    for (int head = 0; row.size() < query.size(); ++head) {
      const oracle::Reals part = scene.expected(0, 0, head, length);
      row.insert(row.end(), part.begin(), part.end());
    }
    return row;
  }
  std::vector<float> attend_to(const std::vector<int>& lengths) {
    std::vector<TestSequence> sequences;
    scene.queries.clear();
    for (const int length : lengths) {
      sequences.push_back({length - 1, 1});
      scene.queries.insert(scene.queries.end(), query.begin(), query.end());
    }
    scene.batch = std::make_unique<TestBatch>(device, sequences,
                                              std::vector<std::vector<int32_t>>(sequences.size(), table), block_size);
    return attend(device, scene);
  }
  void expect(const std::vector<int>& lengths, Tolerance tolerance) {
    const std::vector<float> first = attend_to(lengths);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(attend(device, scene), first);
    for (size_t s = 0; s < lengths.size(); ++s) {
      const auto begin = first.begin() + static_cast<std::ptrdiff_t>(s * query.size());
      const std::vector<float> row(begin, begin + scene.width());
      if (lengths[s] == 0) {
        EXPECT_TRUE(std::all_of(row.begin(), row.end(), [](float x) { return x == 0.0F; }));
      } else {
        ASSERT_TRUE(close(row, expected(lengths[s]), scene.width(), tolerance)) << s << ", " << lengths[s];
      }
    }
  }

  Device& device;
  int block_size;
  Scene scene;
  std::vector<float> query;
  std::vector<int32_t> table;
  std::map<int, oracle::Reals> rows;
};

TEST_P(AttentionTest, ManySequencesOfAnyLengthsGiveTheSameBitsEveryTime) {
  struct Work {
    int count, shortest, longest;
    std::vector<int> others;
  };
  const int many = device.f32() ? 1 : 20;
  const std::vector<Work> works{{3 * many, 1000, 2300, {}},
                                {many, 4000, 7000, {1, 17, 0, 300}},
                                {50 * many, 1, 40, {}},
                                {9 * many, 1, 200, {7000, 0, 7000, 6999}},
                                {20 * many, 100, 130, {5000}}};
  Random random(9);
  for (const auto& [heads, block_size] : {std::pair{Heads{16, 8, 64}, 64}, std::pair{Heads{8, 1, 128}, 48},
                                          std::pair{Heads{7, 7, 128}, 192}, std::pair{Heads{10, 2, 64}, 16}}) {
    ManySequences sequences(device, heads, block_size, 7000, random);
    for (const Work& work : works) {
      std::vector<int> lengths = work.others;
      const int few[] = {random.between(work.shortest, work.longest), random.between(work.shortest, work.longest),
                         work.longest};
      for (int i = 0; i < work.count; ++i) lengths.push_back(few[random.between(0, 2)]);
      sequences.expect(lengths, tolerance());
    }
  }
}

TEST_P(AttentionTest, ThousandsOfShortSequences) {
  Random random(10);
  ManySequences sequences(device, {4, 1, 128}, 64, 40, random);
  std::vector<int> lengths;
  for (int i = 0; i < (device.f32() ? 500 : 12000); ++i) lengths.push_back(random.between(0, 4) * 10);
  sequences.expect(lengths, tolerance());
}

// What is summed up so far must shrink again and again, for some heads and not for others.
TEST_P(AttentionTest, ScoresThatGrowAlongASequence) {
  Random random(11);
  for (const Heads heads : {Heads{16, 4, 64}, Heads{8, 2, 128}}) {
    for (const float growth : {1.0F / 256, 1.0F / 32}) {
      ManySequences sequences(device, heads, 64, 2400, random, growth);
      std::vector<int> lengths{700, 1500, 200, 2400, 64, 130};
      for (int i = 0; i < (device.f32() ? 1 : 30); ++i) lengths.push_back(i % 3 == 0 ? 1500 : 2400);
      sequences.expect(lengths, {0.02, 0.02});  // scores of hundreds
    }
  }
}

TEST_P(AttentionTest, case_46_PaddingRowsAreZeroAndUnusedSlotsHaveNoEffect) {
  // PagedKv fills the pool with NaN, so a read of any slot that was not written shows.
  Random random(3);
  for (int length : {1, 2, 15, 16, 17, 31, 63, 64, 65, 255, 257}) {
    Scene scene(device, {4, 1, 64}, 64, {{length - 1, 1}, {-1, 1}, {-1, 1}}, random);
    const std::vector<float> actual = attend(device, scene);
    EXPECT_TRUE(std::all_of(actual.begin(), actual.end(), [](float x) { return std::isfinite(x); })) << length;
    EXPECT_TRUE(std::all_of(actual.begin() + scene.width(), actual.end(), [](float x) { return x == 0.0F; })) << length;
  }
}

TEST_P(AttentionTest, TokensBehindTheLastSequenceBecomeZero) {
  Random random(4);
  Scene scene(device, {2, 1, 64}, 16, {{20, 1}}, random);
  scene.batch->view().num_tokens = 3;
  scene.queries.resize(static_cast<size_t>(3 * scene.width()), std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> actual = attend(device, scene);
  EXPECT_TRUE(std::all_of(actual.begin() + scene.width(), actual.end(), [](float x) { return x == 0.0F; }));
}

TEST_P(AttentionTest, HugeScoresNeitherOverflowNorVanish) {
  Random random(5);
  Scene scene(device, {2, 1, 64}, 64, {{300, 1}}, random);
  for (float& q : scene.queries) q *= 1e4F;
  scene.queries = device.stored(scene.queries);
  const std::vector<float> actual = attend(device, scene);
  oracle::Reals expected;
  for (int head = 0; head < 2; ++head) {
    const auto row = scene.expected(0, 0, head, 301);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(close(actual, expected, scene.width(), {0.02, 0.02}));
}

TEST_P(AttentionTest, ARowDoesNotDependOnItsCompanyOrItsChunk) {
  if (!device.f32()) GTEST_SKIP() << "promised on the CPU only";
  Random random(6);
  // The same sequence's last tokens as one chunk, as single decodes, and beside others.
  Scene scene(device, {8, 2, 64}, 32, {{590, 10}}, random);
  const std::vector<float> chunk = attend(device, scene);
  const std::vector<float> queries = scene.queries;
  std::vector<float> singles, crowded;
  for (int t = 0; t < 10; ++t) {
    const std::vector<float> query(queries.begin() + t * scene.width(), queries.begin() + (t + 1) * scene.width());
    scene.batch = std::make_unique<TestBatch>(device, std::vector<TestSequence>{{590 + t, 1}}, scene.tables, 32);
    scene.queries = query;
    const std::vector<float> alone = attend(device, scene);
    singles.insert(singles.end(), alone.begin(), alone.end());

    std::vector<TestSequence> many(9, {590 + t, 1});
    scene.batch = std::make_unique<TestBatch>(device, many, std::vector<std::vector<int32_t>>(9, scene.tables[0]), 32);
    scene.queries.clear();
    for (int i = 0; i < 9; ++i) scene.queries.insert(scene.queries.end(), query.begin(), query.end());
    const std::vector<float> together = attend(device, scene);
    crowded.insert(crowded.end(), together.end() - scene.width(), together.end());
  }
  EXPECT_EQ(chunk, singles);
  EXPECT_EQ(chunk, crowded);
}

INSTANTIATE_TEST_SUITE_P(Devices, AttentionTest, testing::ValuesIn(device_names()), device_of);

}  // namespace
}  // namespace zipage::test
