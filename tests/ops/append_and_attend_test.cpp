#include <gtest/gtest.h>

#include <cmath>

#include "ops/compare.h"
#include "ops/device.h"
#include "ops/oracle.h"
#include "ops/paged_kv.h"
#include "ops/random.h"

namespace zipage::test {
namespace {

class AppendAndAttendTest : public OpTest {};

struct DecodeShape {
  int num_heads, num_kv_heads, head_dim, rotary_dim, block_size;
  bool norms;
  DType dtype = DType::kBF16;
};

// A step of decodes: what lay in the pool before, and what both ways make of it.
class DecodeScene {
 public:
  static constexpr int kLayers = 2, kLayer = 1, kWindow = 4, kQuerySlots = 3, kPositions = 1024;

  DecodeScene(Device& device, const DecodeShape& shape) : device_(device), shape_(shape), random_(7) {
    const int b = shape.block_size;
    sequences_ = {{0, 1}, {b - 1, 1}, {b, 1}, {-1, 1}, {14, 1}, {15, 1}, {16, 1}};
    sequences_.push_back({shape.head_dim == 64 ? 900 : 500, 1});  // of several blocks, or of one
    for (int i = 0; i < 7; ++i) sequences_.push_back({random_.between(0, 130), 1});
    width_ = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
    rows_ = static_cast<int64_t>(sequences_.size());
    qkv_ = device.stored(random_.normals(rows_ * width_));
    angles_ = random_.normals(int64_t{kPositions} * shape.head_dim);
    q_norm_ = random_.normals(shape.head_dim), k_norm_ = random_.normals(shape.head_dim);
  }

  struct Results {
    std::vector<float> out, ring, k, v;
    bool gaps_untouched;
  };
  Results run(bool together) {
    Random random(9);
    const KvGeometry geometry{kLayers, 160, shape_.block_size, shape_.num_kv_heads, shape_.head_dim, shape_.dtype};
    PagedKv kv(device_, geometry);
    std::vector<int> lengths;
    for (const TestSequence& sequence : sequences_) lengths.push_back(sequence.seq_len());
    const auto tables = kv.make_tables(lengths, random);
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const int64_t elements = int64_t{std::max(sequences_[i].context, 0)} * shape_.num_kv_heads * shape_.head_dim;
      const std::vector<float> k = random.normals(elements), v = random.normals(elements);
      kv.write(kLayer, tables[i], 0, k, v);
    }
    TestBatch batch(device_, sequences_, tables, shape_.block_size);
    std::vector<int32_t> ring_rows(sequences_.size(), -1);
    ring_rows[1] = 1, ring_rows[5] = 2 * kWindow + 3, ring_rows[7] = kWindow;
    const auto rows = device_.array(ring_rows);
    batch.view().query_ring_rows = rows.data();
    const auto cos_sin = device_.array(angles_), q_norm = device_.array(q_norm_), k_norm = device_.array(k_norm_);
    const int64_t heads = int64_t{shape_.num_heads} * shape_.head_dim;
    ActMatrix qkv = device_.act(qkv_, rows_, width_, 16), out = device_.act({}, rows_, heads, 8);
    ActMatrix ring = device_.act({}, int64_t{kLayers} * kQuerySlots * kWindow, heads);
    QkvRopeAppendParams append{.qkv = qkv.matrix(),
                               .num_heads = shape_.num_heads,
                               .norm_eps = 1e-5F,
                               .cos_sin = cos_sin.data(),
                               .rotary_dim = shape_.rotary_dim,
                               .layer = kLayer,
                               .batch = batch.view(),
                               .kv = kv.pool(),
                               .ring = {ring.matrix().data, kQuerySlots, kWindow}};
    if (shape_.norms) append.q_norm = q_norm.data(), append.k_norm = k_norm.data();
    const AttentionParams attention{.q = qkv.matrix(),
                                    .num_heads = shape_.num_heads,
                                    .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)),
                                    .layer = kLayer,
                                    .batch = batch.view(),
                                    .kv = kv.pool(),
                                    .out = out.matrix()};
    Backend& backend = device_.backend();
    if (together) {
      backend.append_and_attend(device_.queue(), append, attention);
    } else {
      backend.qkv_rope_append(device_.queue(), append);
      backend.attention(device_.queue(), attention);
    }
    device_.queue().synchronize();
    Results results{
        .out = out.values(), .ring = ring.values(), .k = {}, .v = {}, .gaps_untouched = out.gap_untouched()};
    std::vector<int32_t> slots;
    for (int32_t slot : batch.slots()) {
      if (slot >= 0) slots.push_back(slot);
    }
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      std::vector<float> k, v;
      kv.read(kLayer, head, slots, k, v);
      results.k.insert(results.k.end(), k.begin(), k.end());
      results.v.insert(results.v.end(), v.begin(), v.end());
    }
    return results;
  }

 private:
  Device& device_;
  DecodeShape shape_;
  Random random_;
  std::vector<TestSequence> sequences_;
  int width_ = 0;
  int64_t rows_ = 0;
  std::vector<float> qkv_, angles_, q_norm_, k_norm_;
};

TEST_P(AppendAndAttendTest, IsTheOneOpAfterTheOther) {
  std::vector<DecodeShape> shapes{{8, 2, 64, 64, 64, true},    {3, 3, 128, 128, 16, false}, {16, 1, 128, 128, 32, true},
                                  {12, 1, 64, 64, 48, false},  {4, 4, 96, 96, 16, true},    {10, 1, 256, 256, 64, true},
                                  {2, 2, 256, 256, 16, false}, {8, 2, 128, 64, 64, true},   {20, 1, 64, 64, 64, true}};
  if (!device.f32()) {
    shapes.push_back({8, 2, 128, 128, 64, true, DType::kF8E4M3});
    shapes.push_back({12, 1, 64, 64, 16, false, DType::kF8E4M3});
  }
  for (const DecodeShape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.num_heads << "/" << shape.num_kv_heads << " heads of " << shape.head_dim
                                    << ", blocks of " << shape.block_size << ", " << traits(shape.dtype).name);
    DecodeScene scene(device, shape);
    const DecodeScene::Results one = scene.run(true), two = scene.run(false);
    EXPECT_TRUE(one.gaps_untouched);
    // Sums of squares in another order: a rounding to bf16 or fp8 may tip over.
    const double step = shape.dtype == DType::kBF16 ? 1.0 / 128 : 1.0 / 8;
    const Tolerance tolerance = device.f32() ? Tolerance{0, 0} : Tolerance{1e-3, step};
    EXPECT_TRUE(close(one.k, oracle::widen(two.k), shape.head_dim, tolerance));
    EXPECT_EQ(one.v, two.v);
    EXPECT_TRUE(close(one.out, oracle::widen(two.out), shape.num_heads * shape.head_dim,
                      device.f32() ? Tolerance{0, 0} : Tolerance{4e-3, 1.0 / 64}));
    int recorded = 0;
    ASSERT_EQ(one.ring.size(), two.ring.size());
    for (size_t i = 0; i < one.ring.size(); ++i) {
      ASSERT_EQ(std::isnan(one.ring[i]), std::isnan(two.ring[i])) << i;
      if (std::isnan(one.ring[i])) continue;
      ++recorded;
      ASSERT_NEAR(one.ring[i], two.ring[i], 1e-3 + std::abs(two.ring[i]) / 128) << i;
    }
    EXPECT_EQ(recorded, 3 * shape.num_heads * shape.head_dim);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, AppendAndAttendTest, testing::ValuesIn(device_names()), device_of);

}  // namespace
}  // namespace zipage::test
