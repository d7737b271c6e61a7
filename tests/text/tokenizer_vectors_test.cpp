// Ids of Hugging Face `tokenizers`, made by tests/data/text/make_tokenizers.py.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/tokenizer.h"

namespace zipage {
namespace {

using nlohmann::json;

const std::string kData = std::string(ZIPAGE_SOURCE_DIR) + "/tests/data/text/tokenizers/";

json load_vectors(const std::string& name) {
  std::ifstream file(kData + name);
  return json::parse(file);
}

class Fnv {
 public:
  void add(uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001B3U; }
  std::string hex() const { return fmt::format("{:016x}", hash_); }

 private:
  uint64_t hash_ = 0xCBF29CE484222325U;
};

std::string hash_of(const std::vector<int32_t>& ids) {
  Fnv fnv;
  for (const int32_t id : ids) fnv.add(static_cast<uint64_t>(id));
  return fnv.hex();
}

std::unique_ptr<Tokenizer> make(const json& variant) {
  json file = variant;
  file["model"] = load_vectors(variant["base"].get<std::string>() + ".json");
  file["model"].update(variant["model"]);
  auto tokenizer = Tokenizer::from_json(file.dump(), variant["name"].get<std::string>());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

class TokenizerVectors : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const json& variant : load_vectors("variants.json")) {
      if (variant["name"] == GetParam()) tokenizer = make(variant);
    }
    ASSERT_NE(tokenizer, nullptr);
    vectors = load_vectors("vectors.json");
    expected = vectors["variants"][GetParam()];
  }
  std::unique_ptr<Tokenizer> tokenizer;
  json vectors, expected;
};

TEST_P(TokenizerVectors, case_06_IdsEqualHuggingFaces) {
  ASSERT_GT(vectors["texts"].size(), 50U);
  for (size_t i = 0; i < vectors["texts"].size(); ++i) {
    const std::string text = vectors["texts"][i];
    EXPECT_EQ(tokenizer->encode(text, true), expected["ids"][i].get<std::vector<int32_t>>()) << json(text);
  }
}

TEST_P(TokenizerVectors, case_06_IdsOfRandomTextsEqualHuggingFaces) {
  ASSERT_GT(vectors["bulk"].size(), 300U);
  for (size_t i = 0; i < vectors["bulk"].size(); ++i) {
    const std::string text = vectors["bulk"][i];
    EXPECT_EQ(hash_of(tokenizer->encode(text, true)), expected["bulk"][i]) << json(text);
  }
}

TEST_P(TokenizerVectors, case_08_SpecialTokensStayTextWhenTheyAreToldTo) {
  Fnv fnv;
  for (const char* list : {"texts", "bulk"}) {
    for (const json& text : vectors[list]) {
      for (const int32_t id : tokenizer->encode(text.get<std::string>(), true, SpecialTokens::kAsText)) {
        fnv.add(static_cast<uint64_t>(id));
      }
    }
  }
  EXPECT_EQ(fnv.hex(), expected["as_text"]);
}

TEST_P(TokenizerVectors, DecodedTextEqualsHuggingFaces) {
  if (expected["decoded"].is_null()) GTEST_SKIP() << "see make_tokenizers.py";
  Fnv fnv;
  for (size_t i = 0; i < vectors["texts"].size(); ++i) {
    if (i > 0) fnv.add(0);
    for (const char byte : tokenizer->decode(expected["ids"][i].get<std::vector<int32_t>>(), true)) {
      fnv.add(static_cast<uint8_t>(byte));
    }
  }
  EXPECT_EQ(fnv.hex(), expected["decoded"]);
}

INSTANTIATE_TEST_SUITE_P(, TokenizerVectors, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const json& variant : load_vectors("variants.json")) names.push_back(variant["name"]);
                           return names;
                         }()),
                         [](const auto& param) { return param.param; });

TEST(Tokenizer, LongHostileTextsTakeLinearTime) {
  // Each of these made somebody's tokenizer quadratic; a test that hangs is the failure.
  for (const json& each : load_vectors("variants.json")) {
    if (each["name"] == "deepseek_v3" || each["name"] == "llama2") {
      const auto tokenizer = make(each);
      for (const std::string& unit :
           {std::string("a"), std::string(" "), std::string("\n "), std::string("ab1 "),
            std::string("\xF0\x9F\x98\x80"), std::string("\x80"), std::string("<s"), std::string("1")}) {
        std::string text;
        while (text.size() < (1U << 20)) text += unit;
        EXPECT_GT(tokenizer->encode(text, true).size(), 1000U);
      }
    }
  }
}

}  // namespace
}  // namespace zipage
