#include "model/model_config.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace zipage {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

json sizes(const char* architecture) {
  return {{"architectures", {architecture}}, {"num_hidden_layers", 4},   {"hidden_size", 256},
          {"num_attention_heads", 8},        {"intermediate_size", 512}, {"vocab_size", 1000},
          {"max_position_embeddings", 4096}};
}

json with(json config, const json& fields) {
  config.update(fields);
  return config;
}

ModelConfig parsed(const json& config) {
  auto result = parse_model_config(config.dump(), "config.json");
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : ModelConfig();
}

void expect_refused(const json& config, StatusCode code, const testing::Matcher<std::string>& message) {
  const auto result = parse_model_config(config.dump(), "config.json");
  ASSERT_FALSE(result.ok()) << config.dump();
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  EXPECT_THAT(result.status().message(), AllOf(HasSubstr("config.json: "), message));
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
  EXPECT_THAT(config->eos_token_ids, ElementsAre(611));
  EXPECT_EQ(config->bos_token_id, std::nullopt);
  EXPECT_EQ(config->pad_token_id, 609);
}

TEST(ModelConfig, ArchitecturesDifferByFields) {
  const ModelConfig llama = parsed(sizes("LlamaForCausalLM"));
  EXPECT_FALSE(llama.qkv_bias || llama.output_bias || llama.mlp_bias || llama.qk_norm || llama.tie_word_embeddings);
  const ModelConfig biased = parsed(with(sizes("LlamaForCausalLM"), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.output_bias && biased.mlp_bias);
  const ModelConfig qwen2 = parsed(with(sizes("Qwen2ForCausalLM"), {{"tie_word_embeddings", true}}));
  EXPECT_TRUE(qwen2.qkv_bias && qwen2.tie_word_embeddings);
  EXPECT_FALSE(qwen2.output_bias || qwen2.mlp_bias || qwen2.qk_norm);
  const ModelConfig qwen3 = parsed(with(sizes("Qwen3ForCausalLM"), {{"attention_bias", true}}));
  EXPECT_TRUE(qwen3.qk_norm && qwen3.qkv_bias && qwen3.output_bias);
  const ModelConfig mistral = parsed(with(sizes("MistralForCausalLM"), {{"attention_bias", true}}));
  EXPECT_FALSE(mistral.qkv_bias || mistral.output_bias);
}

TEST(ModelConfig, SilentFieldsMeanWhatTheArchitecturesClassesMean) {
  json config = sizes("LlamaForCausalLM");
  config.erase("max_position_embeddings");
  const ModelConfig llama = parsed(config);
  EXPECT_EQ(llama.head_dim, 32);
  EXPECT_EQ(llama.num_kv_heads, 8);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6F);
  EXPECT_EQ(llama.rope.theta, 10000.0);
  EXPECT_TRUE(llama.eos_token_ids.empty());
  EXPECT_EQ(parsed(sizes("Qwen3ForCausalLM")).head_dim, 128);
  EXPECT_EQ(parsed(with(sizes("LlamaForCausalLM"), {{"head_dim", nullptr}})).head_dim, 32);
  EXPECT_EQ(parsed(with(sizes("LlamaForCausalLM"), {{"head_dim", 64}})).head_dim, 64);
  json by_type = sizes("");
  by_type.erase("architectures");
  by_type["model_type"] = "qwen2";
  EXPECT_EQ(parsed(by_type).architecture, "Qwen2ForCausalLM");
}

TEST(ModelConfig, EndOfSequenceIsOneIdOrSeveral) {
  EXPECT_THAT(parsed(with(sizes("LlamaForCausalLM"), {{"eos_token_id", 7}})).eos_token_ids, ElementsAre(7));
  EXPECT_THAT(parsed(with(sizes("LlamaForCausalLM"), {{"eos_token_id", {7, 8, 9}}})).eos_token_ids,
              ElementsAre(7, 8, 9));
  EXPECT_EQ(parsed(with(sizes("LlamaForCausalLM"), {{"pad_token_id", -1}})).pad_token_id, std::nullopt);
  for (const json& id : {json(-1), json("7"), json(1.5), json::array({1, "2"}), json(4294967296)}) {
    expect_refused(with(sizes("LlamaForCausalLM"), {{"eos_token_id", id}}), StatusCode::kInvalidArgument,
                   HasSubstr("eos_token_id"));
  }
}

