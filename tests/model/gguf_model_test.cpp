// GGUF models as the decoder sees them: configuration and tensors in Hugging Face's terms.
#include <gmock/gmock.h>

#include <cmath>
#include <numbers>

#include "load/gguf.h"
#include "load/gguf_builder.h"
#include "load/model_files.h"
#include "model/model_config.h"

namespace zipage {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kF32 = 0;
constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 8, kHidden = 16, kIntermediate = 24, kVocab = 40;

// Metadata of a small model; `arch` is its architecture.
GgufBuilder metadata(const std::string& arch) {
  GgufBuilder builder;
  builder.string("general.architecture", arch);
  builder.u32(arch + ".block_count", 1).u32(arch + ".embedding_length", kHidden);
  builder.u32(arch + ".feed_forward_length", kIntermediate).u32(arch + ".context_length", 2048);
  builder.u32(arch + ".attention.head_count", kHeads).u32(arch + ".attention.head_count_kv", kKvHeads);
  builder.u32(arch + ".attention.key_length", kHeadDim).u32(arch + ".attention.value_length", kHeadDim);
  builder.f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5F).f32(arch + ".rope.freq_base", 500000.0F);
  builder.u32(arch + ".rope.dimension_count", kHeadDim);
  builder.u32("tokenizer.ggml.eos_token_id", 2)
      .u32("tokenizer.ggml.eot_token_id", 5)
      .u32("tokenizer.ggml.bos_token_id", 1);
  return builder;
}

// A matrix whose row r holds the number r + `base`.
void add_matrix(GgufBuilder& builder, const std::string& name, uint64_t rows, uint64_t cols, float base = 0) {
  std::vector<float> values;
  for (uint64_t r = 0; r < rows; ++r) values.insert(values.end(), cols, base + static_cast<float>(r));
  builder.tensor(name, {cols, rows}, kF32, floats(values));
}
void add_vector(GgufBuilder& builder, const std::string& name, uint64_t size) {
  std::vector<float> values;
  for (uint64_t i = 0; i < size; ++i) values.push_back(static_cast<float>(i));
  builder.tensor(name, {size}, kF32, floats(values));
}

void add_tensors(GgufBuilder& builder) {
  add_matrix(builder, "token_embd.weight", kVocab, kHidden);
  add_vector(builder, "output_norm.weight", kHidden);
  add_vector(builder, "blk.0.attn_norm.weight", kHidden);
  add_matrix(builder, "blk.0.attn_q.weight", kHeads * kHeadDim, kHidden);
  add_matrix(builder, "blk.0.attn_k.weight", kKvHeads * kHeadDim, kHidden);
  add_matrix(builder, "blk.0.attn_v.weight", kKvHeads * kHeadDim, kHidden);
  add_matrix(builder, "blk.0.attn_output.weight", kHidden, kHeads * kHeadDim);
  add_vector(builder, "blk.0.ffn_norm.weight", kHidden);
  add_matrix(builder, "blk.0.ffn_gate.weight", kIntermediate, kHidden);
  add_matrix(builder, "blk.0.ffn_up.weight", kIntermediate, kHidden);
  add_matrix(builder, "blk.0.ffn_down.weight", kHidden, kIntermediate);
}

struct Opened {
  std::unique_ptr<ModelFiles> files;
  ModelConfig config;
};

Opened open(const std::string& path) {
  Opened opened;
  auto files = ModelFiles::open(path, LoadFormat::kAuto);
  EXPECT_TRUE(files.ok()) << files.status().message();
  if (!files.ok()) return opened;
  opened.files = std::move(*files);
  const auto config = parse_model_config(opened.files->config_json(), path);
  EXPECT_TRUE(config.ok()) << config.status().message() << opened.files->config_json();
  if (config.ok()) opened.config = *config;
  return opened;
}

Opened open(const TemporaryDirectory& directory, const GgufBuilder& builder) {
  return open(directory.write("model.gguf", builder.build()));
}

std::vector<float> column(const HostTensor* tensor) {
  std::vector<float> first;
  if (tensor == nullptr) return first;
  std::vector<float> values(static_cast<size_t>(tensor->rows() * tensor->cols()));
  dequantize(*tensor, 0, static_cast<int64_t>(values.size()), values.data());
  for (int64_t r = 0; r < tensor->rows(); ++r) first.push_back(values[static_cast<size_t>(r * tensor->cols())]);
  return first;
}

