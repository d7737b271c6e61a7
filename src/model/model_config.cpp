#include "model/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/config_reader.h"

namespace zipage {
namespace {

// What Hugging Face's class of an architecture fixes or takes for granted when config.json is silent.
struct Architecture {
  std::string_view name, model_type;
  bool qkv_bias;              // always there
  bool reads_attention_bias;  // the field puts a bias on q, k, v and o
  bool reads_mlp_bias;
  bool qk_norm;
  int default_head_dim;  // 0: hidden_size / num_attention_heads
  int default_kv_heads;  // 0: num_attention_heads
  int default_max_positions;
};

constexpr std::array<Architecture, 4> kArchitectures = {{
    {"LlamaForCausalLM", "llama", false, true, true, false, 0, 0, 2048},
    {"MistralForCausalLM", "mistral", false, false, false, false, 0, 8, 131072},
    {"Qwen2ForCausalLM", "qwen2", true, false, false, false, 0, 0, 32768},
    {"Qwen3ForCausalLM", "qwen3", false, true, false, true, 128, 0, 32768},
}};

const Architecture* find_architecture(ConfigReader& reader) {
  std::string_view name;
  std::string key = "architectures";
  if (const nlohmann::json* list = reader.find("architectures")) {
    if (!list->is_array() || list->empty() || !list->front().is_string()) {
      reader.invalid(key, "is no list of names");
      return nullptr;
    }
    name = list->front().get_ref<const std::string&>();
  } else if (const nlohmann::json* type = reader.find("model_type"); type != nullptr && type->is_string()) {
    key = "model_type";
    name = type->get_ref<const std::string&>();
  } else {
    reader.invalid(key, "and model_type are missing, so the architecture is unknown");
    return nullptr;
  }
  for (const Architecture& known : kArchitectures) {
    if (name == known.name || (key == "model_type" && name == known.model_type)) return &known;
  }
  std::vector<std::string_view> names;
  for (const Architecture& known : kArchitectures) names.push_back(known.name);
  reader.unsupported(key, fmt::format("names \"{}\", which is not supported (supported: {})", name.substr(0, 100),
                                      fmt::join(names, ", ")));
  return nullptr;
}

// Fields that change the result in ways this decoder doesn't compute.
void refuse_other_models(ConfigReader& reader, const ModelConfig& config) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const nlohmann::json* experts = reader.find(key);
    if (experts != nullptr && !(experts->is_number() && experts->get<double>() == 0)) {
      reader.unsupported(key, "asks for a mixture of experts, which is not supported");
    }
  }
  for (const char* key : {"quantization_config", "compression_config"}) {
    const nlohmann::json* quantization = reader.find(key);
    if (quantization == nullptr) continue;
    const std::string method = quantization->is_object()
                                   ? quantization->value("quant_method", nlohmann::json())
                                         .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                                   : "null";
    reader.unsupported(key, fmt::format("says that the weights are quantized (quant_method {}), which is supported in "
                                        "GGUF files only",
                                        method.substr(0, 100)));
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"}) {
    if (reader.has(key)) reader.unsupported(key, "is set, which is not supported");
  }
  if (reader.boolean("use_mrope").value_or(false)) reader.unsupported("use_mrope", "is true, which is not supported");
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const std::string act = reader.string(key).value_or("silu");
    if (act != "silu" && act != "swish") {
      reader.unsupported(key, fmt::format("is \"{}\", only \"silu\" is supported", act.substr(0, 100)));
    }
  }
  if (const nlohmann::json* types = reader.find("layer_types"); types != nullptr && types->is_array()) {
    for (const nlohmann::json& type : *types) {
      if (type != "full_attention") {
        reader.unsupported(
            "layer_types",
            fmt::format("has {}, only \"full_attention\" is supported",
                        type.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 100)));
        break;
      }
    }
  }
  // Qwen has a switch and leaves its first max_window_layers layers alone; for the others the number is the switch.
  const bool switchable = config.architecture.starts_with("Qwen");
  const bool on = switchable ? reader.boolean("use_sliding_window").value_or(false) : true;
  const int64_t window = reader.integer("sliding_window", 0, INT64_MAX).value_or(INT64_MAX);
  const int64_t full_layers = switchable ? reader.integer("max_window_layers", 0, INT32_MAX).value_or(28) : 0;
  if (on && window < config.max_position_embeddings && full_layers < config.num_layers) {
    reader.unsupported("sliding_window", fmt::format("is {}, less than max_position_embeddings {}: sliding-window "
                                                     "attention is not supported",
                                                     window, config.max_position_embeddings));
  }
}

std::optional<RopeType> rope_type_from_name(std::string_view name) {
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "dynamic") return RopeType::kDynamic;
  if (name == "yarn") return RopeType::kYarn;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "longrope" || name == "su") return RopeType::kLongRope;
  return std::nullopt;
}