TEST(ModelConfig, ASlidingWindowInUseIsRefused) {
  const auto window = [](const char* architecture, json fields) { return with(sizes(architecture), fields); };
  parsed(window("MistralForCausalLM", {{"sliding_window", nullptr}}));
  parsed(window("MistralForCausalLM", {{"sliding_window", 4096}}));
  expect_refused(window("MistralForCausalLM", {{"sliding_window", 4095}}), StatusCode::kUnimplemented,
                 HasSubstr("sliding_window is 4095"));
  // Qwen's window is off, or its first max_window_layers layers, here all, do without.
  parsed(window("Qwen2ForCausalLM", {{"sliding_window", 1024}, {"use_sliding_window", false}}));
  parsed(
      window("Qwen2ForCausalLM", {{"sliding_window", 1024}, {"use_sliding_window", true}, {"max_window_layers", 4}}));
  for (const char* architecture : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    expect_refused(
        window(architecture, {{"sliding_window", 1024}, {"use_sliding_window", true}, {"max_window_layers", 3}}),
        StatusCode::kUnimplemented, HasSubstr("sliding_window"));
  }
  parsed(window("Qwen2ForCausalLM", {{"layer_types", {"full_attention", "full_attention"}}}));
  expect_refused(window("Qwen2ForCausalLM", {{"layer_types", {"full_attention", "sliding_attention"}}}),
                 StatusCode::kUnimplemented, HasSubstr("sliding_attention"));
}

TEST(ModelConfig, WhatChangesTheResultIsRefusedByName) {
  const json llama = sizes("LlamaForCausalLM");
  const std::pair<json, const char*> kRefused[] = {
      {{{"architectures", {"Qwen3MoeForCausalLM"}}}, "\"Qwen3MoeForCausalLM\", which is not supported"},
      {{{"num_experts", 128}}, "num_experts"},
      {{{"num_local_experts", 8}}, "num_local_experts"},
      {{{"hidden_act", "gelu"}}, "hidden_act is \"gelu\""},
      {{{"quantization_config", {{"quant_method", "gptq"}}}},
       "quantization_config says that the weights are quantized (quant_method \"gptq\")"},
      {{{"final_logit_softcapping", 30.0}}, "final_logit_softcapping"},
      {{{"use_mrope", true}}, "use_mrope"},
  };
  for (const auto& [fields, message] : kRefused) {
    expect_refused(with(llama, fields), StatusCode::kUnimplemented, HasSubstr(message));
  }
  parsed(with(llama, {{"quantization_config", nullptr}, {"num_experts", 0}, {"hidden_act", "swish"}}));
}

TEST(ModelConfig, NumbersOutOfRangeAreRefusedByName) {
  const json llama = sizes("LlamaForCausalLM");
  const std::pair<json, const char*> kWrong[] = {
      {{{"num_hidden_layers", 0}}, "num_hidden_layers is 0"},
      {{{"num_hidden_layers", -3}}, "num_hidden_layers is -3"},
      {{{"hidden_size", 1e30}}, "hidden_size is 1e+30"},
      {{{"hidden_size", "256"}}, "hidden_size is \"256\""},
      {{{"hidden_size", true}}, "hidden_size is true"},
      {{{"hidden_size", 257}}, "no head size"},
      {{{"vocab_size", 18446744073709551615U}}, "vocab_size is 18446744073709551615"},
      {{{"num_attention_heads", nullptr}}, "num_attention_heads is missing"},
      {{{"num_key_value_heads", 3}}, "num_attention_heads is 8, no multiple of num_key_value_heads 3"},
      {{{"num_key_value_heads", 0}}, "num_key_value_heads is 0"},
      {{{"head_dim", 33}}, "even number"},
      {{{"head_dim", 2048}}, "head_dim is 2048"},
      {{{"rms_norm_eps", -1.0}}, "rms_norm_eps is -1.0"},
      {{{"rope_theta", 0}}, "rope_theta is 0"},
      {{{"max_position_embeddings", 0}}, "max_position_embeddings is 0"},
      {{{"tie_word_embeddings", "yes"}}, "tie_word_embeddings is \"yes\""},
      {{{"partial_rotary_factor", 2.0}}, "partial_rotary_factor is 2.0"},
      {{{"architectures", json::array()}}, "architectures"},
      {{{"rope_scaling", 4}}, "rope_scaling is no object"},
  };
  for (const auto& [fields, message] : kWrong) {
    expect_refused(with(llama, fields), StatusCode::kInvalidArgument, HasSubstr(message));
  }
  for (const char* text : {"", "{", "[]", "null", "{\"architectures\": [\"LlamaForCausalLM\"]"}) {
    const auto result = parse_model_config(text, "config.json");
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_THAT(result.status().message(), HasSubstr("JSON"));
  }
}