void expect_error(const GgufBuilder& builder, StatusCode code, const char* message) {
  TemporaryDirectory directory;
  const auto files = ModelFiles::open(directory.write("model.gguf", builder.build()), LoadFormat::kAuto);
  ASSERT_FALSE(files.ok());
  EXPECT_EQ(files.status().code(), code) << files.status().message();
  EXPECT_THAT(files.status().message(), AllOf(HasSubstr("model.gguf: "), HasSubstr(message)));
}

TEST(GgufModel, MetadataBecomesTheConfigurationOfItsArchitecture) {
  const std::pair<const char*, const char*> kNames[] = {
      {"llama", "LlamaForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}};
  for (const auto& [gguf, hugging_face] : kNames) {
    GgufBuilder builder = metadata(gguf);
    add_tensors(builder);
    TemporaryDirectory directory;
    const Opened model = open(directory, builder);
    ASSERT_NE(model.files, nullptr);
    const ModelConfig& config = model.config;
    EXPECT_EQ(config.architecture, hugging_face);
    EXPECT_EQ(config.num_layers, 1);
    EXPECT_EQ(config.hidden_size, kHidden);
    EXPECT_EQ(config.num_heads, kHeads);
    EXPECT_EQ(config.num_kv_heads, kKvHeads);
    EXPECT_EQ(config.head_dim, kHeadDim);
    EXPECT_EQ(config.intermediate_size, kIntermediate);
    EXPECT_EQ(config.vocab_size, kVocab);
    EXPECT_EQ(config.max_position_embeddings, 2048);
    EXPECT_EQ(config.rms_norm_eps, 1e-5F);
    EXPECT_EQ(config.rope.theta, 500000.0);
    EXPECT_EQ(config.rope.type, RopeType::kDefault);
    EXPECT_TRUE(config.tie_word_embeddings);
    EXPECT_FALSE(config.output_bias || config.mlp_bias);
    EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 5));
    EXPECT_EQ(config.bos_token_id, 1);
    EXPECT_NE(model.files->gguf(), nullptr);
    EXPECT_EQ(model.files->side_file("model.gguf"), std::nullopt);
    EXPECT_EQ(model.files->names().size(), 11U);
  }
}

TEST(GgufModel, TensorsHaveHuggingFacesNames) {
  GgufBuilder builder = metadata("qwen3");
  add_tensors(builder);
  add_vector(builder, "blk.0.attn_q_norm.weight", kHeadDim);
  add_vector(builder, "blk.0.attn_k_norm.weight", kHeadDim);
  add_matrix(builder, "output.weight", kVocab, kHidden);
  TemporaryDirectory directory;
  const Opened model = open(directory, builder);
  EXPECT_FALSE(model.config.tie_word_embeddings);
  EXPECT_THAT(
      model.files->names(),
      testing::UnorderedElementsAre(
          "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight",
          "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
          "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight",
          "model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.k_norm.weight",
          "model.layers.0.post_attention_layernorm.weight", "model.layers.0.mlp.gate_proj.weight",
          "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"));
  EXPECT_THAT(model.files->find("model.layers.0.mlp.down_proj.weight")->shape, ElementsAre(kHidden, kIntermediate));
  // Qwen's rope turns halves, so its rows are in order.
  const std::vector<float> q = column(model.files->find("model.layers.0.self_attn.q_proj.weight"));
  for (size_t r = 0; r < q.size(); ++r) EXPECT_EQ(q[r], static_cast<float>(r));
}

TEST(GgufModel, RowsThatLlamaInterleavesComeBackInOrder) {
  GgufBuilder builder = metadata("llama");
  add_tensors(builder);
  add_vector(builder, "blk.0.attn_q.bias", kHeads * kHeadDim);
  TemporaryDirectory directory;
  const Opened model = open(directory, builder);
  for (int round = 0; round < 2; ++round) {  // again after release
    for (const char* name : {"q_proj.weight", "q_proj.bias", "k_proj.weight"}) {
      const HostTensor* tensor = model.files->find(std::string("model.layers.0.self_attn.") + name);
      ASSERT_NE(tensor, nullptr);
      // The converter wrote row i of the first half to 2i and of the second half to 2i + 1, in each head.
      const std::vector<float> rows = column(tensor);
      ASSERT_EQ(rows.size() % kHeadDim, 0U);
      for (size_t r = 0; r < rows.size(); ++r) {
        const size_t head = r / kHeadDim, within = r % kHeadDim, half = kHeadDim / 2;
        EXPECT_EQ(rows[r], static_cast<float>(head * kHeadDim + (within % half) * 2 + within / half))
            << name << " " << r;
      }
      model.files->release(*tensor);
    }
  }
  const std::vector<float> v = column(model.files->find("model.layers.0.self_attn.v_proj.weight"));
  for (size_t r = 0; r < v.size(); ++r) EXPECT_EQ(v[r], static_cast<float>(r));
  EXPECT_TRUE(model.config.qkv_bias);
}

