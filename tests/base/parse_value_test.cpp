#include "base/parse_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace zipage {
namespace {

using ::testing::ElementsAre;

TEST(ParseWholeNumber, TakesMultipliersAsVllmDoes) {
  EXPECT_EQ(parse_whole_number("0"), 0);
  EXPECT_EQ(parse_whole_number("-7"), -7);
  EXPECT_EQ(parse_whole_number("1k"), 1000);
  EXPECT_EQ(parse_whole_number("1K"), 1024);
  EXPECT_EQ(parse_whole_number("25.6k"), 25600);
  EXPECT_EQ(parse_whole_number("2M"), 2 * 1024 * 1024);
  EXPECT_EQ(parse_whole_number("3g"), 3000000000);
  EXPECT_EQ(parse_whole_number("1.5GiB"), 1610612736);
  EXPECT_EQ(parse_whole_number("2KB"), 2000);
  EXPECT_EQ(parse_whole_number("1T"), int64_t{1} << 40);
}

TEST(ParseWholeNumber, KeepsTheWholeRangeAndNothingBeyond) {
  EXPECT_EQ(parse_whole_number("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_whole_number("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(parse_whole_number("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parse_whole_number("8388608T"), std::nullopt);
  EXPECT_EQ(parse_whole_number("99999999999999999999999999999999999999999T"), std::nullopt);
}

TEST(ParseWholeNumber, RefusesWhatIsNoWholeNumber) {
  for (std::string_view text :
       {"", "-", "k", "1.5", "1.", ".5k", "25.6K", "1 k", "1kk", "1Q", "1KiBs", "0x10", "1e3", "1.2.3k", "one"}) {
    EXPECT_EQ(parse_whole_number(text), std::nullopt) << text;
  }
}

TEST(ParseReal, RefusesTrailingTextAndValuesThatAreNotFinite) {
  EXPECT_EQ(parse_real("0.25"), 0.25);
  EXPECT_EQ(parse_real("-1e-3"), -1e-3);
  for (std::string_view text : {"", "1x", "nan", "inf", "1e999", "0,5"})
    EXPECT_EQ(parse_real(text), std::nullopt) << text;
}

TEST(ParseBool, TakesYamlsWordsAndPythons) {
  for (std::string_view text : {"true", "True", "yes", "on", "1"}) EXPECT_EQ(parse_bool(text), true) << text;
  for (std::string_view text : {"false", "False", "no", "off", "0"}) EXPECT_EQ(parse_bool(text), false) << text;
  for (std::string_view text : {"", "2", "maybe"}) EXPECT_EQ(parse_bool(text), std::nullopt) << text;
}

TEST(SplitList, TrimsAndKeepsEmptyPieces) {
  EXPECT_THAT(split_list("1, 2 ,4"), ElementsAre("1", "2", "4"));
  EXPECT_THAT(split_list("1,,2"), ElementsAre("1", "", "2"));
  EXPECT_THAT(split_list("  "), ElementsAre());
}

}  // namespace
}  // namespace zipage
