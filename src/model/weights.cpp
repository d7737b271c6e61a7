#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string>
#include <unordered_set>

namespace zipage {
namespace {

struct Part {
  std::string name;
  int64_t rows;
  int64_t cols;  // 0: a vector
};

// What load_layer() and load_weights() ask of the file: the loader gives it to them, a roll call notes what is missing.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual Result<std::unique_ptr<Linear>> linear(const std::vector<Part>& parts, Weights& weights) = 0;
  // Stacked fp32 vectors (norms, biases) on the device.
  virtual Result<const float*> vector(const std::vector<Part>& parts, Weights& weights, float dummy_value) = 0;
};

class RollCall final : public WeightSource {
 public:
  explicit RollCall(const ModelFiles& files) {
    for (std::string& name : files.names()) present_.insert(std::move(name));
  }

  Result<std::unique_ptr<Linear>> linear(const std::vector<Part>& parts, Weights& /*weights*/) override {
    note(parts);
    return std::unique_ptr<Linear>();
  }
  Result<const float*> vector(const std::vector<Part>& parts, Weights& /*weights*/, float /*dummy_value*/) override {
    note(parts);
    return static_cast<const float*>(nullptr);
  }

  Status result(const std::string& directory) const {
    if (missing_.empty()) return {};
    constexpr size_t kNamed = 8;
    const std::span named(missing_.data(), std::min(missing_.size(), kNamed));
    return {StatusCode::kDataLoss,
            fmt::format("{}: {} of {} tensors {} missing: {}{}", directory, missing_.size(), num_asked_,
                        missing_.size() == 1 ? "is" : "are", fmt::join(named, ", "),
                        missing_.size() > kNamed ? fmt::format(" and {} more", missing_.size() - kNamed) : "")};
  }

 private:
  void note(const std::vector<Part>& parts) {
    for (const Part& part : parts) {
      ++num_asked_;
      if (!present_.contains(part.name)) missing_.push_back(part.name);
    }
  }

  std::unordered_set<std::string> present_;
  std::vector<std::string> missing_;
  size_t num_asked_ = 0;
};

class Loader final : public WeightSource {
 public:
  Loader(Backend& backend, Queue& queue, const ModelFiles& files) : backend_(backend), queue_(queue), files_(files) {}

  Result<std::unique_ptr<Linear>> linear(const std::vector<Part>& parts, Weights& weights) override {
    if (files_.dummy()) return made_up(parts, weights);
    std::vector<HostTensor> tensors;
    std::vector<const HostTensor*> stored;
    for (const Part& part : parts) {
      weights.num_parameters += part.rows * part.cols;
      ZIPAGE_ASSIGN_OR_RETURN(const HostTensor* tensor, find(part));
      tensors.push_back(*tensor);
      stored.push_back(tensor);
    }
    std::unique_ptr<Linear> linear = backend_.make_linear(tensors);
    weights.bytes += static_cast<int64_t>(linear->bytes());
    for (const HostTensor* tensor : stored) files_.release(*tensor);
    return linear;
  }

  Result<const float*> vector(const std::vector<Part>& parts, Weights& weights, float dummy_value) override {
    std::vector<float> values;
    for (const Part& part : parts) {
      weights.num_parameters += part.rows;
      const size_t begin = values.size();
      values.resize(begin + static_cast<size_t>(part.rows), dummy_value);
      if (files_.dummy()) continue;
      ZIPAGE_ASSIGN_OR_RETURN(const HostTensor* tensor, find(part));
      dequantize(*tensor, 0, part.rows, values.data() + begin);
    }
    const size_t bytes = values.size() * sizeof(float);
    auto staging = backend_.allocate(bytes, "staging", MemoryKind::kPinnedHost);
    std::copy(values.begin(), values.end(), staging->as<float>());
    weights.vectors.push_back(backend_.allocate(bytes, "norms and biases"));
    backend_.upload(queue_, weights.vectors.back()->data(), staging->data(), bytes);
    queue_.synchronize();
    weights.bytes += static_cast<int64_t>(bytes);
    return static_cast<const float*>(weights.vectors.back()->as<float>());
  }

