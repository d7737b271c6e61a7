// The linear layers between two attentions, as one op: against the oracle, and a backend's own way against its ops one
// by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/compare.h"
#include "ops/device.h"
#include "ops/oracle.h"
#include "ops/random.h"

namespace zipage::test {
namespace {

struct ChainShape {
  int rows, hidden, attention, ffn, qkv;
  bool biases = false, last = false;
  bool gate_bias = true;  // if there are biases
  bool made_up = false;   // weights made on the device, unknown to the oracle
};

// Weights and inputs of one call; every output has numbers about 1.
class Chain {
 public:
  Chain(Device& device, const ChainShape& shape, uint32_t seed) : device_(device), shape_(shape), random_(seed) {
    x = device.stored(random_.normals(shape.rows * shape.attention));
    residual = device.stored(random_.normals(shape.rows * shape.hidden));
    norm = random_.normals(shape.hidden), next_norm = random_.normals(shape.hidden);
    make(output, shape.hidden, shape.attention);
    make(gate_up, 2 * shape.ffn, shape.hidden, shape.gate_bias);
    make(down, shape.hidden, shape.ffn);
    if (!shape.last) make(next_qkv, shape.qkv, shape.hidden);
  }

  struct Results {
    std::vector<float> residual, hidden, qkv;
    bool gaps_untouched = false;
    bool gate_up_untouched = false;  // gate and up were never written, but what becomes of them
  };

  // With the backend's own way, or the ops one by one.
  Results run(bool own) {
    Memory m(*this, {3, 5, 2, 4, 1, 6});
    if (own) {
      device_.backend().dense_chain(device_.queue(), m.params(*this));
    } else {
      one_by_one(m.params(*this));
    }
    return {.residual = m.sum.values(),
            .hidden = m.hidden.values(),
            .qkv = m.qkv.values(),
            .gaps_untouched =
                m.sum.gap_untouched() && m.hidden.gap_untouched() && m.ffn.gap_untouched() && m.qkv.gap_untouched(),
            .gate_up_untouched = std::ranges::all_of(m.wide.values(), [](float v) { return std::isnan(v); })};
  }

  // How many of so many further runs give other bits than the first one.
  int runs_that_differ(int count) {
    Memory m(*this, {});
    std::vector<float> first;
    int differ = 0;
    for (int i = 0; i <= count; ++i) {
      m.sum = device_.act(residual, shape_.rows, shape_.hidden);
      device_.backend().dense_chain(device_.queue(), m.params(*this));
      std::vector<float> got = m.qkv.values();
      if (i == 0) {
        first = std::move(got);
      } else if (got != first) {
        ++differ;
      }
    }
    return differ;
  }

  struct Expected {
    oracle::Reals residual, hidden, qkv;
  };
  Expected oracle_results() const {
    using namespace oracle;
    const int rows = shape_.rows, hidden = shape_.hidden;
    Expected e;
    e.residual = widen(residual);
    const auto add = [&](const Reals& branch) {
      for (size_t i = 0; i < branch.size(); ++i) e.residual[i] += branch[i];
    };
    add(linear(widen(x), widen(output.w), widen(output.bias), rows, shape_.attention, hidden));
    const Reals normal = rms_norm(e.residual, widen(norm), 1e-5, hidden);
    const Reals both = linear(normal, widen(gate_up.w), widen(gate_up.bias), rows, hidden, 2 * shape_.ffn);
    e.hidden = linear(silu_mul(both, rows, shape_.ffn), widen(down.w), widen(down.bias), rows, shape_.ffn, hidden);
    if (shape_.last) return e;
    add(e.hidden);
    e.qkv = linear(rms_norm(e.residual, widen(next_norm), 1e-5, hidden), widen(next_qkv.w), widen(next_qkv.bias), rows,
                   hidden, shape_.qkv);
    return e;
  }