void parse_scaling(ConfigReader& scaling, std::string_view type_name, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  const std::optional<RopeType> type = rope_type_from_name(type_name);
  if (!type) {
    scaling.unsupported("rope_type", fmt::format("is \"{}\", which is not supported (supported: default, linear, "
                                                 "dynamic, yarn, llama3, longrope)",
                                                 type_name.substr(0, 100)));
    return;
  }
  rope.type = *type;
  if (*type == RopeType::kDefault) return;

  if (*type == RopeType::kYarn || *type == RopeType::kLlama3 || *type == RopeType::kLongRope) {
    // A field of the same name beside the rope parameters was read before and wins.
    const auto original = scaling.integer("original_max_position_embeddings", 1, INT32_MAX);
    if (rope.original_max_position_embeddings == 0) {
      rope.original_max_position_embeddings = static_cast<int>(original.value_or(config.max_position_embeddings));
    }
  } else {
    rope.original_max_position_embeddings = config.max_position_embeddings;
  }
  if (const auto factor = scaling.number("factor", 1e-3, 1e6)) {
    rope.factor = *factor;
  } else if (*type == RopeType::kYarn || *type == RopeType::kLongRope) {
    rope.factor = static_cast<double>(config.max_position_embeddings) / rope.original_max_position_embeddings;
  } else {
    scaling.invalid("factor", "is missing");
  }
  if (*type == RopeType::kDynamic && rope.rotary_dim <= 2) {
    scaling.invalid("rope_type", "dynamic needs more than two rotated elements a head");
  }
  if (*type == RopeType::kLlama3) {
    for (auto [key, value] :
         {std::pair("low_freq_factor", &rope.low_freq_factor), {"high_freq_factor", &rope.high_freq_factor}}) {
      if (!scaling.has(key)) scaling.invalid(key, "is missing");
      *value = scaling.number(key, 1e-6, 1e6).value_or(1.0);
    }
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      scaling.invalid("high_freq_factor", fmt::format("is {:g}, expected more than low_freq_factor {:g}",
                                                      rope.high_freq_factor, rope.low_freq_factor));
    }
  }
  if (*type == RopeType::kYarn || *type == RopeType::kLongRope) {
    rope.attention_factor = scaling.number("attention_factor", 0, 1e6);
  }
  if (*type == RopeType::kYarn) {
    rope.mscale = scaling.number("mscale", 0, 1e6);
    rope.mscale_all_dim = scaling.number("mscale_all_dim", 0, 1e6);
    rope.truncate = scaling.boolean("truncate").value_or(true);
    // Zero stands for the default, as in Hugging Face's code.
    if (const double beta = scaling.number("beta_fast", 0, 1e6).value_or(0); beta > 0) rope.beta_fast = beta;
    if (const double beta = scaling.number("beta_slow", 0, 1e6).value_or(0); beta > 0) rope.beta_slow = beta;
  }
  if (*type == RopeType::kLongRope) {
    const size_t expected = static_cast<size_t>(rope.rotary_dim / 2);
    for (auto [key, list] : {std::pair("short_factor", &rope.short_factor), {"long_factor", &rope.long_factor}}) {
      if (!scaling.has(key)) scaling.invalid(key, "is missing");
      *list = scaling.numbers(key, 1e-6, 1e6).value_or(std::vector<double>());
      if (list->size() != expected) {
        scaling.invalid(key, fmt::format("has {} numbers, expected {}, half the rotated elements of a head",
                                         list->size(), expected));
      }
    }
  }
}

Status parse_rope(ConfigReader& reader, ModelConfig& config) {
  // Two spellings of the same: rope_scaling beside rope_theta (version 4), rope_parameters with both (version 5).
  std::string key = "rope_scaling";
  const nlohmann::json* scaling = reader.find(key);
  if (scaling == nullptr || scaling->empty()) {
    key = "rope_parameters";
    scaling = reader.find(key);
  }
  static const nlohmann::json kNone = nlohmann::json::object();
  if (scaling == nullptr) scaling = &kNone;
  if (scaling->is_object() && scaling->contains("full_attention")) {
    key += ".full_attention";
    scaling = &(*scaling)["full_attention"];
  }
  if (!scaling->is_object()) {
    reader.invalid(key, "is no object");
    return reader.status();
  }
  ConfigReader parameters(*scaling, reader.origin(), key + ".");
  RopeConfig& rope = config.rope;
  constexpr double kMinTheta = 1.0001, kMaxTheta = 1e15;
  rope.theta = reader.number("rope_theta", kMinTheta, kMaxTheta).value_or(rope.theta);
  rope.theta = parameters.number("rope_theta", kMinTheta, kMaxTheta).value_or(rope.theta);
  double part = reader.number("partial_rotary_factor", 1e-3, 1.0).value_or(1.0);
  part = parameters.number("partial_rotary_factor", 1e-3, 1.0).value_or(part);
  rope.rotary_dim = static_cast<int>(config.head_dim * part);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0) {
    reader.invalid("head_dim", fmt::format("{} with partial_rotary_factor {:g} leaves {} elements to rotate, expected "
                                           "an even number",
                                           config.head_dim, part, rope.rotary_dim));
  }
  rope.original_max_position_embeddings =
      static_cast<int>(reader.integer("original_max_position_embeddings", 1, INT32_MAX).value_or(0));
  const std::optional<std::string> rope_type = parameters.string("rope_type"), type = parameters.string("type");
  if (rope_type && type && *rope_type != *type) {
    parameters.unsupported(
        "rope_type", fmt::format("is \"{}\" but type is \"{}\"", rope_type->substr(0, 100), type->substr(0, 100)));
  }
  parse_scaling(parameters, rope_type ? *rope_type : type ? *type : "default", config);
  if (rope.original_max_position_embeddings == 0)
    rope.original_max_position_embeddings = config.max_position_embeddings;
  ZIPAGE_RETURN_IF_ERROR(parameters.status());
  return reader.status();
}

