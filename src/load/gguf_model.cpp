#include "load/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "load/printable.h"
#include "load/shard_name.h"

namespace zipage {
namespace {

namespace fs = std::filesystem;

struct Architecture {
  std::string_view gguf, model_type, hugging_face;
  bool interleaved_qk;  // its rope turns neighbours, so the converter interleaves the halves that Hugging Face turns
};

constexpr Architecture kArchitectures[] = {
    {"llama", "llama", "LlamaForCausalLM", true},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", false},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", false},
};

// Tensors that become configuration.
constexpr std::string_view kRopeFreqs = "rope_freqs.weight";
constexpr std::string_view kRopeLong = "rope_factors_long.weight", kRopeShort = "rope_factors_short.weight";

Result<const Architecture*> architecture_of(const GgufFile& file) {
  const std::optional<std::string_view> name = file.get_string("general.architecture");
  if (!name) return Status(StatusCode::kDataLoss, fmt::format("{}: has no string general.architecture", file.path()));
  for (const Architecture& known : kArchitectures) {
    if (known.gguf == *name) return &known;
  }
  return Status(StatusCode::kUnimplemented,
                fmt::format("{}: architecture \"{}\" is not supported (supported in GGUF: llama, qwen2, qwen3)",
                            file.path(), printable(*name)));
}

const HostTensor* find_tensor(GgufSplits files, std::string_view name) {
  for (const auto& file : files) {
    if (const HostTensor* tensor = file->find_tensor(name)) return tensor;
  }
  return nullptr;
}

// Collects config.json's fields; the first problem is kept.
class ConfigWriter {
 public:
  ConfigWriter(GgufSplits files, const Architecture& architecture)
      : files_(files), file_(*files.front()), prefix_(std::string(architecture.gguf) + ".") {
    json_["architectures"] = {architecture.hugging_face};
    json_["model_type"] = architecture.model_type;
    json_["hidden_act"] = "silu";
  }