 private:
  Result<const HostTensor*> find(const Part& part) const {
    const HostTensor* tensor = files_.find(part.name);
    const std::vector<int64_t> shape =
        part.cols == 0 ? std::vector<int64_t>{part.rows} : std::vector<int64_t>{part.rows, part.cols};
    if (tensor == nullptr) {
      return Status(StatusCode::kDataLoss, fmt::format("{}: tensor '{}' [{}] is missing", files_.directory(), part.name,
                                                       fmt::join(shape, ", ")));
    }
    if (tensor->shape != shape) {
      return Status(StatusCode::kDataLoss,
                    fmt::format("{}: tensor '{}' has shape [{}], the configuration asks for [{}]", files_.directory(),
                                part.name, fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")));
    }
    if (!is_weight_dtype(tensor->dtype)) {
      return Status(StatusCode::kUnimplemented, fmt::format("{}: tensor '{}' has type {}, which weights cannot have",
                                                            files_.directory(), part.name, traits(tensor->dtype).name));
    }
    return tensor;
  }

  std::unique_ptr<Linear> made_up(const std::vector<Part>& parts, Weights& weights) {
    int64_t rows = 0;
    for (const Part& part : parts) rows += part.rows;
    weights.num_parameters += rows * parts.front().cols;
    std::unique_ptr<Linear> linear = backend_.make_noise_linear(rows, parts.front().cols, ++noise_seed_);
    weights.bytes += static_cast<int64_t>(linear->bytes());
    return linear;
  }

  Backend& backend_;
  Queue& queue_;
  const ModelFiles& files_;
  uint64_t noise_seed_ = 0;
};

Status load_layer(WeightSource& source, const ModelConfig& config, int index, Weights& weights) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t ffn = config.intermediate_size;
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  LayerWeights layer;
  ZIPAGE_ASSIGN_OR_RETURN(layer.qkv, source.linear({{attention + "q_proj.weight", q_rows, hidden},
                                                    {attention + "k_proj.weight", kv_rows, hidden},
                                                    {attention + "v_proj.weight", kv_rows, hidden}},
                                                   weights));
  ZIPAGE_ASSIGN_OR_RETURN(layer.output, source.linear({{attention + "o_proj.weight", hidden, q_rows}}, weights));
  ZIPAGE_ASSIGN_OR_RETURN(
      layer.gate_up,
      source.linear({{mlp + "gate_proj.weight", ffn, hidden}, {mlp + "up_proj.weight", ffn, hidden}}, weights));
  ZIPAGE_ASSIGN_OR_RETURN(layer.down, source.linear({{mlp + "down_proj.weight", hidden, ffn}}, weights));
  ZIPAGE_ASSIGN_OR_RETURN(layer.input_norm,
                          source.vector({{prefix + "input_layernorm.weight", hidden, 0}}, weights, 1));
  ZIPAGE_ASSIGN_OR_RETURN(layer.post_attention_norm,
                          source.vector({{prefix + "post_attention_layernorm.weight", hidden, 0}}, weights, 1));
  if (config.qk_norm) {
    ZIPAGE_ASSIGN_OR_RETURN(layer.q_norm,
                            source.vector({{attention + "q_norm.weight", config.head_dim, 0}}, weights, 1));
    ZIPAGE_ASSIGN_OR_RETURN(layer.k_norm,
                            source.vector({{attention + "k_norm.weight", config.head_dim, 0}}, weights, 1));
  }
  if (config.qkv_bias) {
    ZIPAGE_ASSIGN_OR_RETURN(layer.qkv_bias, source.vector({{attention + "q_proj.bias", q_rows, 0},
                                                           {attention + "k_proj.bias", kv_rows, 0},
                                                           {attention + "v_proj.bias", kv_rows, 0}},
                                                          weights, 0));
  }
  if (config.output_bias) {
    ZIPAGE_ASSIGN_OR_RETURN(layer.output_bias, source.vector({{attention + "o_proj.bias", hidden, 0}}, weights, 0));
  }
  if (config.mlp_bias) {
    ZIPAGE_ASSIGN_OR_RETURN(
        layer.gate_up_bias,
        source.vector({{mlp + "gate_proj.bias", ffn, 0}, {mlp + "up_proj.bias", ffn, 0}}, weights, 0));
    ZIPAGE_ASSIGN_OR_RETURN(layer.down_bias, source.vector({{mlp + "down_proj.bias", hidden, 0}}, weights, 0));
  }
  weights.layers.push_back(std::move(layer));
  return {};
}

Status load_all(WeightSource& source, const ModelConfig& config, Weights& weights,
                const std::function<void(double)>& progress) {
  const int64_t vocab = config.vocab_size;
  const int64_t hidden = config.hidden_size;
  ZIPAGE_ASSIGN_OR_RETURN(weights.embedding, source.linear({{"model.embed_tokens.weight", vocab, hidden}}, weights));
  for (int i = 0; i < config.num_layers; ++i) {
    ZIPAGE_RETURN_IF_ERROR(load_layer(source, config, i, weights));
    if (progress) progress(static_cast<double>(i + 1) / config.num_layers);
  }
  ZIPAGE_ASSIGN_OR_RETURN(weights.final_norm, source.vector({{"model.norm.weight", hidden, 0}}, weights, 1));
  // A tied model's file may repeat the head; the configuration decides. An untied one must bring it.
  if (!config.tie_word_embeddings) {
    ZIPAGE_ASSIGN_OR_RETURN(weights.lm_head, source.linear({{"lm_head.weight", vocab, hidden}}, weights));
  }
  return {};
}

}  // namespace

Result<Weights> load_weights(Backend& backend, Queue& queue, const ModelFiles& files, const ModelConfig& config,
                             const std::function<void(double)>& progress) {
  if (!files.dummy()) {
    Weights none;
    RollCall roll_call(files);
    ZIPAGE_RETURN_IF_ERROR(load_all(roll_call, config, none, {}));
    ZIPAGE_RETURN_IF_ERROR(roll_call.result(files.directory()));
  }
  Loader loader(backend, queue, files);
  Weights weights;
  ZIPAGE_RETURN_IF_ERROR(load_all(loader, config, weights, progress));
  return weights;
}

}  // namespace zipage
