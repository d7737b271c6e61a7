// Requests that start in the middle, over made-up KV: for benchmarks of a state that would take minutes to reach.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/engine_impl.h"

namespace zipage {
namespace {

class MadeUp : public testing::Test {
 protected:
  MadeUp() {
    std::ofstream(path_) << R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
      "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
      "tie_word_embeddings": false, "eos_token_id": 2, "model_type": "llama"})";
    config_.model = path_.string();
    config_.load_format = LoadFormat::kDummy;
    config_.device = "cpu";
    config_.threads = 1;
    config_.block_size = 16;
    config_.num_gpu_blocks_override = 64;
    config_.swap_space = 0;
    config_.compression.kv_budget = 64;
    config_.compression.kv_slack = 32;
    config_.compression.query_window = 8;
  }
  ~MadeUp() override { std::filesystem::remove(path_); }

  static Request request(int prompt, int made_up, int max_tokens) {
    Request request;
    request.prompt_token_ids.assign(static_cast<size_t>(prompt), 7);
    request.made_up_tokens = made_up;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = max_tokens;
    return request;
  }

  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("zipage-made-up-" + std::to_string(getpid()) + ".json");
  EngineConfig config_;
};

TEST_F(MadeUp, ARequestOfAnyAgeGoesOnAsIfItHadComeSoFar) {
  auto engine = Engine::create(config_);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  for (const int age : {1, 63, 64, 95, 96, 97, 127, 128, 500, 900}) {
    RequestOutput last;
    int tokens = 0;
    Request made_up = request(age + 1, age, 40);
    made_up.sink = [&](RequestOutput&& output) {
      tokens += static_cast<int>(output.new_token_ids.size());
      last = std::move(output);
    };
    ASSERT_TRUE((*engine)->submit(std::move(made_up)).ok());
    while ((*engine)->step()) static_cast<EngineImpl&>(**engine).check();
    EXPECT_EQ(tokens, 40) << age;
    EXPECT_EQ(last.finish_reason, FinishReason::kLength) << last.error.message();
    // The last token is not computed.
    EXPECT_EQ(last.kv_stats.resident_tokens + last.kv_stats.evicted_tokens, age + 40);
    EXPECT_LE(last.kv_stats.resident_tokens, 96);
    EXPECT_EQ(last.kv_stats.compressions > 0, age + 40 > 96) << age;
  }
  EXPECT_EQ((*engine)->stats().swaps_in, 0);
}

TEST_F(MadeUp, OnlyWithMadeUpWeightsAndFewerTokensThanThePrompt) {
  auto engine = Engine::create(config_);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_FALSE((*engine)->submit(request(10, 10, 5)).ok());
  EXPECT_FALSE((*engine)->submit(request(10, -1, 5)).ok());
  config_.model = std::string(ZIPAGE_SOURCE_DIR) + "/models/reasoner/model";
  config_.load_format = LoadFormat::kAuto;
  auto real = Engine::create(config_);
  ASSERT_TRUE(real.ok()) << real.status().message();
  EXPECT_EQ((*real)->submit(request(10, 5, 5)).status().param(), "made_up_tokens");
}

}  // namespace
}  // namespace zipage
