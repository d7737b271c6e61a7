// The compression's stages on CUDA against the CPU's, stage by stage on the same inputs. (The CPU's are proven against
// the oracle.)
#include <gtest/gtest.h>

#include <cmath>

#include "ops/compress_fixture.h"
#include "ops/device.h"

namespace zipage::test {
namespace {

// The 127 numbers that e4m3 has from 0 on.
std::vector<float> e4m3_numbers() {
  std::vector<float> numbers;
  for (int code = 0; code < 127; ++code) {
    const int exponent = code >> 3, fraction = code & 7;
    numbers.push_back(exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                    : std::ldexp(static_cast<float>(8 + fraction), exponent - 10));
  }
  return numbers;
}

// The fixture's K and V become numbers that fp8 has under each head's scale, and `pool` gets their codes, as [layer,
// block, 2, KV head, slot, head_dim].
class Fp8Numbers {
 public:
  explicit Fp8Numbers(CompressFixture& f) {
    const KvGeometry& g = f.pool().geometry;
    const int64_t heads = int64_t{g.num_layers} * g.num_kv_heads;
    for (int64_t i = 0; i < 2 * heads; ++i) scales.push_back(std::ldexp(1.0F, static_cast<int>(i % 3) - 6));
    std::vector<float> row(static_cast<size_t>(g.head_dim));
    for (int layer = 0; layer < g.num_layers; ++layer) {
      const cpu::KvLayerView view(f.pool(), layer);
      for (int block = 0; block < g.num_blocks; ++block) {
        for (int part = 0; part < 2; ++part) {
          for (int head = 0; head < g.num_kv_heads; ++head) {
            const float scale = scales[static_cast<size_t>(part * heads + layer * g.num_kv_heads + head)];
            for (int slot = 0; slot < g.block_size; ++slot) {
              part == 0 ? view.read_key(block, head, slot, row.data()) : view.read_value(block, head, slot, row.data());
              for (float& x : row) x = rounded(x, scale);
              part == 0 ? view.write_key(block, head, slot, row.data())
                        : view.write_value(block, head, slot, row.data());
            }
          }
        }
      }
    }
  }
  std::vector<uint8_t> codes;
  std::vector<float> scales;  // of K, then of V

 private:
  float rounded(float x, float scale) {
    constexpr uint8_t kNaN = 0x7f, kSign = 0x80;
    if (std::isnan(x)) {
      codes.push_back(kNaN);
      return x;
    }
    const float wanted = std::abs(x) / scale;
    auto at = std::ranges::lower_bound(numbers_, wanted);
    if (at == numbers_.end() || (at != numbers_.begin() && wanted - at[-1] < *at - wanted)) --at;
    codes.push_back(static_cast<uint8_t>((at - numbers_.begin()) | (x < 0 ? kSign : 0)));
    return std::copysign(*at * scale, x);
  }
  std::vector<float> numbers_ = e4m3_numbers();
};

// The fixture's pool, ring and table on the device. K and V lie as [block, 2, kv head, slot, head_dim] there.
class OnDevice {
 public:
  OnDevice(Device& device, CompressFixture& f, const Fp8Numbers& fp8) : OnDevice(device, f) {
    codes_ = std::make_unique<DeviceArray<uint8_t>>(device, fp8.codes);
    scales_ = std::make_unique<DeviceArray<float>>(device, fp8.scales);
  }
  OnDevice(Device& device, CompressFixture& f)
      : device_(device),
        f_(f),
        data_(device.array(pool_data(f))),
        scores_(device.array(std::vector<float>(f.pool().scores, f.pool().scores + entries()))),
        positions_(device.array(std::vector<int32_t>(f.pool().positions, f.pool().positions + entries()))),
        ring_(device.array(ring_data(f))),
        table_(device.array(f.table())),
        cos_sin_(device.array(std::vector<float>(f.cos_sin(), f.cos_sin() + table_floats()))),
        scratch_(device.allocate(device.backend().compression_scratch_bytes(f.pool().geometry, heads(),
                                                                            f.shape().window, f.shape().num_slots))) {}

  KvPool pool() const {
    KvPool pool{.geometry = f_.pool().geometry,
                .data = reinterpret_cast<std::byte*>(data_.data()),
                .scores = scores_.data(),
                .positions = positions_.data()};
    if (codes_ != nullptr) {
      pool.geometry.dtype = DType::kF8E4M3;
      pool.data = reinterpret_cast<std::byte*>(codes_->data());
      pool.k_scale = scales_->data();
      pool.v_scale = scales_->data() + f_.heads();
    }
    return pool;
  }
  CompressionSource source() const {
    CompressionSource s = f_.source();
    s.kv = pool();
    s.source_blocks = table_.data();
    return s;
  }
  QueryRing ring() const { return {ring_.data(), f_.ring().num_query_slots, f_.ring().window, f_.ring().stride}; }
  const float* cos_sin() const { return cos_sin_.data(); }
  std::byte* scratch() const { return scratch_->data(); }
  std::vector<uint16_t> data() const { return data_.values(); }
  std::vector<float> scores() const { return scores_.values(); }
  std::vector<int32_t> positions() const { return positions_.values(); }

