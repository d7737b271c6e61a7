#include "model/model_config.h"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

namespace zipage {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ModelConfig, ReadsTheReasoner) {
  const auto config = parse_model_config(read(ZIPAGE_SOURCE_DIR "/models/reasoner/model/config.json"), "config.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(config->num_layers, 8);
  EXPECT_EQ(config->hidden_size, 384);
  EXPECT_EQ(config->num_heads, 8);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->intermediate_size, 1152);
  EXPECT_EQ(config->vocab_size, 640);
  EXPECT_EQ(config->max_position_embeddings, 8192);
  EXPECT_EQ(max_context_len(*config), 8192);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_FALSE(config->output_bias);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->rope.type, RopeType::kDefault);
  EXPECT_EQ(config->rope.rotary_dim, 64);
  EXPECT_THAT(config->eos_token_ids, testing::ElementsAre(611));
  EXPECT_EQ(config->bos_token_id, std::nullopt);
  EXPECT_EQ(config->pad_token_id, 609);
}

}  // namespace
}  // namespace zipage
