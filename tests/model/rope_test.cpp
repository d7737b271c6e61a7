#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/model_config.h"

namespace zipage {
namespace {

// tests/data/model/make_rope_vectors.py wrote them with transformers' own functions, in double.
const nlohmann::json& vectors() {
  static const nlohmann::json kVectors =
      nlohmann::json::parse(std::ifstream(ZIPAGE_SOURCE_DIR "/tests/data/model/rope_vectors.json"));
  return kVectors;
}

ModelConfig config_of(const nlohmann::json& vector) {
  const auto config = parse_model_config(vector["config"].dump(), vector["name"].get<std::string>());
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : ModelConfig();
}

void expect_equal_to_transformers(const nlohmann::json& vector) {
  SCOPED_TRACE(vector["name"].get<std::string>());
  const RopeFrequencies rope = rope_frequencies(config_of(vector), vector["max_model_len"].get<int>());
  ASSERT_EQ(rope.inv_freq.size(), vector["inv_freq"].size());
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    const double expected = vector["inv_freq"][i].get<double>();
    EXPECT_NEAR(rope.inv_freq[i], expected, 1e-11 * expected) << "pair " << i;
  }
  EXPECT_NEAR(rope.attention_scale, vector["attention_scale"].get<double>(), 1e-11);
}

TEST(Rope, FrequenciesEqualTransformersForEveryType) {
  ASSERT_GT(vectors().size(), 20U);
  for (const nlohmann::json& vector : vectors()) expect_equal_to_transformers(vector);
}

TEST(Rope, case_52_YarnKeepsItsAttentionFactor) {
  struct Row {
    const char* name;
    double scale;
  };
  // 0.1 ln(factor) + 1, unless mscale and mscale_all_dim are both there, unless attention_factor is.
  const Row kRows[] = {{"yarn_mscale_equal", 1.0},
                       {"yarn_mscale_apart", (0.0707 * std::log(40.0) + 1) / (0.05 * std::log(40.0) + 1)},
                       {"yarn_mscale_alone", 1.2772588722239781},
                       {"yarn_mscale_zero", 1.2772588722239781},
                       {"yarn_attention_factor", 0.75},
                       {"yarn_factor_one", 1.0}};
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    const auto at =
        std::find_if(vectors().begin(), vectors().end(), [&](const auto& v) { return v["name"] == row.name; });
    ASSERT_NE(at, vectors().end());
    const ModelConfig config = config_of(*at);
    EXPECT_NEAR(rope_frequencies(config, 65536).attention_scale, row.scale, 1e-12);
    // The table's first row is the scale itself: cosines of zero.
    EXPECT_FLOAT_EQ(cos_sin_table(config, 1)[0], static_cast<float>(row.scale));
  }
}

TEST(Rope, TheTableHoldsCosinesThenSinesOfEachPosition) {
  ModelConfig config;
  config.rope.theta = 100.0;
  config.rope.rotary_dim = 4;  // frequencies 1 and 0.1
  const std::vector<float> table = cos_sin_table(config, 1001);
  ASSERT_EQ(table.size(), 1001U * 4);
  for (const int position : {0, 1, 7, 1000}) {
    const float* row = table.data() + static_cast<size_t>(position) * 4;
    EXPECT_FLOAT_EQ(row[0], static_cast<float>(std::cos(position * 1.0)));
    EXPECT_FLOAT_EQ(row[1], static_cast<float>(std::cos(position * 0.1)));
    EXPECT_FLOAT_EQ(row[2], static_cast<float>(std::sin(position * 1.0)));
    EXPECT_FLOAT_EQ(row[3], static_cast<float>(std::sin(position * 0.1)));
  }
}

TEST(Rope, TheContextReachesWhatScalingReaches) {
  const auto reach = [](const char* name) {
    const auto at = std::find_if(vectors().begin(), vectors().end(), [&](const auto& v) { return v["name"] == name; });
    return max_context_len(config_of(*at));
  };
  EXPECT_EQ(reach("default"), 4096);
  EXPECT_EQ(reach("linear"), 16384);
  EXPECT_EQ(reach("dynamic_short"), 4096);
  EXPECT_EQ(reach("yarn_qwen"), 131072);
  EXPECT_EQ(reach("yarn_factor_null"), 65536);
  EXPECT_EQ(reach("llama3_1"), 131072);
  EXPECT_EQ(reach("longrope_long"), 131072);
}

}  // namespace
}  // namespace zipage