  static std::vector<uint16_t> pool_data(const CompressFixture& f) {
    const KvGeometry& g = f.pool().geometry;
    std::vector<uint16_t> out;
    std::vector<float> row(static_cast<size_t>(g.head_dim));
    for (int layer = 0; layer < g.num_layers; ++layer) {
      const cpu::KvLayerView view(f.pool(), layer);
      for (int block = 0; block < g.num_blocks; ++block) {
        for (int part = 0; part < 2; ++part) {
          for (int head = 0; head < g.num_kv_heads; ++head) {
            for (int slot = 0; slot < g.block_size; ++slot) {
              part == 0 ? view.read_key(block, head, slot, row.data()) : view.read_value(block, head, slot, row.data());
              for (float x : row) out.push_back(Bf16(x).bits);
            }
          }
        }
      }
    }
    return out;
  }

 private:
  int heads() const { return f_.shape().group * f_.shape().num_kv_heads; }
  int64_t entries() const {
    const KvGeometry& g = f_.pool().geometry;
    return int64_t{g.num_layers} * g.num_blocks * g.num_kv_heads * g.block_size;
  }
  int64_t table_floats() const { return int64_t{f_.sequence().logical_len} * f_.shape().rotary_dim; }
  // Rounds the fixture's own queries as well: the CPU computes from the same numbers.
  static std::vector<uint16_t> ring_data(CompressFixture& f) {
    const int64_t count = int64_t{f.shape().num_layers} * f.ring().num_query_slots * f.shape().window *
                          f.shape().group * f.shape().num_kv_heads * f.shape().head_dim;
    auto* values = static_cast<float*>(f.ring().data);
    std::vector<uint16_t> out;
    for (int64_t i = 0; i < count; ++i) {
      const Bf16 rounded(values[i]);
      values[i] = static_cast<float>(rounded);
      out.push_back(rounded.bits);
    }
    return out;
  }

