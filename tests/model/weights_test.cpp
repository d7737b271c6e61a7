#include "model/weights.h"

#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace zipage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kLayers = 3, kWidth = 32, kNumHeads = 2, kHeadSize = 16, kFfn = 64, kVocabSize = 40;

// A directory of zeros, of which chosen tensors are absent.
class Files final : public ModelFiles {
 public:
  Files() {
    add("model.embed_tokens.weight", {kVocabSize, kWidth});
    add("model.norm.weight", {kWidth});
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      for (const char* name : {"input_layernorm", "post_attention_layernorm"}) add(prefix + name + ".weight", {kWidth});
      for (const char* name : {"q_norm", "k_norm"}) add(prefix + "self_attn." + name + ".weight", {kHeadSize});
      for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
        add(prefix + "self_attn." + name + ".weight", {kNumHeads * kHeadSize, kWidth});
      }
      add(prefix + "self_attn.o_proj.weight", {kWidth, kNumHeads * kHeadSize});
      for (const char* name : {"gate_proj", "up_proj"}) add(prefix + "mlp." + name + ".weight", {kFfn, kWidth});
      add(prefix + "mlp.down_proj.weight", {kWidth, kFfn});
    }
  }

  void untie() { config_.replace(config_.find("\"tie_word_embeddings\":true"), 26, "\"tie_word_embeddings\":false"); }
  void add_head() { add("lm_head.weight", {kVocabSize, kWidth}); }
  void drop(const std::string& name) { ASSERT_EQ(tensors_.erase(name), 1U) << name; }

  const std::string& config_json() const override { return config_; }
  const HostTensor* find(std::string_view name) const override {
    const auto at = tensors_.find(std::string(name));
    return at == tensors_.end() ? nullptr : &at->second;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  int64_t weight_bytes() const override { return 0; }
  void release(const HostTensor& /*tensor*/) const override {}
  bool dummy() const override { return false; }
  const std::string& directory() const override { return directory_; }
  const GgufFile* gguf() const override { return nullptr; }
  std::optional<std::string> side_file(std::string_view /*name*/) const override { return std::nullopt; }

 private:
  void add(const std::string& name, std::vector<int64_t> shape) {
    size_t bytes = sizeof(uint16_t);
    for (const int64_t dim : shape) bytes *= static_cast<size_t>(dim);
    tensors_[name] = {.name = name, .dtype = DType::kBF16, .shape = std::move(shape), .data = {zeros_.data(), bytes}};
  }

  std::string config_ = nlohmann::json{
      {"model_type", "qwen3"},
      {"architectures", {"Qwen3ForCausalLM"}},
      {"vocab_size", kVocabSize},
      {"hidden_size", kWidth},
      {"num_hidden_layers", kLayers},
      {"num_attention_heads", kNumHeads},
      {"num_key_value_heads", kNumHeads},
      {"head_dim", kHeadSize},
      {"intermediate_size", kFfn},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 10000.0},
      {"max_position_embeddings", 64},
      {"tie_word_embeddings",
       true}}.dump();
  std::string directory_ = "some/model";
  std::vector<std::byte> zeros_ = std::vector<std::byte>(size_t{kVocabSize} * kFfn * kWidth * 2);
  std::map<std::string, HostTensor> tensors_;
};

class WeightsTest : public ::testing::Test {
 protected:
  Result<Weights> load() {
    const Result<ModelConfig> config = parse_model_config(files_.config_json(), "config.json");
    EXPECT_TRUE(config.ok()) << config.status().message();
    return load_weights(*backend_, *queue_, files_, *config, {});
  }

  Files files_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend({.num_threads = 1});
  std::unique_ptr<Queue> queue_ = backend_->make_queue(QueuePriority::kNormal);
};

TEST_F(WeightsTest, ACompleteModelLoads) {
  const Result<Weights> weights = load();
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->layers.size(), size_t{kLayers});
}

TEST_F(WeightsTest, case_49_EveryMissingTensorIsNamedAtOnce) {
  files_.drop("model.norm.weight");
  files_.drop("model.layers.1.self_attn.k_proj.weight");
  const Result<Weights> weights = load();
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(weights.status().message(),
              AllOf(HasSubstr("some/model: 2 of 35 tensors are missing"), HasSubstr("model.norm.weight"),
                    HasSubstr("model.layers.1.self_attn.k_proj.weight"), Not(HasSubstr("more"))));
}

TEST_F(WeightsTest, case_49_AListTooLongToReadIsCut) {
  for (const char* norm : {"input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"}) {
    for (int layer = 0; layer < kLayers; ++layer) {
      files_.drop("model.layers." + std::to_string(layer) + "." + norm + ".weight");
    }
  }
  const Result<Weights> weights = load();
  ASSERT_FALSE(weights.ok());
  EXPECT_THAT(weights.status().message(), AllOf(HasSubstr("12 of 35"), HasSubstr(" and 4 more")));
}

TEST_F(WeightsTest, case_50_ATiedModelUsesItsEmbeddingWhetherOrNotTheFileRepeatsTheHead) {
  for (const bool repeated : {false, true}) {
    if (repeated) files_.add_head();
    const Result<Weights> weights = load();
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ(weights->lm_head, nullptr);
  }
}

TEST_F(WeightsTest, case_50_AnUntiedModelMustBringItsHead) {
  files_.untie();
  const Result<Weights> absent = load();
  ASSERT_FALSE(absent.ok());
  EXPECT_THAT(absent.status().message(), HasSubstr("1 of 36 tensors is missing: lm_head.weight"));
  files_.add_head();
  const Result<Weights> present = load();
  ASSERT_TRUE(present.ok()) << present.status().message();
  EXPECT_NE(present->lm_head, nullptr);
}

}  // namespace
}  // namespace zipage