TEST(GgufModel, StoredFrequencyFactorsScaleAsLlama3Does) {
  ModelConfig expected;
  expected.head_dim = kHeadDim;
  expected.rope = {.type = RopeType::kLlama3,
                   .theta = 500000.0,
                   .rotary_dim = kHeadDim,
                   .factor = 8.0,
                   .low_freq_factor = 1.0,
                   .high_freq_factor = 4.0,
                   .original_max_position_embeddings = 512};
  const RopeFrequencies llama3 = rope_frequencies(expected, 2048);
  // What the converter stores: the plain frequency over the scaled one.
  std::vector<float> factors;
  for (size_t i = 0; i < llama3.inv_freq.size(); ++i) {
    factors.push_back(
        static_cast<float>(std::pow(500000.0, -2.0 * static_cast<double>(i) / kHeadDim) / llama3.inv_freq[i]));
  }
  ASSERT_GT(factors.back(), 7.9F);
  GgufBuilder builder = metadata("llama");
  add_tensors(builder);
  builder.tensor("rope_freqs.weight", {kHeadDim / 2}, kF32, floats(factors));
  TemporaryDirectory directory;
  const Opened model = open(directory, builder);
  for (const int length : {100, 2048}) {
    const RopeFrequencies rope = rope_frequencies(model.config, length);
    EXPECT_EQ(rope.attention_scale, 1.0);
    ASSERT_EQ(rope.inv_freq.size(), llama3.inv_freq.size());
    for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
      EXPECT_NEAR(rope.inv_freq[i], llama3.inv_freq[i], 1e-6 * llama3.inv_freq[i]);
    }
  }
  EXPECT_EQ(model.files->names().size(), 11U);
  EXPECT_EQ(max_context_len(model.config), 2048);
}

TEST(GgufModel, RopeScalingKeepsItsMeaning) {
  const auto rope_of = [](GgufBuilder builder) {
    add_tensors(builder);
    TemporaryDirectory directory;
    return open(directory, builder).config.rope;
  };
  const RopeConfig linear =
      rope_of(metadata("llama").string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4));
  EXPECT_EQ(linear.type, RopeType::kLinear);
  EXPECT_EQ(linear.factor, 4.0);
  EXPECT_EQ(rope_of(metadata("llama").f32("llama.rope.scale_linear", 2)).type, RopeType::kLinear);
  EXPECT_EQ(
      rope_of(metadata("llama").string("llama.rope.scaling.type", "none").f32("llama.rope.scaling.factor", 4)).type,
      RopeType::kDefault);
  const RopeConfig yarn = rope_of(metadata("qwen3")
                                      .string("qwen3.rope.scaling.type", "yarn")
                                      .f32("qwen3.rope.scaling.factor", 4)
                                      .u32("qwen3.rope.scaling.original_context_length", 1024)
                                      .f32("qwen3.rope.scaling.yarn_beta_fast", 16));
  EXPECT_EQ(yarn.type, RopeType::kYarn);
  EXPECT_EQ(yarn.original_max_position_embeddings, 1024);
  EXPECT_EQ(yarn.beta_fast, 16.0);
  EXPECT_EQ(yarn.attention_factor, std::nullopt);
  const RopeConfig scaled = rope_of(metadata("qwen3")
                                        .string("qwen3.rope.scaling.type", "yarn")
                                        .f32("qwen3.rope.scaling.factor", 4)
                                        .f32("qwen3.rope.scaling.attn_factor", 0.5F));
  EXPECT_NEAR(scaled.attention_factor.value(), 0.5 * (1 + 0.1 * std::numbers::ln2 * 2), 1e-12);
}