TEST(ModelConfig, case_51_EverySpellingOfRopeScalingIsRead) {
  const json llama = with(sizes("LlamaForCausalLM"), {{"rope_theta", 50000.0}});
  for (const json& fields :
       {json{{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}},
        json{{"rope_scaling", {{"rope_type", "linear"}, {"factor", 4}}}},
        json{{"rope_scaling", {{"rope_type", "linear"}, {"type", "linear"}, {"factor", 4.0}}}},
        json{{"rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 50000.0}}}},
        json{{"rope_scaling", nullptr}, {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}}}},
        json{{"rope_parameters", {{"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}}}}}}}) {
    const ModelConfig config = parsed(with(llama, fields));
    EXPECT_EQ(config.rope.type, RopeType::kLinear) << fields;
    EXPECT_EQ(config.rope.factor, 4.0) << fields;
    EXPECT_EQ(config.rope.theta, 50000.0) << fields;
  }
  for (const json& fields : {json::object(), json{{"rope_scaling", nullptr}}, json{{"rope_scaling", json::object()}},
                             json{{"rope_parameters", nullptr}}, json{{"rope_parameters", {{"rope_theta", 50000.0}}}},
                             json{{"rope_scaling", {{"rope_type", "default"}}}}}) {
    const ModelConfig config = parsed(with(llama, fields));
    EXPECT_EQ(config.rope.type, RopeType::kDefault) << fields;
    EXPECT_EQ(config.rope.theta, 50000.0) << fields;
  }
  // Theta inside the parameters wins over the one beside them.
  EXPECT_EQ(parsed(with(llama, {{"rope_parameters", {{"rope_theta", 7e6}}}})).rope.theta, 7e6);
}

TEST(ModelConfig, case_51_RopeScalingThatIsNotUnderstoodIsNeverPlain) {
  const json llama = sizes("LlamaForCausalLM");
  const auto scaling = [&](const json& value) { return with(llama, {{"rope_scaling", value}}); };
  expect_refused(scaling({{"rope_type", "mystery"}, {"factor", 2.0}}), StatusCode::kUnimplemented,
                 HasSubstr("rope_scaling.rope_type is \"mystery\""));
  expect_refused(scaling({{"type", "mrope"}, {"mrope_section", {16, 24, 24}}}), StatusCode::kUnimplemented,
                 HasSubstr("mrope"));
  expect_refused(scaling({{"type", "mrope"}, {"rope_type", "default"}}), StatusCode::kUnimplemented,
                 HasSubstr("mrope"));
  const std::pair<json, const char*> kWrong[] = {
      {{{"rope_type", 3}}, "rope_scaling.rope_type is 3"},
      {{{"rope_type", "linear"}}, "rope_scaling.factor is missing"},
      {{{"rope_type", "linear"}, {"factor", "4"}}, "rope_scaling.factor is \"4\""},
      {{{"rope_type", "dynamic"}, {"factor", 0}}, "rope_scaling.factor is 0"},
      {{{"rope_type", "llama3"}, {"factor", 8.0}}, "low_freq_factor is missing"},
      {{{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 4}, {"high_freq_factor", 4}},
       "high_freq_factor is 4"},
      {{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 0}},
       "original_max_position_embeddings is 0"},
      {{{"rope_type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0}}},
       "short_factor has 1 numbers, expected 16"},
      {{{"rope_type", "longrope"}, {"short_factor", {1.0, "2"}}}, "short_factor is [1.0,\"2\"]"},
  };
  for (const auto& [value, message] : kWrong) {
    expect_refused(scaling(value), StatusCode::kInvalidArgument, HasSubstr(message));
  }
}

}  // namespace
}  // namespace zipage
