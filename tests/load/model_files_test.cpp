#include "load/model_files.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

namespace zipage {
namespace {

const std::string kReasoner = ZIPAGE_SOURCE_DIR "/models/reasoner/model";

TEST(ModelFiles, OpensShardsThroughTheirIndex) {
  const auto model = ModelFiles::open(kReasoner, LoadFormat::kAuto);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->names().size(), 90U);
  EXPECT_EQ((*model)->weight_bytes(), 29604608);
  EXPECT_FALSE((*model)->dummy());
  EXPECT_EQ((*model)->gguf(), nullptr);
  EXPECT_NE((*model)->config_json().find("Qwen3ForCausalLM"), std::string::npos);
  const HostTensor* table = (*model)->find("model.embed_tokens.weight");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->dtype, DType::kBF16);
  EXPECT_THAT(table->shape, testing::ElementsAre(640, 384));
  EXPECT_EQ(table->data.size(), 640U * 384 * 2);
  EXPECT_EQ((*model)->find("model.layers.8.mlp.up_proj.weight"), nullptr);
}

TEST(ModelFiles, ReleasedTensorsReadTheSameAgain) {
  const auto model = ModelFiles::open(kReasoner, LoadFormat::kSafetensors);
  ASSERT_TRUE(model.ok()) << model.status().message();
  for (const std::string& name : (*model)->names()) {
    const HostTensor* tensor = (*model)->find(name);
    const std::vector<std::byte> before(tensor->data.begin(), tensor->data.end());
    (*model)->release(*tensor);
    EXPECT_TRUE(std::ranges::equal(before, (*model)->find(name)->data)) << name;
  }
}

TEST(ModelFiles, DummyNeedsTheConfigOnly) {
  for (const std::string& path : {kReasoner, kReasoner + "/config.json"}) {
    const auto model = ModelFiles::open(path, LoadFormat::kDummy);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_TRUE((*model)->dummy());
    EXPECT_TRUE((*model)->names().empty());
    EXPECT_NE((*model)->config_json().find("Qwen3ForCausalLM"), std::string::npos);
    EXPECT_EQ((*model)->directory(), kReasoner);
  }
}

TEST(ModelFiles, SideFilesComeFromTheDirectory) {
  const auto model = ModelFiles::open(kReasoner, LoadFormat::kAuto);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_TRUE((*model)->side_file("tokenizer.json").has_value());
  EXPECT_FALSE((*model)->side_file("chat_template.jinja").has_value());
  EXPECT_FALSE((*model)->side_file("../README.md").has_value());
}

TEST(ModelFiles, AMissingPathIsNamed) {
  const auto model = ModelFiles::open("/no/such/model", LoadFormat::kAuto);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(model.status().message(), testing::HasSubstr("/no/such/model"));
}

}  // namespace
}  // namespace zipage