TEST(GgufModel, WhatIsNotSupportedIsRefusedByName) {
  const auto with_tensors = [](GgufBuilder builder) {
    add_tensors(builder);
    return builder;
  };
  expect_error(with_tensors(metadata("gemma3")), StatusCode::kUnimplemented,
               "architecture \"gemma3\" is not supported");
  expect_error(GgufBuilder(), StatusCode::kDataLoss, "has no string general.architecture");
  expect_error(metadata("llama"), StatusCode::kDataLoss, "tensor \"token_embd.weight\" is missing");
  GgufBuilder unknown = with_tensors(metadata("llama"));
  add_vector(unknown, "blk.0.attn_sub_norm.weight", kHidden);
  expect_error(unknown, StatusCode::kUnimplemented,
               "tensor \"blk.0.attn_sub_norm.weight\" belongs to no layer of a llama model");
  GgufBuilder sizes;
  sizes.string("general.architecture", "qwen2").string("qwen2.block_count", "one");
  expect_error(sizes, StatusCode::kDataLoss, "has no integer qwen2.");
  expect_error(with_tensors(metadata("llama")).tensor("rope_freqs.weight", {3}, kF32, floats({1, 1, 1})),
               StatusCode::kDataLoss, "tensor \"rope_freqs.weight\" should have 4 elements of type F32");
}

TEST(GgufModel, ExpertsAndWindowsReachTheConfigThatRefusesThem) {
  for (const char* key : {"llama.expert_count", "llama.attention.sliding_window"}) {
    GgufBuilder builder = metadata("llama").u32(key, 8);
    add_tensors(builder);
    TemporaryDirectory directory;
    const auto files = ModelFiles::open(directory.write("model.gguf", builder.build()), LoadFormat::kAuto);
    ASSERT_TRUE(files.ok()) << files.status().message();
    EXPECT_EQ(parse_model_config((*files)->config_json(), "x").status().code(), StatusCode::kUnimplemented) << key;
  }
}

TEST(GgufModel, SplitsAreOneModel) {
  const auto numbered = [](GgufBuilder builder, uint16_t number) {
    return builder.pair("split.no", GgufBuilder::kU16, GgufBuilder::raw(number))
        .pair("split.count", GgufBuilder::kU16, GgufBuilder::raw(uint16_t{2}))
        .pair("split.tensors.count", GgufBuilder::kI32, GgufBuilder::raw(int32_t{12}));
  };
  GgufBuilder first = numbered(metadata("qwen2"), 0), second = numbered(GgufBuilder(), 1);
  add_tensors(first);
  add_matrix(second, "output.weight", kVocab, kHidden, 1000);
  TemporaryDirectory directory;
  directory.write("big-00001-of-00002.gguf", first.build());
  const std::string last = directory.write("big-00002-of-00002.gguf", second.build());
  for (const std::string& path : {directory.path(), last}) {
    const Opened model = open(path);
    ASSERT_NE(model.files, nullptr);
    EXPECT_FALSE(model.config.tie_word_embeddings);
    EXPECT_EQ(model.files->names().size(), 12U);
    EXPECT_EQ(column(model.files->find("lm_head.weight")).front(), 1000.0F);
    EXPECT_TRUE(model.files->gguf()->contains("general.architecture"));
  }
  const std::string renamed = directory.write("big.gguf", first.build());
  EXPECT_THAT(ModelFiles::open(renamed, LoadFormat::kAuto).status().message(), HasSubstr("it is one of 2 splits"));
  std::filesystem::remove(last);
  EXPECT_THAT(ModelFiles::open(directory.path("big-00001-of-00002.gguf"), LoadFormat::kAuto).status().message(),
              HasSubstr("missing: big-00002-of-00002.gguf"));
}

TEST(GgufModel, ADirectoryWithSeveralAsksToNameOne) {
  GgufBuilder builder = metadata("qwen2");
  add_tensors(builder);
  TemporaryDirectory directory;
  EXPECT_THAT(ModelFiles::open(directory.path(), LoadFormat::kAuto).status().message(),
              HasSubstr("neither a config.json nor a .gguf file"));
  directory.write("a.gguf", builder.build());
  EXPECT_NE(open(directory.path()).files, nullptr);
  directory.write("b.gguf", builder.build());
  EXPECT_THAT(ModelFiles::open(directory.path(), LoadFormat::kAuto).status().message(),
              HasSubstr("holds 2 GGUF models, name one of them: a.gguf, b.gguf"));
}

}  // namespace
}  // namespace zipage