  Device& device_;
  CompressFixture& f_;
  DeviceArray<uint16_t> data_;
  DeviceArray<float> scores_;
  DeviceArray<int32_t> positions_;
  DeviceArray<uint16_t> ring_;
  DeviceArray<int32_t> table_;
  DeviceArray<float> cos_sin_;
  std::unique_ptr<Buffer> scratch_;
  std::unique_ptr<DeviceArray<uint8_t>> codes_;  // fp8
  std::unique_ptr<DeviceArray<float>> scales_;
};

Shape cuda_shape(uint32_t seed) {
  Shape s = random_shape(seed);
  const int head_dims[] = {64, 128, 96, 256};
  s.head_dim = head_dims[seed % 4];
  s.rotary_dim = seed % 3 == 0 ? s.head_dim / 2 : s.head_dim;
  if (seed % 5 == 0) s.group = 16;
  return s;
}

// More than a device works on at once, so that blocks of a kernel go on from a piece of work to the next.
std::vector<Shape> large_shapes() {
  Shape s{.num_layers = 9, .num_kv_heads = 8, .group = 4, .head_dim = 128, .block_size = 64, .num_slots = 2200};
  s.num_scored = 1950, s.evicted = 900, s.window = 16, s.query_stride = 4, s.rotary_dim = 128, s.rope_scale = 1.25;
  Shape wide = s;
  wide.num_layers = 5, wide.group = 16, wide.block_size = 48, wide.rope_scale = 1.0;
  return {s, wide};
}

// Of a sequence that a cluster of blocks on Hopper has at once (up to 8 x 384 slots): every number of blocks, with the
// last one full or of a single slot, and more slots than fit. Window rows times heads fill 64 lines, or leave some
// over; the window may be longer than the sequence.
std::vector<Shape> cluster_shapes() {
  const struct {
    int slots, scored, group, window, stride, block_size, evicted = 700;
  } rows[] = {{900, 700, 4, 16, 1, 48, 6000},
              {1000, 900, 2, 16, 1, 64, 30'000},
              {384, 0, 8, 5, 1, 16},
              {385, 300, 4, 16, 1, 48},
              {1100, 900, 2, 32, 1, 80},
              {1536, 0, 1, 64, 1, 64},
              {1905, 1700, 3, 16, 4, 48},
              {2304, 2048, 4, 16, 3, 64},
              {2688, 0, 8, 1, 1, 128},
              {2689, 2000, 7, 8, 1, 80},
              {3072, 2816, 4, 13, 4, 48},
              {3073, 2816, 4, 13, 4, 48},
              {1000, 900, 4, 16, 1, 32},
              {2001, 1700, 4, 16, 4, 96},
              {4096, 3840, 4, 16, 1, 16},
              {4097, 3840, 4, 16, 1, 16},
              {10, 0, 4, 16, 1, 16},
              {10, 3, 1, 50, 3, 64},
              {1, 0, 5, 5, 1, 16}};
  std::vector<Shape> shapes;
  for (const auto& row : rows) {
    for (const int head_dim : {64, 128}) {
      Shape s{.group = row.group, .head_dim = head_dim, .block_size = row.block_size, .num_slots = row.slots};
      s.num_scored = row.scored, s.evicted = row.scored > 0 ? row.evicted : 0;
      s.rope_scale = row.slots % 2 == 0 ? 1.25 : 1.0;
      s.window = row.window, s.query_stride = row.stride;
      s.seed = static_cast<uint32_t>(row.slots + head_dim);
      shapes.push_back(s);
    }
  }
  return shapes;
}

// Every head's keys become key(t).
template <typename Key>
void set_keys(CompressFixture& f, const Key& key) {
  for (int layer = 0; layer < f.shape().num_layers; ++layer) {
    for (int head = 0; head < f.shape().num_kv_heads; ++head) {
      oracle::Head& h = f.mutable_sequence().heads[static_cast<size_t>(layer)][static_cast<size_t>(head)];
      for (int t = 0; t < f.shape().num_slots; ++t) {
        const int b = f.shape().block_size;
        h.k[static_cast<size_t>(t)] = key(t);
        f.write_slot(layer, head, t, f.table()[static_cast<size_t>(t / b)], t % b);
      }
    }
  }
}

double cosine(const oracle::Row& x, const oracle::Row& y) {
  return oracle::dot(x, y) / std::sqrt(oracle::dot(x, x) * oracle::dot(y, y));
}

// Keys in bf16 of which none are alike: cosines far below 0.6 with 64 elements or more.
class UnlikeKeys {
 public:
  UnlikeKeys(int num_slots, int head_dim, uint32_t seed) : random_(seed), keys_(static_cast<size_t>(num_slots)) {
    for (oracle::Row& key : keys_) {
      for (int d = 0; d < head_dim; ++d) key.push_back(rounded(normal_(random_)));
    }
  }
  oracle::Row& operator()(int t) { return keys_[static_cast<size_t>(t)]; }
  const oracle::Row& operator()(int t) const { return keys_[static_cast<size_t>(t)]; }
  void copy(int from, std::initializer_list<int> to) {
    for (const int t : to) (*this)(t) = (*this)(from);
  }
  // Slot `to` gets a key whose cosine with slot `from`'s lies between the two, which are near to each other.
  void lean(int to, int from, double least, double most) {
    const oracle::Row& x = (*this)(from);
    const double wanted = (least + most) / 2;
    do {
      oracle::Row y(x.size());
      for (double& v : y) v = normal_(random_);
      const double along = oracle::dot(x, y) / oracle::dot(x, x);
      for (size_t d = 0; d < x.size(); ++d) y[d] -= along * x[d];
      const double across = std::sqrt((1 - wanted * wanted) * oracle::dot(x, x) / oracle::dot(y, y));
      for (size_t d = 0; d < x.size(); ++d) y[d] = rounded(wanted * x[d] + across * y[d]);
      (*this)(to) = y;
    } while (cosine(x, (*this)(to)) < least || cosine(x, (*this)(to)) > most);
  }

 private:
  static double rounded(double x) { return static_cast<float>(Bf16(static_cast<float>(x))); }
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  std::vector<oracle::Row> keys_;
};

::testing::AssertionResult near(const std::vector<float>& actual, const std::vector<float>& expected, float absolute,
                                float relative) {
  if (actual.size() != expected.size()) return ::testing::AssertionFailure() << actual.size() << " values";
  for (size_t i = 0; i < actual.size(); ++i) {
    const bool special = !std::isfinite(expected[i]) || !std::isfinite(actual[i]);
    const bool same = special ? actual[i] == expected[i]
                              : std::abs(actual[i] - expected[i]) <= absolute + relative * std::abs(expected[i]);
    if (!same) {
      return ::testing::AssertionFailure() << "value " << i << " is " << actual[i] << " instead of " << expected[i];
    }
  }
  return ::testing::AssertionSuccess();
}

class CompressCuda : public ::testing::Test {
 protected:
  static constexpr float kCosineError = 2e-6F;  // of keys of up to 256 elements, RoPE undone

  void SetUp() override {
    const auto names = test::device_names();
    if (std::find(names.begin(), names.end(), "cuda") == names.end()) GTEST_SKIP() << "no CUDA device";
    device = std::make_unique<Device>("cuda");
    cpu_queue = cpu_backend.make_queue(QueuePriority::kNormal);
  }
  Backend& gpu() { return device->backend(); }
  Queue& queue() { return device->queue(); }
  DeviceArray<float> zeros(const CompressFixture& f) { return device->array(f.per_slot()); }

  void expect_window_scores(const CompressFixture& f, const OnDevice& on) {
    WindowScoreParams p{.source = f.source(),
                        .ring = f.ring(),
                        .query_slot = CompressFixture::kQuerySlot,
                        .num_heads = f.shape().group * f.shape().num_kv_heads,
                        .scale = 1.0F / std::sqrt(static_cast<float>(f.shape().head_dim))};
    std::vector<float> expected = f.per_slot();
    p.scores = expected.data();
    cpu_backend.window_scores(*cpu_queue, p);
    const auto actual = zeros(f);
    p.source = on.source();
    p.ring = on.ring();
    p.scores = actual.data();
    p.scratch = on.scratch();
    gpu().window_scores(queue(), p);
    EXPECT_TRUE(near(actual.values(), expected, 1e-7F, 1e-4F)) << f.shape().describe();
  }
  void expect_redundancy(const CompressFixture& f, const OnDevice& on) {
    for (RedundancyScope scope : {RedundancyScope::kExact, RedundancyScope::kMean, RedundancyScope::kLightning}) {
      for (RedundancyKeys keys : {RedundancyKeys::kContent, RedundancyKeys::kRotated}) {
        expect_redundancy(f, on, scope, keys, RedundancyParams{}.threshold);
      }
    }
  }
  void expect_redundancy(const CompressFixture& f, const OnDevice& on, RedundancyScope scope, RedundancyKeys keys,
                         float threshold) {
    RedundancyParams p{
        .source = f.source(), .scope = scope, .keys = keys, .cos_sin = f.cos_sin(), .rotary_dim = f.shape().rotary_dim};
    const auto on_cpu = [&](float at) {
      std::vector<float> out = f.per_slot();
      p.redundancy = out.data();
      p.threshold = at;
      cpu_backend.redundancy(*cpu_queue, p);
      return out;
    };
    const std::vector<float> expected = on_cpu(threshold);
    RedundancyParams q = p;
    const auto actual = zeros(f);
    q.source = on.source();
    q.cos_sin = on.cos_sin();
    q.redundancy = actual.data();
    q.scratch = on.scratch();
    gpu().redundancy(queue(), q);
    std::vector<float> values = actual.values();
    if (scope != RedundancyScope::kMean && !near(values, expected, 1e-9F, 2e-4F)) {
      // A cosine as close to the threshold as sums in fp32 are to each other may count on either side.
      const std::vector<float> more = on_cpu(std::max(threshold - kCosineError, 0.0F)),
                               fewer = on_cpu(threshold + kCosineError);
      int ties = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const auto is = [&](float wanted) { return std::abs(values[i] - wanted) <= 1e-9F + 2e-4F * wanted; };
        if (is(expected[i]) || !(is(more[i]) || is(fewer[i]))) continue;
        values[i] = expected[i];
        ++ties;
      }
      EXPECT_LE(ties, static_cast<int>(values.size() / 10'000));
    }
    EXPECT_TRUE(near(values, expected, 1e-9F, 2e-4F))
        << f.shape().describe() << " scope " << static_cast<int>(scope) << " keys " << static_cast<int>(keys)
        << " threshold " << threshold;
  }
  void expect_value_norms(const CompressFixture& f, const OnDevice& on) {
    std::vector<float> scores = f.random_scores();
    expect_value_norms(f, on, scores, device->array(scores));
  }
  // Scores of both, which become what they are behind the stage.
  void expect_value_norms(const CompressFixture& f, const OnDevice& on, std::vector<float>& scores,
                          const DeviceArray<float>& device_scores) {
    cpu_backend.value_norms(*cpu_queue, {.source = f.source(), .scores = scores.data()});
    gpu().value_norms(queue(), {.source = on.source(), .scores = device_scores.data()});
    EXPECT_TRUE(near(device_scores.values(), scores, 1e-9F, 1e-5F)) << f.shape().describe();
  }

  // S, R' and F.
  void expect_final_scores(const CompressFixture& f, const OnDevice& on, const CompressionParams& params,
                           float sharpness = 1.0F) {
    FinalScoresParams p{.source = f.source(),
                        .params = params,
                        .ring = f.ring(),
                        .query_slot = CompressFixture::kQuerySlot,
                        .num_heads = f.shape().group * f.shape().num_kv_heads,
                        .scale = sharpness / std::sqrt(static_cast<float>(f.shape().head_dim)),
                        .cos_sin = f.cos_sin(),
                        .rotary_dim = f.shape().rotary_dim};
    std::vector<float> scores = f.per_slot(), pooled = scores, redundancy = scores, final_scores = scores;
    p.scores = scores.data(), p.pooled = pooled.data();
    p.redundancy = redundancy.data(), p.final_scores = final_scores.data();
    cpu_backend.final_scores(*cpu_queue, p);
    const std::vector<float>& kept = p.pools() ? pooled : scores;
    const auto device_scores = zeros(f), device_pooled = zeros(f), device_redundancy = zeros(f),
               device_final = zeros(f);
    p.source = on.source(), p.ring = on.ring(), p.cos_sin = on.cos_sin(), p.scratch = on.scratch();
    p.scores = device_scores.data(), p.pooled = device_pooled.data();
    p.redundancy = device_redundancy.data(), p.final_scores = device_final.data();
    gpu().final_scores(queue(), p);
    // A weight's relative error is its logit's, which grows with the logit.
    EXPECT_TRUE(near((p.pools() ? device_pooled : device_scores).values(), kept, 1e-7F, 1e-4F * sharpness))
        << f.shape().describe();
    if (params.scope != RedundancyScope::kOff) {
      EXPECT_TRUE(near(device_redundancy.values(), redundancy, 1e-9F, 2e-4F)) << f.shape().describe();
    }
    // A logarithm's error is the relative one of what it is of.
    const bool log = params.combine == ScoreCombine::kLog;
    EXPECT_TRUE(near(device_final.values(), final_scores, log ? 3e-4F : 2e-7F, log ? 0 : 2e-4F))
        << f.shape().describe();
  }

  void expect_scores(const CompressFixture& f, const OnDevice& on) {
    expect_window_scores(f, on);
    expect_redundancy(f, on);
    expect_value_norms(f, on);
  }

  // The same slots to the last one.
  void expect_selection(const CompressFixture& f, const OnDevice& on, const std::vector<float>& final_scores,
                        int budget, bool whole_blocks) {
    std::vector<int32_t> expected(static_cast<size_t>(f.heads() * budget), -1);
    const auto on_device = device->array(final_scores);
    const auto actual = device->array(expected);
    SelectParams p{.source = f.source(),
                   .budget = budget,
                   .whole_blocks = whole_blocks,
                   .final_scores = final_scores.data(),
                   .kept = expected.data()};
    cpu_backend.select(*cpu_queue, p);
    p.source = on.source();
    p.final_scores = on_device.data();
    p.kept = actual.data();
    gpu().select(queue(), p);
    EXPECT_EQ(actual.values(), expected) << f.shape().describe() << " budget " << budget;
  }

  // With K and V in bf16, then as the numbers nearest to them that fp8 has.
  template <typename Expect>
  void in_both_types(const Shape& shape, const Expect& expect) {
    CompressFixture f(shape);
    expect(f, OnDevice(*device, f));
    const Fp8Numbers fp8(f);
    expect(f, OnDevice(*device, f, fp8));
  }

  std::unique_ptr<Device> device;
  cpu::CpuBackend cpu_backend{{.num_threads = 2}};
  std::unique_ptr<Queue> cpu_queue;
};

TEST_F(CompressCuda, WindowScoresEqualTheCpus) {
  for (uint32_t seed = 1; seed <= 24; ++seed) {
    CompressFixture f(cuda_shape(seed));
    expect_window_scores(f, OnDevice(*device, f));
  }
}

TEST_F(CompressCuda, WindowScoresOfAClustersSlotsEqualTheCpus) {
  for (const Shape& shape : cluster_shapes()) {
    in_both_types(shape, [&](const auto& f, const auto& on) { expect_window_scores(f, on); });
  }
}

// What one kernel serves, in all ways to carry, pool and combine, and what it does not: other heads, more slots,
// scopes.
TEST_F(CompressCuda, FinalScoresEqualTheCpus) {
  std::vector<Shape> shapes = cluster_shapes();
  for (uint32_t seed = 1; seed <= 12; ++seed) shapes.push_back(cuda_shape(seed));
  int number = 0;
  for (const Shape& shape : shapes) {
    CompressionParams params{.budget = 16, .window = shape.window, .scope = RedundancyScope::kMean};
    const int i = number++;
    params.value_norms = i % 3 != 0;
    params.carry = i % 5 == 0 ? ScoreCarry::kOff : i % 2 == 0 ? ScoreCarry::kMax : ScoreCarry::kSum;
    params.pool = 1 + 2 * (i % 4);
    params.combine = i % 2 == 0 ? ScoreCombine::kLog : ScoreCombine::kLinear;
    params.lambda = 0.3F;
    params.sinks = i % 3, params.recent = i % 50;
    params.protect_prompt = i % 7 == 0;
    in_both_types(shape, [&](const auto& f, const auto& on) { expect_final_scores(f, on, params); });
  }
  CompressFixture f(shapes.front());
  const OnDevice on(*device, f);
  expect_final_scores(f, on, {.budget = 16, .value_norms = true, .scope = RedundancyScope::kExact});
  expect_final_scores(f, on, {.budget = 16, .scope = RedundancyScope::kOff});
  expect_final_scores(f, on, {.budget = 16, .scope = RedundancyScope::kMean, .keys = RedundancyKeys::kRotated});
  expect_final_scores(f, on, {.budget = 16, .pool = 20'001, .scope = RedundancyScope::kMean});
}

// Later slots have logits so much greater than the first ones' that their exponentials do not fit beside each other.
TEST_F(CompressCuda, FinalScoresOfSharpAttentionEqualTheCpus) {
  for (const int head_dim : {64, 128}) {
    CompressFixture f({.group = 4, .head_dim = head_dim, .num_slots = 2304, .num_scored = 2048, .evicted = 500});
    expect_final_scores(
        f, OnDevice(*device, f),
        {.budget = 64, .carry = ScoreCarry::kOff, .pool = 1, .scope = RedundancyScope::kMean, .lambda = 1.0F}, 40.0F);
  }
}

TEST_F(CompressCuda, LongSequencesOfManyHeadsScoreAsOnTheCpu) {
  for (const Shape& shape : large_shapes()) {
    in_both_types(shape, [&](const auto& f, const auto& on) {
      expect_scores(f, on);
      expect_final_scores(f, on, {.budget = 64, .value_norms = true, .scope = RedundancyScope::kMean});
    });
  }
}

TEST_F(CompressCuda, RedundancyEqualsTheCpusForEveryScope) {
  for (uint32_t seed = 1; seed <= 24; ++seed) {
    CompressFixture f(cuda_shape(seed));
    expect_redundancy(f, OnDevice(*device, f));
  }
}

// Whole chunks, a slot less and a slot more, and ends of every kind within a chunk. A threshold of 0 is below what keys
// of length 0 and slots past the end come to.
TEST_F(CompressCuda, LightningEqualsTheCpusForChunksOfAnyLength) {
  uint32_t seed = 0;
  for (const int slots : {1, 2, 15, 16, 17, 33, 64, 65, 127, 193, 255, 256, 257, 511, 512, 529}) {
    for (const int head_dim : {64, 128}) {
      const int block_sizes[] = {16, 48, 64, 80};
      Shape shape{.head_dim = head_dim, .block_size = block_sizes[seed % 4], .num_slots = slots, .window = 1};
      shape.seed = ++seed;
      CompressFixture f(shape);
      const OnDevice bf16(*device, f);
      for (const float threshold : {0.0F, 0.3F, 0.8F}) {
        expect_redundancy(f, bf16, RedundancyScope::kLightning, RedundancyKeys::kRotated, threshold);
      }
      const Fp8Numbers fp8(f);
      expect_redundancy(f, OnDevice(*device, f, fp8), RedundancyScope::kLightning, RedundancyKeys::kRotated, 0.3F);
    }
  }
}

// Four keys over and over. Two of them have a cosine so near the threshold, on either side, that products on tensor
// cores leave it in doubt; what becomes of half of the columns depends on it.
TEST_F(CompressCuda, CosinesNextToTheThresholdCountAsFp32HasThem) {
  for (const int head_dim : {64, 96, 128, 256}) {
    CompressFixture f({.head_dim = head_dim, .num_slots = 600});
    std::mt19937 random(static_cast<uint32_t>(head_dim));
    std::normal_distribution<double> normal;
    std::vector<oracle::Row> keys(4, oracle::Row(static_cast<size_t>(head_dim)));
    for (size_t key = 0; key < 4; ++key) {
      for (size_t d = 0; d < keys[key].size(); ++d) {
        const double x = normal(random) + (key == 1 ? keys[0][d] : 0.0);
        keys[key][d] = static_cast<float>(Bf16(static_cast<float>(x)));
      }
    }
    set_keys(f, [&](int t) { return keys[static_cast<size_t>(t % 4)]; });
    ASSERT_GT(cosine(keys[0], keys[1]), 0.5);
    for (size_t key = 2; key < 4; ++key) {
      for (size_t other = 0; other < key; ++other) ASSERT_LT(cosine(keys[other], keys[key]), 0.4);
    }
    const OnDevice on(*device, f);
    for (const float off : {-4e-5F, -5 * kCosineError, 5 * kCosineError, 4e-5F}) {
      const float threshold = static_cast<float>(cosine(keys[0], keys[1])) + off;
      for (const RedundancyScope scope : {RedundancyScope::kExact, RedundancyScope::kLightning}) {
        expect_redundancy(f, on, scope, RedundancyKeys::kRotated, threshold);
      }
    }
  }
}

// A few slots, whole and broken tiles of rows, strips of columns with ends of every kind. With a threshold of 0 keys of
// length 0 and slots past the end come near it; one of 1.5 nobody reaches.
TEST_F(CompressCuda, ExactEqualsTheCpusForStripsOfAnyLength) {
  uint32_t seed = 0;
  for (const int slots : {1, 2, 3, 4, 5, 31, 63, 64, 65, 129, 191, 255, 256, 257, 320, 511, 512, 513, 577, 801}) {
    for (const int head_dim : {64, 128}) {
      const int block_sizes[] = {16, 48, 64, 80};
      Shape shape{.head_dim = head_dim, .block_size = block_sizes[seed % 4], .num_slots = slots, .window = 1};
      shape.seed = ++seed;
      CompressFixture f(shape);
      const OnDevice bf16(*device, f);
      for (const float threshold : {0.0F, 0.3F, 0.8F, 1.5F}) {
        expect_redundancy(f, bf16, RedundancyScope::kExact, RedundancyKeys::kRotated, threshold);
      }
      expect_redundancy(f, bf16, RedundancyScope::kExact, RedundancyKeys::kContent, 0.5F);
      const Fp8Numbers fp8(f);
      expect_redundancy(f, OnDevice(*device, f, fp8), RedundancyScope::kExact, RedundancyKeys::kRotated, 0.5F);
    }
  }
}

// Nothing but the planted pairs is alike, so everything is multiplied, and a pair that goes unseen, or is taken for
// another, shows.
TEST_F(CompressCuda, ExactFindsTheFewPairsOfUnlikeKeys) {
  for (const int head_dim : {64, 128}) {
    for (const int slots : {2304, 2290}) {
      CompressFixture f({.num_layers = 1, .head_dim = head_dim, .num_slots = slots});
      UnlikeKeys keys(slots, head_dim, static_cast<uint32_t>(slots + head_dim));
      keys.copy(100, {700, 2000, 2001});                             // the newest of several, near and far
      keys.copy(300, {1500});                                        // a pair across strips
      keys.copy(530, {531, 560, 640, 766});                          // within a strip, and within its tiles
      keys.copy(1023, {1024});                                       // on both sides of a strip's end
      keys.copy(1087, {1088});                                       // of a tile's
      keys.copy(0, {slots - 1});                                     // the first slot and the last
      keys.copy(1, {255});                                           // a strip's first slots and last
      keys.copy(slots - 3, {slots - 2});                             // in the last tile
      for (int t = 0; t < 64; ++t) keys.copy(1300 + t, {1700 + t});  // a whole tile's worth at a time
      keys(400) = keys(1999) = oracle::Row(static_cast<size_t>(head_dim));
      set_keys(f, keys);
      const OnDevice on(*device, f);
      expect_redundancy(f, on, RedundancyScope::kExact, RedundancyKeys::kRotated, 0.7F);
      const Fp8Numbers fp8(f);
      expect_redundancy(f, OnDevice(*device, f, fp8), RedundancyScope::kExact, RedundancyKeys::kRotated, 0.7F);
    }
  }
}

// Pairs so near the threshold that half precision leaves them in doubt. Those below give way to the next older row,
// and so they do where the column is the newer one of the two.
TEST_F(CompressCuda, PairsThatMissTheThresholdGiveWayToTheNextOlderOnes) {
  constexpr int kSlots = 1100;
  constexpr double kThreshold = 0.75, kLittle = 2e-5, kDoubt = 4e-4;
  for (const int head_dim : {64, 128}) {
    CompressFixture f({.num_layers = 1, .num_kv_heads = 1, .head_dim = head_dim, .num_slots = kSlots});
    UnlikeKeys keys(kSlots, head_dim, static_cast<uint32_t>(head_dim));
    const auto misses = [&](int to, int from) { keys.lean(to, from, kThreshold - kDoubt, kThreshold - kLittle); };
    const auto hits = [&](int to, int from) { keys.lean(to, from, kThreshold + kLittle, kThreshold + kDoubt); };
    // Behind column 200: in the tile of what counts, in a newer one, in the newest.
    keys.copy(200, {800});
    for (const int t : {801, 805, 900, 901, 1099}) misses(t, 200);
    // Before row 1000: in the strip of what counts, and in newer ones.
    keys.copy(1000, {20});
    for (const int t : {21, 400, 700}) misses(t, 1000);
    hits(850, 300);
    hits(310, 950);
    hits(600, 610);
    set_keys(f, keys);
    expect_redundancy(f, OnDevice(*device, f), RedundancyScope::kExact, RedundancyKeys::kRotated,
                      static_cast<float>(kThreshold));
  }
}

// More strips than run at a time, over keys that are alike and over such that are not, and mixtures: parts of the
// sequence whose columns are closed at once beside parts that look at everything.
TEST_F(CompressCuda, ExactOfManyStripsEqualsTheCpus) {
  constexpr int kSlots = 4225;
  for (const int head_dim : {64, 128}) {
    CompressFixture f({.num_layers = 1, .num_kv_heads = 1, .head_dim = head_dim, .num_slots = kSlots});
    expect_redundancy(f, OnDevice(*device, f), RedundancyScope::kExact, RedundancyKeys::kRotated, 0.3F);
    UnlikeKeys keys(kSlots, head_dim, 7);
    keys.copy(50, {2000, 4200});
    for (int t = 1024; t < 1536; ++t) keys.copy(1024 + t % 60, {t});
    for (int t = 3000; t < 3200; ++t) keys.copy(2999, {t});
    set_keys(f, keys);
    expect_redundancy(f, OnDevice(*device, f), RedundancyScope::kExact, RedundancyKeys::kRotated, 0.7F);
  }
}

// Which block finds what first must not show.
TEST_F(CompressCuda, ExactGivesTheSameBitsEveryTime) {
  const Shape shape = large_shapes().front();
  CompressFixture f(shape);
  const OnDevice on(*device, f);
  const auto redundancy = zeros(f);
  const RedundancyParams p{.source = on.source(),
                           .scope = RedundancyScope::kExact,
                           .keys = RedundancyKeys::kContent,
                           .threshold = 0.3F,
                           .cos_sin = on.cos_sin(),
                           .rotary_dim = f.shape().rotary_dim,
                           .redundancy = redundancy.data(),
                           .scratch = on.scratch()};
  gpu().redundancy(queue(), p);
  const std::vector<float> first = redundancy.values();
  for (int i = 0; i < 100; ++i) {
    gpu().redundancy(queue(), p);
    ASSERT_EQ(redundancy.values(), first) << "run " << i;
  }
}

TEST_F(CompressCuda, Fp8KeysAndValuesCountAsTheNumbersTheyAre) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    CompressFixture f(cuda_shape(seed));
    const Fp8Numbers fp8(f);
    expect_scores(f, OnDevice(*device, f, fp8));
  }
}

TEST_F(CompressCuda, ValueNormsCarryPoolAndCombineEqualTheCpus) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    CompressFixture f(cuda_shape(seed));
    const OnDevice on(*device, f);
    std::mt19937 random(seed);
    std::vector<float> scores = f.per_slot(), redundancy = f.per_slot();
    for (float& x : scores) x = static_cast<float>(random() % 1000) / 1e4F;
    for (float& x : redundancy) x = static_cast<float>(random() % 1000) / 1e5F;
    const auto device_scores = device->array(scores), device_redundancy = device->array(redundancy), pooled = zeros(f),
               final_scores = zeros(f);
    expect_value_norms(f, on, scores, device_scores);

    const ScoreCarry carry = seed % 2 == 0 ? ScoreCarry::kMax : ScoreCarry::kSum;
    cpu_backend.carry(*cpu_queue, {.source = f.source(), .carry = carry, .scores = scores.data()});
    gpu().carry(queue(), {.source = on.source(), .carry = carry, .scores = device_scores.data()});
    EXPECT_TRUE(near(device_scores.values(), scores, 1e-9F, 1e-5F)) << f.shape().describe();

    std::vector<float> expected = f.per_slot();
    const int width = 1 + 2 * static_cast<int>(seed % 4);
    cpu_backend.pool_scores(*cpu_queue,
                            {.source = f.source(), .width = width, .scores = scores.data(), .out = expected.data()});
    gpu().pool_scores(queue(),
                      {.source = on.source(), .width = width, .scores = device_scores.data(), .out = pooled.data()});
    EXPECT_TRUE(near(pooled.values(), expected, 1e-9F, 1e-5F)) << f.shape().describe();

    CombineParams p{
        .source = f.source(), .scores = scores.data(), .redundancy = redundancy.data(), .out = expected.data()};
    p.params = {.budget = 128,
                .window = f.shape().window,
                .combine = seed % 2 == 0 ? ScoreCombine::kLinear : ScoreCombine::kLog,
                .sinks = static_cast<int>(seed % 5),
                .recent = static_cast<int>(seed * 7 % 60),
                .protect_prompt = seed % 3 == 0,
                .random = seed % 7 == 0,
                .random_seed = seed};
    if (seed % 11 == 0) p.redundancy = nullptr;
    cpu_backend.combine(*cpu_queue, p);
    p.source = on.source();
    p.scores = device_scores.data();
    if (p.redundancy != nullptr) p.redundancy = device_redundancy.data();
    p.out = final_scores.data();
    gpu().combine(queue(), p);
    EXPECT_TRUE(near(final_scores.values(), expected, p.params.combine == ScoreCombine::kLog ? 2e-6F : 1e-8F,
                     p.params.random ? 0 : 1e-5F))
        << f.shape().describe();
  }
}

TEST_F(CompressCuda, SelectKeepsTheVerySlotsThatTheCpuKeeps) {
  std::vector<Shape> shapes;
  for (uint32_t seed = 1; seed <= 40; ++seed) shapes.push_back(cuda_shape(seed));
  // As many as a block keeps in registers, one more, and more than twice as many.
  for (const int slots : {4096, 4097, 4097, 9001}) {
    shapes.push_back({.num_layers = 1, .num_kv_heads = 2, .block_size = 48, .num_slots = slots});
  }
  uint32_t seed = 0;
  for (const Shape& shape : shapes) {
    ++seed;
    CompressFixture f(shape);
    const OnDevice on(*device, f);
    std::mt19937 random(seed);
    std::vector<float> final_scores = f.per_slot();
    const uint32_t values = seed % 2 == 0 ? 5 : 100000;
    for (float& x : final_scores) {
      const uint32_t special = random() % 40;
      x = static_cast<float>(random() % values) / 8.0F - 0.25F;
      if (special == 0) x = kInf;
      if (special == 1) x = x == 0 ? -0.0F : NAN;
    }
    const int budget = 1 + static_cast<int>(random() % static_cast<uint32_t>(f.shape().num_slots));
    expect_selection(f, on, final_scores, budget, seed % 3 == 0);
  }
}

// Most slots protected, a few that decide. Scores apart; nearly equal, so that all digits count; so equal that the
// slots' numbers decide, among few and among many. Lengths around what a thread may have of them.
TEST_F(CompressCuda, SelectAmongProtectedSlotsKeepsTheVerySlotsThatTheCpuKeeps) {
  uint32_t seed = 0;
  for (const int slots : {1, 31, 32, 33, 767, 768, 769, 1537, 2304, 2305, 3072, 3073, 4000, 4096, 5000}) {
    CompressFixture f({.num_layers = 1, .num_kv_heads = 2, .head_dim = 64, .num_slots = slots});
    const OnDevice on(*device, f);
    for (const int levels : {1, 2, 100, 1 << 24}) {
      std::mt19937 random(++seed);
      std::normal_distribution<float> normal;
      std::vector<float> apart = f.per_slot(), near = apart;
      const int first_protected = slots * 4 / 9;
      for (size_t i = 0; i < apart.size(); ++i) {
        const bool is_protected = static_cast<int>(i) % slots >= first_protected;
        const auto level = static_cast<float>(random() % static_cast<uint32_t>(levels));
        apart[i] = is_protected ? kInf : levels == 1 << 24 ? normal(random) : level - 1.0F;
        near[i] = is_protected ? kInf : 1.0F + std::ldexp(level, -23);
      }
      for (const int budget : {1, (slots + 1) / 2, slots * 8 / 9, slots - 1, slots}) {
        if (budget == 0) continue;
        expect_selection(f, on, apart, budget, false);
        expect_selection(f, on, near, budget, false);
      }
    }
  }
}

TEST_F(CompressCuda, C1_CompactMovesKeptSlotsAndNothingElse) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    Shape shape = cuda_shape(seed);
    if (seed % 3 == 0) shape.num_slots = std::max(1, shape.num_slots / shape.block_size) * shape.block_size;
    shape.num_scored = std::min(shape.num_scored, shape.num_slots);
    CompressFixture f(shape);
    const int b = shape.block_size, num_slots = shape.num_slots;
    const int max_blocks = num_slots / b;
    if (max_blocks == 0) continue;
    std::mt19937 random(seed);
    const int budget = b * (1 + static_cast<int>(random() % static_cast<uint32_t>(max_blocks)));
    // Targets: a few fresh blocks, then the table's own in order, and perhaps the table's last ones, kept whole.
    const int num_retained =
        num_slots % b == 0 ? static_cast<int>(random() % static_cast<uint32_t>(budget / b + 1)) : 0;
    const int moved = budget - num_retained * b;
    std::vector<int32_t> targets;
    const size_t fresh = random() % 3;
    for (size_t i = 0; static_cast<int>(targets.size()) < moved / b; ++i) {
      targets.push_back(i < fresh ? f.unused()[i] : f.table()[i - fresh]);
    }
    targets.insert(targets.end(), f.table().begin() + max_blocks - num_retained, f.table().begin() + max_blocks);
    std::vector<int32_t> kept;
    for (int64_t head = 0; head < f.heads(); ++head) {
      std::vector<int> all(static_cast<size_t>(num_slots));
      std::iota(all.begin(), all.end(), 0);
      const auto last = all.end() - num_retained * b;
      if (seed % 4 != 0) std::shuffle(all.begin(), last, random);
      std::sort(all.begin(), all.begin() + moved);
      kept.insert(kept.end(), all.begin(), all.begin() + moved);
      kept.insert(kept.end(), last, all.end());
    }
    std::vector<float> scores = f.per_slot();
    for (float& x : scores) x = static_cast<float>(random() % 1000);
    const OnDevice on(*device, f);
    const auto device_kept = device->array(kept), device_targets = device->array(targets);
    const auto device_scores = device->array(scores);
    CompactParams p{.source = f.source(),
                    .budget = budget,
                    .num_retained = num_retained,
                    .kept = kept.data(),
                    .scores = seed % 5 == 0 ? nullptr : scores.data(),
                    .target_blocks = targets.data()};
    cpu_backend.compact(*cpu_queue, p);
    p.source = on.source();
    p.kept = device_kept.data();
    if (p.scores != nullptr) p.scores = device_scores.data();
    p.target_blocks = device_targets.data();
    gpu().compact(queue(), p);
    EXPECT_EQ(on.data(), OnDevice::pool_data(f)) << f.shape().describe() << " budget " << budget;
    const size_t entries = on.positions().size();
    EXPECT_EQ(on.positions(), std::vector<int32_t>(f.pool().positions, f.pool().positions + entries));
    EXPECT_TRUE(std::equal(f.pool().scores, f.pool().scores + entries, on.scores().begin(),
                           [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); }));
  }
}

}  // namespace
}  // namespace zipage::test
