#include "engine/kv_scales.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "engine/engine_impl.h"
#include "engine/runner.h"

namespace zipage {
namespace {

TEST(KvScales, ArePowersOfTwoUnderWhichTwiceTheLargestFits) {
  for (float largest = 1e-6F; largest < 1e6F; largest *= 1.7F) {
    const float scale = fp8_scale(largest);
    EXPECT_EQ(std::exp2(std::round(std::log2(scale))), scale) << largest;
    EXPECT_LE(2 * largest / scale, 448) << largest;
    EXPECT_GT(2 * largest / scale, 223) << largest;
  }
  for (const float none : {0.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) EXPECT_EQ(fp8_scale(none), 1);
}

// The reasoner's keys and values of text that the calibration has not seen, in bf16 on the CPU, fit under the scales.
TEST(KvScales, OfAModelHoldForOtherTokens) {
  EngineConfig config;
  config.model = std::string(ZIPAGE_SOURCE_DIR) + "/models/reasoner/model";
  config.device = "cpu";
  config.num_gpu_blocks_override = 16;
  config.compression.kv_budget = 0;
  config.enable_prefix_caching = false;
  auto engine = Engine::create(config);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  auto& runner = static_cast<Runner&>(static_cast<EngineImpl&>(**engine).runner());
  const ModelConfig& model = runner.model();
  Decoder decoder(runner.backend(), model, runner.weights(), 256, 1, 512, runner.queue());
  const KvScales scales =
      calibrate_kv_scales(runner.backend(), runner.queue(), decoder, runner.kv().geometry, model.vocab_size, 256);
  const KvGeometry& g = runner.kv().geometry;
  ASSERT_EQ(scales.k.size(), static_cast<size_t>(g.num_layers) * static_cast<size_t>(g.num_kv_heads));
  EXPECT_GT(std::set<float>(scales.v.begin(), scales.v.end()).size(), 1U) << "one scale for all would do";

  Request request;
  for (int i = 0; i < 200; ++i) request.prompt_token_ids.push_back((i * i + 3 * i) % model.vocab_size);
  request.sampling.max_tokens = 100;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  ASSERT_TRUE((*engine)->submit(std::move(request)).ok());
  while ((*engine)->step()) {
  }
  std::vector<int32_t> slots(299);
  std::iota(slots.begin(), slots.end(), 0);  // the pool hands out its first blocks first
  std::vector<float> k(slots.size() * static_cast<size_t>(g.head_dim)), v(k.size());
  for (int layer = 0; layer < g.num_layers; ++layer) {
    for (int head = 0; head < g.num_kv_heads; ++head) {
      runner.backend().kv_gather(
          runner.queue(),
          {.kv = runner.kv(), .layer = layer, .kv_head = head, .slots = slots, .k = k.data(), .v = v.data()});
      const size_t at = static_cast<size_t>(layer * g.num_kv_heads + head);
      float largest_k = 0, largest_v = 0;
      for (size_t i = 0; i < k.size(); ++i) {
        largest_k = std::max(largest_k, std::abs(k[i]));
        largest_v = std::max(largest_v, std::abs(v[i]));
      }
      EXPECT_GT(largest_k, 0) << layer << ", " << head;
      EXPECT_LE(largest_k, 448 * scales.k[at]) << layer << ", " << head;
      EXPECT_LE(largest_v, 448 * scales.v[at]) << layer << ", " << head;
      EXPECT_GT(largest_v, 448 * scales.v[at] / 16) << "a head's range is left unused: " << layer << ", " << head;
    }
  }
}

// An engine with fp8 KV stores under scales of its own model.
TEST(KvScales, OfAnEngineAreMeasured) {
  EngineConfig config;
  config.model = std::string(ZIPAGE_SOURCE_DIR) + "/models/reasoner/model";
  config.device = "cuda";
  config.kv_cache_dtype = "fp8_e4m3";
  config.num_gpu_blocks_override = 16;
  config.max_model_len = 512;
  config.compression.kv_budget = 0;
  config.enforce_eager = true;
  try {
    make_backend("cuda", {});
  } catch (const DeviceError& error) {
    GTEST_SKIP() << error.what();
  }
  auto engine = Engine::create(config);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  auto& runner = static_cast<Runner&>(static_cast<EngineImpl&>(**engine).runner());
  const KvGeometry& g = runner.kv().geometry;
  const size_t heads = static_cast<size_t>(g.num_layers) * static_cast<size_t>(g.num_kv_heads);
  const auto scales = runner.backend().allocate(2 * heads * sizeof(float), "scales", MemoryKind::kPinnedHost);
  runner.backend().download(runner.queue(), scales->data(), runner.kv().k_scale, heads * sizeof(float));
  runner.backend().download(runner.queue(), scales->data() + heads * sizeof(float), runner.kv().v_scale,
                            heads * sizeof(float));
  runner.queue().synchronize();
  const std::set<float> different(scales->as<float>(), scales->as<float>() + 2 * heads);
  EXPECT_GT(different.size(), 1U);
  for (const float scale : different) EXPECT_EQ(std::exp2(std::round(std::log2(scale))), scale);
}

}  // namespace
}  // namespace zipage