 private:
  // What a call works on, with so much between rows.
  struct Memory {
    struct Gaps {
      int in, sum, hidden, wide, ffn, qkv;
    };
    Memory(Chain& c, const Gaps& gaps)
        : in(c.device_.act(c.x, c.shape_.rows, c.shape_.attention, gaps.in)),
          sum(c.device_.act(c.residual, c.shape_.rows, c.shape_.hidden, gaps.sum)),
          hidden(c.device_.act({}, c.shape_.rows, c.shape_.hidden, gaps.hidden)),
          wide(c.device_.act({}, c.shape_.rows, 2 * c.shape_.ffn, gaps.wide)),
          ffn(c.device_.act({}, c.shape_.rows, c.shape_.ffn, gaps.ffn)),
          qkv(c.device_.act({}, c.shape_.rows, c.shape_.qkv, gaps.qkv)),
          norms(c.device_.array(c.norm)),
          next_norms(c.device_.array(c.next_norm)) {}
    DenseChainParams params(const Chain& c) const {
      DenseChainParams p{.x = in.matrix(),
                         .residual = sum.matrix(),
                         .output = c.output.layer(),
                         .gate_up = c.gate_up.layer(),
                         .down = c.down.layer(),
                         .norm = norms.data(),
                         .eps = 1e-5F,
                         .hidden = hidden.matrix(),
                         .gate_up_out = wide.matrix(),
                         .ffn = ffn.matrix(),
                         .qkv = qkv.matrix()};
      if (!c.shape_.last) p.next_qkv = c.next_qkv.layer(), p.next_norm = next_norms.data();
      return p;
    }
    ActMatrix in, sum, hidden, wide, ffn, qkv;
    DeviceArray<float> norms, next_norms;
  };

  void one_by_one(const DenseChainParams& p) {
    Backend& b = device_.backend();
    Queue& queue = device_.queue();
    const auto layer = [&](const DenseChainParams::Layer& l, const Matrix& in, const Matrix& out) {
      b.linear(queue, {.x = in, .weight = l.weight, .bias = l.bias, .out = out});
    };
    const auto norm_of = [&](const float* weight) {
      b.rms_norm(queue, {.x = p.hidden, .residual = p.residual, .weight = weight, .eps = p.eps, .out = p.hidden});
    };
    layer(p.output, p.x, p.hidden);
    norm_of(p.norm);
    layer(p.gate_up, p.hidden, p.gate_up_out);
    b.silu_mul(queue, {.gate_up = p.gate_up_out, .out = p.ffn});
    layer(p.down, p.ffn, p.hidden);
    if (p.next_qkv.weight == nullptr) return;
    norm_of(p.next_norm);
    layer(p.next_qkv, p.hidden, p.qkv);
  }

  struct Weights {
    std::vector<float> w, bias;
    std::unique_ptr<Linear> linear;
    std::unique_ptr<DeviceArray<float>> bias_on_device;
    DenseChainParams::Layer layer() const { return {linear.get(), bias_on_device ? bias_on_device->data() : nullptr}; }
  };
  void make(Weights& weights, int out, int in, bool biased = true) {
    if (shape_.made_up) {
      weights.linear = device_.backend().make_noise_linear(out, in, ++made_up_);
      return;
    }
    weights.w = random_.normals(static_cast<int64_t>(out) * in, 1.0F / std::sqrt(static_cast<float>(in)));
    weights.linear = device_.linear(weights.w, out, in);
    if (!shape_.biases || !biased) return;
    weights.bias = random_.normals(out);
    weights.bias_on_device = std::make_unique<DeviceArray<float>>(device_, weights.bias);
  }

  Device& device_;
  ChainShape shape_;
  Random random_;
  uint64_t made_up_ = 0;  // linear layers

 public:
  std::vector<float> x, residual, norm, next_norm;
  Weights output, gate_up, down, next_qkv;
};

class DenseChainTest : public OpTest {
 protected:
  // bf16: each of four roundings is a 256th, and they do not add up in one direction.
  Tolerance tolerance() const { return device.f32() ? Tolerance{1e-4, 1e-4} : Tolerance{0.06, 1.0 / 32}; }

