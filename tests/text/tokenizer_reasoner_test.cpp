#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/tokenizer.h"

namespace zipage {
namespace {

const std::string kReasoner = std::string(ZIPAGE_SOURCE_DIR) + "/models/reasoner";

nlohmann::json load_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

TEST(ReasonerTokenizer, PromptsOfTheReferenceRunsHaveTheReferenceIds) {
  const auto tokenizer = Tokenizer::from_json_file(kReasoner + "/model/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  std::map<std::string, std::string> questions;
  for (const char* task : {"quantities", "boxes", "paths", "reduce"}) {
    std::ifstream file(kReasoner + "/questions/" + task + ".jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto row = nlohmann::json::parse(line);
      questions[row["id"]] = row["messages"][0]["content"];
    }
  }
  const auto reference = load_json(kReasoner + "/reference.json");
  ASSERT_EQ(reference["rows"].size(), 8U);
  for (const auto& row : reference["rows"]) {
    const std::string prompt = "<|im_start|>user\n" + questions.at(row["id"]) + "<|im_end|>\n<|im_start|>assistant\n";
    EXPECT_EQ((*tokenizer)->encode(prompt, true), row["prompt_token_ids"].get<std::vector<int32_t>>()) << row["id"];
    EXPECT_EQ((*tokenizer)->decode(row["prompt_token_ids"].get<std::vector<int32_t>>(), false), prompt);
  }
}

}  // namespace
}  // namespace zipage