  Result<std::string> write() {
    sizes();
    rope();
    special_tokens();
    if (const int64_t experts = integer("expert_count").value_or(0); experts > 0) json_["num_local_experts"] = experts;
    if (const int64_t window = integer("attention.sliding_window").value_or(0); window > 0) {
      json_["sliding_window"] = window;
      json_["use_sliding_window"] = true;
      json_["max_window_layers"] = 0;
    }
    json_["tie_word_embeddings"] = find_tensor(files_, "output.weight") == nullptr;
    json_["attention_bias"] = find_tensor(files_, "blk.0.attn_q.bias") != nullptr;
    json_["mlp_bias"] = find_tensor(files_, "blk.0.ffn_gate.bias") != nullptr;
    if (!status_.ok()) return status_;
    return json_.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

 private:
  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  std::optional<double> number(std::string_view name) const { return file_.get_float(key(name)); }

  // Some files give one number for each layer; the same for all is one number.
  std::optional<int64_t> integer(std::string_view name) {
    if (const auto value = file_.get_int(key(name))) return value;
    const auto list = file_.ints(key(name));
    if (!list || list->empty()) return std::nullopt;
    if (std::any_of(list->begin(), list->end(), [&](int64_t value) { return value != list->front(); })) {
      fail(StatusCode::kUnimplemented, fmt::format("{} differs between layers, which is not supported", key(name)));
    }
    return list->front();
  }
  int64_t required(std::string_view name) {
    const auto value = integer(name);
    if (!value) fail(StatusCode::kDataLoss, fmt::format("has no integer {}", key(name)));
    return value.value_or(1);
  }
  void fail(StatusCode code, const std::string& reason) {
    if (status_.ok()) status_ = Status(code, fmt::format("{}: {}", file_.path(), reason));
  }

  void sizes() {
    const int64_t hidden = required("embedding_length"), heads = required("attention.head_count");
    json_["num_hidden_layers"] = required("block_count");
    json_["hidden_size"] = hidden;
    json_["intermediate_size"] = required("feed_forward_length");
    json_["num_attention_heads"] = heads;
    json_["num_key_value_heads"] = integer("attention.head_count_kv").value_or(heads);
    json_["max_position_embeddings"] = required("context_length");
    json_["rms_norm_eps"] = number("attention.layer_norm_rms_epsilon").value_or(1e-6);
    head_dim_ = integer("attention.key_length").value_or(heads > 0 ? hidden / heads : 0);
    json_["head_dim"] = head_dim_;
    if (const int64_t value_dim = integer("attention.value_length").value_or(head_dim_); value_dim != head_dim_) {
      fail(StatusCode::kUnimplemented,
           fmt::format("heads of {} for keys and {} for values are not supported", head_dim_, value_dim));
    }
    const HostTensor* table = find_tensor(files_, "token_embd.weight");
    if (table == nullptr) {
      fail(StatusCode::kDataLoss, "tensor \"token_embd.weight\" is missing");
    } else {
      json_["vocab_size"] = table->rows();
    }
  }

  void rope() {
    json_["rope_theta"] = number("rope.freq_base").value_or(10000.0);
    const int64_t rotated = integer("rope.dimension_count").value_or(head_dim_);
    if (rotated != head_dim_) {
      fail(StatusCode::kUnimplemented,
           fmt::format("{} of {} elements of a head are rotated, only all are supported", rotated, head_dim_));
    }
    nlohmann::ordered_json scaling;
    const std::string_view type = file_.get_string(key("rope.scaling.type")).value_or("");
    const double factor = number("rope.scaling.factor").value_or(number("rope.scale_linear").value_or(0.0));
    if (find_tensor(files_, kRopeFreqs) != nullptr || find_tensor(files_, kRopeLong) != nullptr) {
      scaling = factors_by_frequency();
    } else if (type == "yarn") {
      scaling = yarn(factor);
    } else if (type == "none" || factor == 0.0 || factor == 1.0) {
      return;
    } else if (type == "linear" || type.empty()) {
      scaling = {{"rope_type", "linear"}, {"factor", factor}};
    } else {
      scaling = {{"rope_type", printable(type)}, {"factor", factor}};
    }
    if (const auto original = integer("rope.scaling.original_context_length");
        original && !scaling.contains("original_max_position_embeddings")) {
      scaling["original_max_position_embeddings"] = *original;
    }
    json_["rope_scaling"] = std::move(scaling);
  }

  // Llama 3's scaling is stored as the number that each frequency is divided by; longrope stores two sets. Both are
  // what Hugging Face calls longrope.
  nlohmann::ordered_json factors_by_frequency() {
    const bool one_set = find_tensor(files_, kRopeFreqs) != nullptr;
    return {{"rope_type", "longrope"},
            {"short_factor", factors(one_set ? kRopeFreqs : kRopeShort)},
            {"long_factor", factors(one_set ? kRopeFreqs : kRopeLong)},
            {"attention_factor", number("rope.scaling.attn_factor").value_or(1.0)}};
  }
  std::vector<float> factors(std::string_view name) {
    const HostTensor* tensor = find_tensor(files_, name);
    if (tensor == nullptr || tensor->dtype != DType::kF32 || tensor->shape.size() != 1 ||
        tensor->shape[0] != head_dim_ / 2) {
      fail(StatusCode::kDataLoss,
           fmt::format("tensor \"{}\" should have {} elements of type F32", name, head_dim_ / 2));
      return {};
    }
    std::vector<float> values(static_cast<size_t>(tensor->shape[0]));
    dequantize(*tensor, 0, tensor->shape[0], values.data());
    return values;
  }

  nlohmann::ordered_json yarn(double factor) {
    nlohmann::ordered_json scaling = {{"rope_type", "yarn"}, {"factor", factor}};
    if (const auto scale = number("rope.scaling.attn_factor"); scale && *scale != 1.0) {
      scaling["attention_factor"] = *scale * (factor > 1.0 ? 1.0 + 0.1 * std::log(factor) : 1.0);
    }
    if (const auto beta = number("rope.scaling.yarn_beta_fast")) scaling["beta_fast"] = *beta;
    if (const auto beta = number("rope.scaling.yarn_beta_slow")) scaling["beta_slow"] = *beta;
    return scaling;
  }

  void special_tokens() {
    // A chat model's turn may end with another token than a text.
    std::vector<int64_t> ends;
    for (const char* name : {"eos", "eot", "eom"}) {
      const auto id = file_.get_int(fmt::format("tokenizer.ggml.{}_token_id", name));
      if (id && std::find(ends.begin(), ends.end(), *id) == ends.end()) ends.push_back(*id);
    }
    if (!ends.empty()) json_["eos_token_id"] = ends;
    if (const auto id = file_.get_int("tokenizer.ggml.bos_token_id")) json_["bos_token_id"] = *id;
    if (const auto id = file_.get_int("tokenizer.ggml.padding_token_id")) json_["pad_token_id"] = *id;
  }

  GgufSplits files_;
  const GgufFile& file_;
  std::string prefix_;
  nlohmann::ordered_json json_;
  int64_t head_dim_ = 0;
  Status status_;
};

// Hugging Face's name of a tensor; nothing when it has none.
std::optional<std::string> hugging_face_name(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kTop[] = {
      {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
  static constexpr std::pair<std::string_view, std::string_view> kLayer[] = {
      {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"}};
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  std::string_view base = name.substr(0, dot);
  const std::string_view kind = name.substr(dot + 1);
  if (kind != "weight" && kind != "bias") return std::nullopt;
  for (const auto& [gguf, hugging_face] : kTop) {
    if (base == gguf) return fmt::format("{}.{}", hugging_face, kind);
  }
  constexpr std::string_view kBlock = "blk.";
  if (!base.starts_with(kBlock)) return std::nullopt;
  base.remove_prefix(kBlock.size());
  const std::string_view layer = base.substr(0, base.find('.'));
  if (layer.empty() || layer.size() > 5 || layer.size() == base.size() ||
      layer.find_first_not_of("0123456789") != std::string_view::npos || (layer.size() > 1 && layer[0] == '0')) {
    return std::nullopt;
  }
  base.remove_prefix(layer.size() + 1);
  for (const auto& [gguf, hugging_face] : kLayer) {
    if (base == gguf) return fmt::format("model.layers.{}.{}.{}", layer, hugging_face, kind);
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<std::unique_ptr<GgufFile>>> open_gguf_splits(const std::string& path) {
  std::vector<std::unique_ptr<GgufFile>> files;
  ZIPAGE_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> named, GgufFile::open(path));
  const int64_t count = named->get_int("split.count").value_or(1);
  if (count <= 1) {
    files.push_back(std::move(named));
    return files;
  }
  const std::optional<ShardName> name = parse_shard_name(fs::path(path).filename().string());
  if (!name || name->count != count) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{}: it is one of {} splits, so its name should end in -00001-of-{:05}.gguf for the others "
                    "to be found",
                    path, count, count));
  }
  const std::string directory = fs::path(path).parent_path().string();
  ZIPAGE_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          complete_shards(directory.empty() ? "." : directory, *name));
  int64_t num_tensors = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string split = (fs::path(directory) / names[i]).string();
    ZIPAGE_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::open(split));
    if (file->get_int("split.no").value_or(-1) != static_cast<int64_t>(i)) {
      return Status(StatusCode::kDataLoss, fmt::format("{}: its split.no is not {}, as its name says", split, i));
    }
    num_tensors += static_cast<int64_t>(file->tensors().size());
    files.push_back(std::move(file));
  }
  if (const auto expected = files.front()->get_int("split.tensors.count"); expected && *expected != num_tensors) {
    return Status(StatusCode::kDataLoss, fmt::format("{}: the {} splits have {} tensors, split.tensors.count says {}",
                                                     path, count, num_tensors, *expected));
  }
  return files;
}

Result<std::string> gguf_config_json(GgufSplits files) {
  ZIPAGE_ASSIGN_OR_RETURN(const Architecture* architecture, architecture_of(*files.front()));
  return ConfigWriter(files, *architecture).write();
}

Status add_gguf_tensors(GgufSplits files, TensorStore& store) {
  const GgufFile& first = *files.front();
  ZIPAGE_ASSIGN_OR_RETURN(const Architecture* architecture, architecture_of(first));
  const auto head_counts = [&](std::string_view name) {
    const std::string key = fmt::format("{}.attention.{}", architecture->gguf, name);
    if (const auto value = first.get_int(key)) return *value;
    const auto list = first.ints(key);
    return list && !list->empty() ? list->front() : 0;
  };
  const int64_t heads = head_counts("head_count");
  const int64_t kv_heads = head_counts("head_count_kv") > 0 ? head_counts("head_count_kv") : heads;
  for (const auto& file : files) {
    for (const HostTensor& tensor : file->tensors()) {
      if (tensor.name == kRopeFreqs || tensor.name == kRopeLong || tensor.name == kRopeShort) continue;
      const auto wrong = [&](StatusCode code, const std::string& reason) {
        return Status(code, fmt::format("{}: tensor \"{}\" {}", file->path(), printable(tensor.name), reason));
      };
      const std::optional<std::string> name = hugging_face_name(tensor.name);
      if (!name)
        return wrong(StatusCode::kUnimplemented, fmt::format("belongs to no layer of a {} model", architecture->gguf));
      StoredTensor stored{.tensor = tensor, .file = file->file()};
      stored.tensor.name = *name;
      const bool is_q = name->find(".q_proj.") != std::string::npos, is_k = name->find(".k_proj.") != std::string::npos;
      if (architecture->interleaved_qk && (is_q || is_k)) {
        const int64_t count = is_q ? heads : kv_heads;
        if (count <= 0 || tensor.rows() % count != 0 || tensor.rows() / count % 2 != 0) {
          return wrong(StatusCode::kDataLoss,
                       fmt::format("has {} rows, which {} heads of even size don't divide", tensor.rows(), count));
        }
        stored.interleaved_head_dim = tensor.rows() / count;
      }
      if (!store.add(std::move(stored))) return wrong(StatusCode::kDataLoss, "is in another split too");
    }
  }
  return {};
}

}  // namespace zipage