  void expect_the_ops(const std::vector<ChainShape>& shapes) {
    for (const ChainShape& shape : shapes) {
      Chain chain(device, shape, 1);
      const Chain::Results got = chain.run(true);
      const Chain::Expected expected = chain.oracle_results();
      const std::string name =
          ::testing::PrintToString(shape.rows) + " rows of " + ::testing::PrintToString(shape.hidden);
      EXPECT_TRUE(got.gaps_untouched) << name;
      EXPECT_TRUE(close(got.residual, expected.residual, shape.hidden, tolerance())) << name;
      if (shape.last) {
        EXPECT_TRUE(close(got.hidden, expected.hidden, shape.hidden, tolerance())) << name;
      } else {
        EXPECT_TRUE(close(got.qkv, expected.qkv, shape.qkv, tolerance())) << name;
      }
      // Blocks that meet at barriers add up in an order of their own choice nowhere, and leave the barriers as they
      // were.
      for (int i = 0; i < 3; ++i) {
        const Chain::Results again = chain.run(true);
        EXPECT_TRUE(again.residual == got.residual && again.qkv == got.qkv) << name;
      }
    }
  }
};

TEST_P(DenseChainTest, IsTheOpsOneAfterAnother) {
  expect_the_ops({{1, 384, 512, 1152, 768},
                  {3, 64, 128, 96, 192, true},
                  {8, 256, 64, 200, 96},
                  {9, 40, 72, 104, 56, true},
                  {12, 72, 64, 200, 96},
                  {16, 136, 200, 96, 312},
                  {13, 104, 136, 296, 0, true, true},
                  {17, 512, 512, 336, 640},
                  {33, 128, 256, 512, 384, true},
                  {64, 192, 128, 288, 240},
                  {65, 64, 64, 128, 96},
                  {530, 128, 192, 200, 72},
                  {513, 64, 72, 456, 64, true},
                  {150, 128, 64, 328, 80},
                  {300, 64, 128, 136, 72},
                  {390, 64, 64, 264, 0, false, true},
                  {130, 64, 256, 13312, 72},
                  {66, 128, 768, 256, 144},
                  {256, 64, 128, 384, 64},
                  {130, 64, 128, 256, 0, false, true},
                  {20, 192, 64, 8200, 72},
                  {5, 128, 128, 256, 0, true, true},
                  {24, 384, 512, 1152, 0, false, true}});
}

// Large enough for layers that do the norms between them, with and without whole tiles and biases.
TEST_P(DenseChainTest, OfLayersThatBringInTheNormsIsTheOps) {
  if (device.backend().info().name != "cuda") GTEST_SKIP() << "a CPU has none";
  const std::vector<ChainShape> shapes{
      {20, 3584, 256, 7680, 5136},
      {17, 3608, 512, 7688, 5144, true, false, false},
      {33, 3608, 512, 7680, 0, true, true, false},
  };
  expect_the_ops(shapes);
  if (device.backend().info().description.find("sm_90") == std::string::npos) return;
  for (const ChainShape& shape : shapes) EXPECT_TRUE(Chain(device, shape, 1).run(true).gate_up_untouched);
}

TEST_P(DenseChainTest, OfALargeModelEqualsTheOpsOneByOne) {
  if (device.f32()) GTEST_SKIP() << "the ops one by one are what it does";
  for (const int rows : {1, 7, 8, 16, 17, 31, 64, 80, 128, 200, 256, 320, 384, 600, 1100}) {
    Chain chain(device, {.rows = rows, .hidden = 4096, .attention = 4096, .ffn = 12288, .qkv = 6144, .made_up = true},
                2);
    const Chain::Results got = chain.run(true), expected = chain.run(false);
    EXPECT_TRUE(got.gaps_untouched) << rows;
    EXPECT_TRUE(close(got.residual, oracle::widen(expected.residual), 4096, tolerance())) << rows;
    EXPECT_TRUE(close(got.qkv, oracle::widen(expected.qkv), 6144, tolerance())) << rows;
  }
}

// Whatever order the memory answers in.
TEST_P(DenseChainTest, OfALargeModelGivesTheSameBitsEveryTime) {
  if (device.backend().info().name != "cuda") GTEST_SKIP() << "a CPU fetches nothing ahead";
  for (const int rows : {1, 8, 16, 24, 32, 64, 128, 256}) {
    Chain chain(device, {.rows = rows, .hidden = 4096, .attention = 4096, .ffn = 12288, .qkv = 6144, .made_up = true},
                3);
    EXPECT_EQ(chain.runs_that_differ(1000), 0) << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DenseChainTest, testing::ValuesIn(device_names()), device_of);

}  // namespace
}  // namespace zipage::test
