#include "engine/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace zipage {
namespace {

using ::testing::HasSubstr;

std::string fault_of(std::string_view yaml) {
  return parse_settings(yaml, "x.yaml").status().message();
}

TEST(ConfigFile, KeepsOrderLinesAndPlainValues) {
  const auto settings =
      parse_settings("kv-budget: 512\n\nenable_prefix_caching: false\nsizes: [1, 2, 4]\nnone: ~\n", "f");
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  ASSERT_EQ(settings->size(), 3U);
  EXPECT_EQ((*settings)[0].key, "kv-budget");
  EXPECT_EQ((*settings)[0].value, "512");
  EXPECT_EQ((*settings)[1].value, "false");
  EXPECT_EQ((*settings)[1].line, 3);
  EXPECT_EQ((*settings)[2].value, "1,2,4");
}

TEST(ConfigFile, AnEmptyFileSetsNothing) {
  const auto settings = parse_settings("# nothing\n", "f");
  ASSERT_TRUE(settings.ok());
  EXPECT_TRUE(settings->empty());
}

TEST(ConfigFile, FaultsNameFileAndLine) {
  EXPECT_THAT(fault_of("a: 1\nb: [\n"), HasSubstr("x.yaml:"));
  EXPECT_THAT(fault_of("- 1\n- 2\n"), HasSubstr("x.yaml:1: must be a map"));
  EXPECT_THAT(fault_of("a: 1\nb:\n  c: 2\n"), HasSubstr("'b' must be a plain value"));
  EXPECT_THAT(fault_of("a: [[1]]\n"), HasSubstr("the list 'a'"));
  EXPECT_THAT(fault_of("a: 1\na: 2\n"), HasSubstr("x.yaml:2: 'a' comes twice"));
}

TEST(ConfigFile, AFileThatIsNotThereIsNamed) {
  const auto settings = read_settings_file("no/such/file.yaml");
  EXPECT_EQ(settings.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(settings.status().message(), HasSubstr("no/such/file.yaml"));
}

}  // namespace
}  // namespace zipage
