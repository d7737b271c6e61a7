// What a dense decoder of the Llama family is, in numbers. Architectures differ by these fields, not by classes.
//
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zipage/status.h"

namespace zipage {

enum class RopeType : uint8_t { kDefault, kLinear, kDynamic, kYarn, kLlama3, kLongRope };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  int rotary_dim = 0;  // head_dim * partial_rotary_factor
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  int original_max_position_embeddings = 0;              // tokens before scaling; of every type
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  std::optional<double> attention_factor;                // yarn, longrope
  std::optional<double> mscale, mscale_all_dim;          // yarn
  bool truncate = true;                                  // yarn
  std::vector<double> short_factor, long_factor;         // longrope, [rotary_dim / 2]
};

struct ModelConfig {
  std::string architecture;  // "Qwen3ForCausalLM"
  int num_layers = 0;
  int hidden_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int intermediate_size = 0;
  int vocab_size = 0;  // embedding rows
  int max_position_embeddings = 0;
  float rms_norm_eps = 1e-6F;
  bool qkv_bias = false;     // Qwen2
  bool output_bias = false;  // attention_bias of Llama puts one on o_proj too
  bool mlp_bias = false;
  bool qk_norm = false;  // Qwen3
  bool tie_word_embeddings = false;
  RopeConfig rope;
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id, pad_token_id;
};

// From config.json's text. A field that changes the result and is not supported (sliding window in use, unknown rope
// type, mixture of experts, unknown activation) is refused by name. `origin` names the file in errors.
Result<ModelConfig> parse_model_config(std::string_view json, std::string_view origin);

// Rotation frequencies, equal to Hugging Face's definitions. `max_model_len` decides what Hugging Face decides anew at
// every length, so that cached keys stay valid: longrope takes its long factors, and dynamic its larger base, as soon
// as a sequence might exceed the original length.
struct RopeFrequencies {
  std::vector<double> inv_freq;  // [rotary_dim / 2] radians per position
  double attention_scale = 1.0;  // cosines and sines are multiplied by it
};
RopeFrequencies rope_frequencies(const ModelConfig& config, int max_model_len);
// [max_model_len][rotary_dim]: rotary_dim/2 cosines, then as many sines; computed in double.
std::vector<float> cos_sin_table(const ModelConfig& config, int max_model_len);
// Tokens that the positions reach, scaling included: the default for max_model_len.
int max_context_len(const ModelConfig& config);

}  // namespace zipage
