#include "server/openai_json.h"

#include <limits>

#include "server/server_test.h"

namespace zipage {
namespace {

using json = nlohmann::json;

std::string as_json(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(OpenAiJson, StringsAreReadBackAsTheyWere) {
  std::string every;
  for (int c = 0; c < 128; ++c) every += static_cast<char>(c);
  for (const std::string& text : {std::string(), std::string("plain"), every, std::string("a\"b\\c\n\t\r"),
                                  std::string("世界 \U0001F600"), std::string("\0x", 2)}) {
    EXPECT_EQ(json::parse(as_json(text)), json(text));
  }
}

TEST(OpenAiJson, case_05_BrokenUtf8IsReplacedNeverThrown) {
  EXPECT_EQ(json::parse(as_json("\xE2\x82")), json("\uFFFD"));
  EXPECT_EQ(json::parse(as_json("a\xFF\x62")), json("a\uFFFDb"));
}

TEST(OpenAiJson, case_22_LogprobsAreFiniteNumbers) {
  const auto text = [](float value) {
    std::string out;
    append_logprob(out, value);
    return out;
  };
  EXPECT_EQ(text(-0.5F), "-0.5");
  EXPECT_EQ(json::parse(text(-std::numeric_limits<float>::infinity())), -9999.0);
  EXPECT_EQ(json::parse(text(std::numeric_limits<float>::quiet_NaN())), -9999.0);
  EXPECT_TRUE(json::parse(text(-1e-30F)).is_number());
}

}  // namespace
}  // namespace zipage
