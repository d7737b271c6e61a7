#include "text/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace zipage {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string fault_of(std::string_view text) {
  return parse_json_object(text).status().message();
}

TEST(ParseJsonObject, case_07_LoneSurrogatesAndBadUtf8AreRefused) {
  EXPECT_THAT(fault_of(R"({"prompt":"\ud800"})"), HasSubstr("not valid JSON: parse error"));
  EXPECT_THAT(fault_of("{\"prompt\":\"\xE2\x82\"}"), HasSubstr("not valid JSON: parse error"));
}

TEST(ParseJsonObject, case_24_DeepNestingIsRefusedAndALongFlatFieldIsNot) {
  const std::string deep = "{\"x\":" + std::string(10000, '[') + std::string(10000, ']') + "}";
  EXPECT_THAT(fault_of(deep), HasSubstr("nests deeper than 64"));
  const std::string open = "{\"x\":" + std::string(1000000, '[');
  EXPECT_THAT(fault_of(open), HasSubstr("nests deeper than 64"));
  EXPECT_TRUE(parse_json_object("{\"x\":\"" + std::string(1 << 20, '[') + "\"}").ok());
  EXPECT_TRUE(parse_json_object(R"({"x":"\"[[[["})").ok());
  const std::string just = "{\"x\":" + std::string(63, '[') + std::string(63, ']') + "}";
  EXPECT_TRUE(parse_json_object(just).ok());
}

TEST(ParseJsonObject, WantsAnObject) {
  EXPECT_THAT(fault_of("[1]"), HasSubstr("must be a JSON object, not [1]"));
  EXPECT_THAT(fault_of(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(fault_of("{\"a\":1} x"), HasSubstr("not valid JSON"));
}

TEST(ToJsonText, case_05_NeverThrowsOnIncompleteUtf8) {
  EXPECT_EQ(to_json_text(json("a\xE2\x82")), "\"a\xEF\xBF\xBD\"");
  EXPECT_THAT(excerpt(json("\xFF")), HasSubstr("\xEF\xBF\xBD"));
}

TEST(Excerpt, IsShortAndCutBetweenCharacters) {
  const std::string text = excerpt(json(std::string(58, 'x') + "\xE4\xB8\xAD\xE4\xB8\xAD"));
  EXPECT_EQ(text, "\"" + std::string(58, 'x') + "...");
  EXPECT_EQ(excerpt(json(std::vector<int>(1000, 1))), "a long list");
}

TEST(JsonFields, case_12_NullIsTheSameAsAbsent) {
  const json object = {{"a", nullptr}};
  JsonFields fields(object);
  int number = 3;
  bool flag = true;
  std::string text = "kept";
  std::vector<std::string> list = {"kept"};
  fields.read("a", number, 0, 10);
  fields.read("a", flag);
  fields.read("a", text);
  fields.read_strings("a", list);
  fields.read("b", number, 0, 10);
  EXPECT_TRUE(fields.ok());
  EXPECT_EQ(number, 3);
  EXPECT_TRUE(flag);
  EXPECT_EQ(text, "kept");
  EXPECT_EQ(list.size(), 1U);
}

TEST(JsonFields, TheFirstFaultStays) {
  const json object = {{"a", "x"}, {"b", 5}};
  JsonFields fields(object);
  int a = 0, b = 0;
  fields.read("a", a, 0, 10);
  fields.read("b", b, 0, 10);
  EXPECT_EQ(fields.status().param(), "a");
  EXPECT_EQ(b, 0);
}

TEST(JsonFields, NumbersBeyondTheirTypeAreRefused) {
  const json object = json::parse(R"({"a": 18446744073709551615, "b": 9223372036854775807, "c": 1e30})");
  std::optional<int64_t> seed;
  JsonFields a(object), b(object), c(object);
  a.read("a", seed);
  EXPECT_EQ(a.status().param(), "a");
  b.read("b", seed);
  EXPECT_TRUE(b.ok());
  EXPECT_EQ(seed, INT64_MAX);
  c.read("c", seed);
  EXPECT_EQ(c.status().param(), "c");
}

TEST(TokenIds, case_16_OutOfTheVocabularyAndWrongTypesAreRefused) {
  for (const char* text : {"[640]", "[200000]", "[-1]", "[2147483648]", "[18446744073709551615]", "[1.5]", "[true]",
                           "[\"1\"]", "[null]", "[[1]]", "7", "{}"}) {
    const auto ids = token_ids_of(json::parse(text), "prompt", 640);
    EXPECT_EQ(ids.status().param(), "prompt") << text;
    EXPECT_THAT(ids.status().message(), HasSubstr("below 640")) << text;
  }
  EXPECT_EQ(*token_ids_of(json::parse("[0, 639]"), "prompt", 640), (std::vector<int32_t>{0, 639}));
}

}  // namespace
}  // namespace zipage
