#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/compare.h"
#include "ops/device.h"
#include "ops/oracle.h"
#include "ops/paged_kv.h"
#include "ops/random.h"

namespace zipage::test {
namespace {

class QkvRopeAppendTest : public OpTest {};

oracle::Reals angles_at(int position, int rotary_dim) {
  oracle::Reals angles;
  for (int i = 0; i < rotary_dim / 2; ++i) angles.push_back(position * std::pow(10000.0, -2.0 * i / rotary_dim));
  return angles;
}

std::vector<float> cos_sin_table(int positions, int rotary_dim) {
  std::vector<float> table;
  for (int position = 0; position < positions; ++position) {
    const oracle::Reals angles = angles_at(position, rotary_dim);
    for (double angle : angles) table.push_back(static_cast<float>(std::cos(angle)));
    for (double angle : angles) table.push_back(static_cast<float>(std::sin(angle)));
  }
  return table;
}

struct Shape {
  int num_heads, num_kv_heads, head_dim, rotary_dim, block_size;
  bool norms;
  int prompt = 21;  // tokens
};

TEST_P(QkvRopeAppendTest, SplitsNormalisesRotatesStoresAndRecords) {
  Random random(1);
  for (const Shape& shape :
       {Shape{8, 2, 64, 64, 64, true}, Shape{3, 3, 128, 128, 16, false}, Shape{4, 1, 80, 40, 32, true},
        Shape{16, 1, 32, 32, 256, false}, Shape{2, 2, 256, 128, 64, true},
        // More tokens than a device works on at once, and more heads than a block has.
        Shape{13, 3, 128, 128, 64, true, 600}}) {
    if (!device.serves_head_dim(shape.head_dim)) continue;
    SCOPED_TRACE(testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    const int layers = 2, layer = 1, window = 4, query_slots = 3;
    PagedKv kv(device, {layers, 64, shape.block_size, shape.num_kv_heads, shape.head_dim, DType::kBF16});
    const std::vector<TestSequence> sequences{{9, 1}, {-1, 1}, {0, shape.prompt}, {30, 5}};
    const auto tables = kv.make_tables({10, 0, shape.prompt, 35}, random);
    TestBatch batch(device, sequences, tables, shape.block_size);
    const int tokens = batch.view().num_tokens;
    const int width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
    const std::vector<float> qkv = device.stored(random.normals(tokens * width));
    const std::vector<float> q_norm = random.normals(shape.head_dim), k_norm = random.normals(shape.head_dim);
    const auto table = device.array(cos_sin_table(std::max(64, shape.prompt), shape.rotary_dim));
    const auto q_weight = device.array(q_norm), k_weight = device.array(k_norm);
    // Sequence 2 owns query slot 1; only its tokens are recorded.
    std::vector<int32_t> ring_rows(static_cast<size_t>(tokens), -1);
    for (int t = shape.prompt - window; t < shape.prompt; ++t)
      ring_rows[static_cast<size_t>(batch.first_token(2) + t)] = window + t % window;
    const auto rows = device.array(ring_rows);
    batch.view().query_ring_rows = rows.data();
    ActMatrix ring = device.act({}, static_cast<int64_t>(layers) * query_slots * window,
                                static_cast<int64_t>(shape.num_heads) * shape.head_dim);
    ActMatrix act = device.act(qkv, tokens, width, 16);
    QkvRopeAppendParams params{.qkv = act.matrix(),
                               .num_heads = shape.num_heads,
                               .norm_eps = 1e-6F,
                               .cos_sin = table.data(),
                               .rotary_dim = shape.rotary_dim,
                               .layer = layer,
                               .batch = batch.view(),
                               .kv = kv.pool(),
                               .ring = {ring.matrix().data, query_slots, window}};
    if (shape.norms) {
      params.q_norm = q_weight.data();
      params.k_norm = k_weight.data();
    }
    device.backend().qkv_rope_append(device.queue(), params);
    device.queue().synchronize();

    const std::vector<float> after = act.values(), recorded = ring.values();
    const Tolerance act_tolerance = device.f32() ? Tolerance{2e-5, 1e-5} : Tolerance{2e-3, 1.0 / 64};
    const auto head_of = [&](int token, int head, const std::vector<float>& norm, bool rotated) {
      const auto begin = qkv.begin() + token * width + head * shape.head_dim;
      oracle::Reals row(begin, begin + shape.head_dim);
      if (!rotated) return row;
      if (shape.norms) row = oracle::rms_norm(row, oracle::widen(norm), 1e-6, shape.head_dim);
      std::vector<int32_t> positions(1);
      device.download(positions.data(), batch.view().positions + token, sizeof(int32_t));
      return oracle::rope(row, angles_at(positions[0], shape.rotary_dim));
    };
    for (int token = 0; token < tokens; ++token) {
      oracle::Reals expected;
      for (int head = 0; head < shape.num_heads; ++head) {
        const oracle::Reals row = head_of(token, head, q_norm, true);
        expected.insert(expected.end(), row.begin(), row.end());
      }
      const std::vector<float> q(after.begin() + token * width,
                                 after.begin() + token * width + static_cast<int64_t>(expected.size()));
      const int32_t slot = batch.slots()[static_cast<size_t>(token)];
      if (slot >= 0) {
        EXPECT_TRUE(close(q, expected, shape.head_dim, act_tolerance)) << "q of token " << token;
      }
      const int32_t ring_row = ring_rows[static_cast<size_t>(token)];
      if (ring_row >= 0) {
        const auto at =
            (static_cast<int64_t>(layer) * query_slots * window + ring_row) * static_cast<int64_t>(q.size());
        EXPECT_EQ(std::vector<float>(recorded.begin() + at, recorded.begin() + at + static_cast<int64_t>(q.size())), q);
      }
      if (slot < 0) continue;
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        std::vector<float> k, v;
        kv.read(layer, head, {slot}, k, v);
        EXPECT_TRUE(close(k, head_of(token, shape.num_heads + head, k_norm, true), shape.head_dim, {1e-3, 1.0 / 128}));
        EXPECT_TRUE(close(v, head_of(token, shape.num_heads + shape.num_kv_heads + head, {}, false), shape.head_dim,
                          {1e-6, 1.0 / 256}));
      }
    }
    // Rows of other query slots and layers stay as they were: NaN.
    int untouched = 0;
    for (float value : recorded) untouched += std::isnan(value) ? 1 : 0;
    EXPECT_EQ(untouched, (layers * query_slots - 1) * window * shape.num_heads * shape.head_dim);
    EXPECT_TRUE(act.gap_untouched());
  }
}

TEST_P(QkvRopeAppendTest, case_45_PaddingSlotsWriteNothing) {
  Random random(2);
  const int block_size = 16;
  PagedKv kv(device, {1, 4, block_size, 2, 64, DType::kBF16});
  const std::vector<std::byte> before = kv.bytes();
  TestBatch batch(device, {{-1, 1}, {-1, 1}, {-1, 1}}, {{}, {}, {}}, block_size);
  ActMatrix act = device.act(random.normals(3 * 6 * 64), 3, 6 * 64);
  const auto table = device.array(cos_sin_table(1, 64));
  device.backend().qkv_rope_append(device.queue(), {.qkv = act.matrix(),
                                                    .num_heads = 2,
                                                    .cos_sin = table.data(),
                                                    .rotary_dim = 64,
                                                    .batch = batch.view(),
                                                    .kv = kv.pool()});
  device.queue().synchronize();
  EXPECT_EQ(kv.bytes(), before);
}

INSTANTIATE_TEST_SUITE_P(Devices, QkvRopeAppendTest, testing::ValuesIn(device_names()), device_of);

}  // namespace
}  // namespace zipage::test