void parse_special_tokens(ConfigReader& reader, ModelConfig& config) {
  if (const nlohmann::json* eos = reader.find("eos_token_id")) {
    const bool list = eos->is_array();
    const size_t count = list ? eos->size() : 1;
    for (size_t i = 0; i < count; ++i) {
      const nlohmann::json& id = list ? (*eos)[i] : *eos;
      const double value = id.is_number_integer() ? id.get<double>() : -1;
      if (value < 0 || value > INT32_MAX) {
        reader.invalid("eos_token_id", "is no token id and no list of token ids");
        return;
      }
      config.eos_token_ids.push_back(id.get<int32_t>());
    }
  }
  // Some files write -1 for none.
  for (auto [key, id] : {std::pair("bos_token_id", &config.bos_token_id), {"pad_token_id", &config.pad_token_id}}) {
    const auto value = reader.integer(key, -1, INT32_MAX);
    if (value && *value >= 0) *id = static_cast<int32_t>(*value);
  }
}

void parse_sizes(ConfigReader& reader, const Architecture& architecture, ModelConfig& config) {
  config.num_layers = reader.required_int("num_hidden_layers", 1, 4096);
  config.hidden_size = reader.required_int("hidden_size", 1, 1 << 20);
  config.num_heads = reader.required_int("num_attention_heads", 1, 1 << 14);
  config.intermediate_size = reader.required_int("intermediate_size", 1, 1 << 24);
  config.vocab_size = reader.required_int("vocab_size", 1, 1 << 26);
  config.max_position_embeddings = static_cast<int>(
      reader.integer("max_position_embeddings", 1, INT32_MAX).value_or(architecture.default_max_positions));
  config.rms_norm_eps = static_cast<float>(reader.number("rms_norm_eps", 0, 1).value_or(1e-6));

  const int default_kv_heads = architecture.default_kv_heads > 0 ? architecture.default_kv_heads : config.num_heads;
  config.num_kv_heads = static_cast<int>(reader.integer("num_key_value_heads", 1, 1 << 14).value_or(default_kv_heads));
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.invalid("num_attention_heads",
                   fmt::format("is {}, no multiple of num_key_value_heads {}", config.num_heads, config.num_kv_heads));
  }
  if (const auto head_dim = reader.integer("head_dim", 1, 1024)) {
    config.head_dim = static_cast<int>(*head_dim);
  } else if (architecture.default_head_dim > 0) {
    config.head_dim = architecture.default_head_dim;
  } else {
    config.head_dim = config.hidden_size / config.num_heads;
    if (config.hidden_size % config.num_heads != 0 || config.head_dim > 1024) {
      reader.invalid("hidden_size",
                     fmt::format("is {} with num_attention_heads {} and no head_dim: no head size from 1 "
                                 "to 1024 follows",
                                 config.hidden_size, config.num_heads));
    }
  }
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text, std::string_view origin) {
  const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: {}", origin, json.is_discarded() ? "not valid JSON" : "not a JSON object"));
  }
  ConfigReader reader(json, std::string(origin));
  const Architecture* architecture = find_architecture(reader);
  if (architecture == nullptr) return reader.status();

  ModelConfig config;
  config.architecture = architecture->name;
  parse_sizes(reader, *architecture, config);
  const bool attention_bias = architecture->reads_attention_bias && reader.boolean("attention_bias").value_or(false);
  config.qkv_bias = architecture->qkv_bias || attention_bias;
  config.output_bias = attention_bias;
  config.mlp_bias = architecture->reads_mlp_bias && reader.boolean("mlp_bias").value_or(false);
  config.qk_norm = architecture->qk_norm;
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings").value_or(false);
  parse_special_tokens(reader, config);
  refuse_other_models(reader, config);
  ZIPAGE_RETURN_IF_ERROR(reader.status());
  ZIPAGE_RETURN_IF_ERROR(parse_rope(reader, config));
  return config;
}

int max_context_len(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  // Linear and dynamic files state the length before scaling; yarn files state either, and the longer one is meant.
  // llama3 and longrope files state the length that scaling reaches.
  const bool stretches =
      rope.type == RopeType::kLinear || rope.type == RopeType::kDynamic || rope.type == RopeType::kYarn;
  const double scaled = stretches ? rope.original_max_position_embeddings * rope.factor : 0.0;
  return static_cast<int>(std::clamp<double>(scaled, config.max_position_embeddings, INT32_MAX));
}

}  // namespace zipage
