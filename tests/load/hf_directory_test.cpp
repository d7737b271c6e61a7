#include "load/hf_directory.h"

#include <gmock/gmock.h>

#include "load/test_files.h"

namespace zipage {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// A file with one fp32 tensor of one element for each name.
std::string shard(const std::vector<std::string>& names) {
  std::string header = "{", data;
  for (size_t i = 0; i < names.size(); ++i) {
    header += (i == 0 ? "\"" : ",\"") + names[i] + R"(":{"dtype":"F32","shape":[1],"data_offsets":[)" +
              std::to_string(4 * i) + "," + std::to_string(4 * i + 4) + "]}";
    append(data, static_cast<float>(i));
  }
  return safetensors_file(header + "}", data);
}

// a in shard 1, b in 2, c in 3.
TemporaryDirectory& three_shards(TemporaryDirectory& directory) {
  directory.write("model-00001-of-00003.safetensors", shard({"a"}));
  directory.write("model-00002-of-00003.safetensors", shard({"b"}));
  directory.write("model-00003-of-00003.safetensors", shard({"c"}));
  return directory;
}
constexpr std::string_view kIndex =
    R"({"weight_map":{"a":"model-00001-of-00003.safetensors","b":"model-00002-of-00003.safetensors","c":"model-00003-of-00003.safetensors"}})";

void expect_error(const std::string& directory, StatusCode code, const testing::Matcher<std::string>& message) {
  TensorStore store;
  const Status status = add_safetensors(directory, store);
  EXPECT_EQ(status.code(), code);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(directory), message));
}

TEST(HfDirectory, ShardsAreFoundThroughTheIndexOrTheirNumbers) {
  for (const bool with_index : {true, false}) {
    TemporaryDirectory directory;
    three_shards(directory);
    if (with_index) directory.write("model.safetensors.index.json", kIndex);
    TensorStore store;
    ASSERT_EQ(add_safetensors(directory.path(), store).message(), "");
    EXPECT_THAT(store.names(), UnorderedElementsAre("a", "b", "c"));
  }
}

TEST(HfDirectory, OneFileComesBeforeAnIndex) {
  TemporaryDirectory directory;
  three_shards(directory).write("model.safetensors.index.json", kIndex);
  directory.write("model.safetensors", shard({"x"}));
  TensorStore store;
  ASSERT_EQ(add_safetensors(directory.path(), store).message(), "");
  EXPECT_THAT(store.names(), UnorderedElementsAre("x"));
}

TEST(HfDirectory, case_47_ATruncatedShardIsNamed) {
  TemporaryDirectory directory;
  three_shards(directory).write("model.safetensors.index.json", kIndex);
  directory.write("model-00002-of-00003.safetensors", shard({"b"}).substr(0, 40));
  expect_error(directory.path(), StatusCode::kDataLoss,
               AllOf(HasSubstr("model-00002-of-00003.safetensors"), HasSubstr("has 40 bytes"), HasSubstr("truncated")));
}

TEST(HfDirectory, case_49_AMissingShardIsNamed) {
  for (const bool with_index : {true, false}) {
    TemporaryDirectory directory;
    three_shards(directory);
    if (with_index) directory.write("model.safetensors.index.json", kIndex);
    std::filesystem::remove(directory.path("model-00002-of-00003.safetensors"));
    expect_error(directory.path(), StatusCode::kNotFound,
                 AllOf(HasSubstr("1 of the 3 shards"), HasSubstr("missing: model-00002-of-00003.safetensors")));
  }
}

TEST(HfDirectory, case_49_ATensorThatTheIndexLacksIsNotThere) {
  TemporaryDirectory directory;
  three_shards(directory).write("model.safetensors.index.json",
                                R"({"weight_map":{"a":"model-00001-of-00003.safetensors"}})");
  TensorStore store;
  ASSERT_EQ(add_safetensors(directory.path(), store).message(), "");
  EXPECT_THAT(store.names(), UnorderedElementsAre("a"));
}

TEST(HfDirectory, case_49_ATensorThatItsShardLacksIsNamed) {
  TemporaryDirectory directory;
  three_shards(directory).write(
      "model.safetensors.index.json",
      R"({"weight_map":{"a":"model-00001-of-00003.safetensors","b":"model-00001-of-00003.safetensors","d":"model-00003-of-00003.safetensors"}})");
  expect_error(directory.path(), StatusCode::kDataLoss,
               AllOf(HasSubstr("2 tensors are not in the shards"),
                     HasSubstr("b (model-00001-of-00003.safetensors), d (model-00003")));
}

TEST(HfDirectory, AnIndexThatIsNoneIsRefused) {
  const std::pair<std::string_view, const char*> kWrong[] = {
      {"{", "not valid JSON"},
      {"[]", "no object \"weight_map\""},
      {R"({"weight_map":3})", "no object \"weight_map\""},
      {R"({"weight_map":{"a":3}})", "weight_map of \"a\" is no file name"},
      {R"({"weight_map":{"a":"../secret.safetensors"}})", "expected the name of a file in the same directory"},
      {"version https://git-lfs.github.com/spec/v1\nsize 99\n", "Git LFS pointer"},
  };
  for (const auto& [content, message] : kWrong) {
    TemporaryDirectory directory;
    directory.write("model.safetensors.index.json", content);
    expect_error(directory.path(), StatusCode::kDataLoss, AllOf(HasSubstr("index.json"), HasSubstr(message)));
  }
}

TEST(HfDirectory, AmbiguousOrAbsentWeightsAreRefused) {
  TemporaryDirectory directory;
  expect_error(directory.path(), StatusCode::kNotFound, HasSubstr("holds no weights"));
  directory.write("other.safetensors", shard({"a"}));
  TensorStore store;
  EXPECT_EQ(add_safetensors(directory.path(), store).message(), "");
  directory.write("another.safetensors", shard({"a"}));
  expect_error(directory.path(), StatusCode::kInvalidArgument, HasSubstr("another.safetensors, other.safetensors"));
}

TEST(HfDirectory, ATensorInTwoShardsIsRefused) {
  TemporaryDirectory directory;
  three_shards(directory).write("model-00003-of-00003.safetensors", shard({"a"}));
  expect_error(directory.path(), StatusCode::kDataLoss, HasSubstr("tensor \"a\" is in another shard too"));
}

TEST(TensorStore, UnalignedDataIsCopiedOnceAndGivenBack) {
  TemporaryDirectory directory;
  // A header of odd length puts the data on an odd address.
  std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  if (header.size() % 2 == 0) header += " ";
  std::string data;
  append(data, 1.5F);
  append(data, -2.5F);
  directory.write("model.safetensors", safetensors_file(header, data));
  TensorStore store;
  ASSERT_EQ(add_safetensors(directory.path(), store).message(), "");
  for (int round = 0; round < 2; ++round) {
    const HostTensor* tensor = store.find("w");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->data.data()) % alignof(float), 0U);
    float values[2];
    dequantize(*tensor, 0, 2, values);
    EXPECT_EQ(values[0], 1.5F);
    EXPECT_EQ(values[1], -2.5F);
    EXPECT_EQ(store.find("w")->data.data(), tensor->data.data());
    store.release(*tensor);
  }
}

}  // namespace
}  // namespace zipage
