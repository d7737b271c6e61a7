#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <map>

namespace zipage {
namespace {

// Tokens are whatever bytes a test says.
class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> tokens, bool strips = false)
      : tokens_(std::move(tokens)), strips_(strips) {}
  void make_special(int32_t id) {
    AddedToken& token = added_[id];
    token.id = id;
    token.content = tokens_[id];
    token.special = true;
  }
  std::vector<int32_t> encode(std::string_view, bool, SpecialTokens) const override { return {}; }
  std::vector<int32_t> encode_mixed(std::string_view, std::span<const ByteRange>) const override { return {}; }
  std::string_view token_bytes(int32_t id) const override {
    return id >= 0 && static_cast<size_t>(id) < tokens_.size() ? tokens_[id] : std::string_view();
  }
  std::string_view token_text(int32_t id) const override { return token_bytes(id); }
  int32_t token_id(std::string_view) const override { return -1; }
  const AddedToken* added_token(int32_t id) const override {
    const auto it = added_.find(id);
    return it == added_.end() ? nullptr : &it->second;
  }
  int vocab_size() const override { return static_cast<int>(tokens_.size()); }
  bool strips_leading_space() const override { return strips_; }
  std::string decode(std::span<const int32_t>, bool) const override { return {}; }

 private:
  std::vector<std::string> tokens_;
  std::map<int32_t, AddedToken> added_;
  bool strips_;
};

std::vector<std::string> deltas(const FakeTokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Detokenizer detokenizer(tokenizer, true);
  std::vector<std::string> out;
  for (const int32_t id : ids) out.push_back(detokenizer.push(id));
  out.push_back(detokenizer.finish());
  return out;
}

using Deltas = std::vector<std::string>;

TEST(Detokenizer, case_01_TextIsNeverSentTwice) {
  const FakeTokenizer tokenizer({"A ", "世", "\xE4\xB8", "a", "b"});
  EXPECT_EQ(deltas(tokenizer, {0, 1, 2, 3, 4}), (Deltas{"A ", "世", "", "\uFFFDa", "b", ""}));
}

TEST(Detokenizer, case_02_ATokenWithTheTailOfOneCharacterAndTheHeadOfTheNext) {
  const FakeTokenizer tokenizer({"客", "\xE5\x8D", "\x95\xE4\xBB", "\xB7"});
  EXPECT_EQ(deltas(tokenizer, {0, 1, 2, 3}), (Deltas{"客", "", "单", "价", ""}));
}

TEST(Detokenizer, case_03_ByteFallbackTokensGiveTheCharacterWithItsLastByte) {
  const FakeTokenizer tokenizer({"text", "\xE4", "\xB8", "\xAD"});
  EXPECT_EQ(deltas(tokenizer, {0, 1, 2, 3}), (Deltas{"text", "", "", "中", ""}));
}

TEST(Detokenizer, case_04_LoneContinuationBytesFlow) {
  const FakeTokenizer tokenizer({"\x80"});
  Detokenizer detokenizer(tokenizer, true);
  for (int i = 0; i < 4000; ++i) ASSERT_EQ(detokenizer.push(0), "\uFFFD");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, AnUnfinishedCharacterAtTheEndBecomesOneReplacement) {
  const FakeTokenizer tokenizer({"\xE2\x82"});
  EXPECT_EQ(deltas(tokenizer, {0}), (Deltas{"", "\uFFFD"}));
}

TEST(Detokenizer, AnInvalidBeginningIsReplacedAsSoonAsItIsKnown) {
  const FakeTokenizer tokenizer({"\xF0\x9F", "\xE2\x82", "\xAC!", "\xC0"});
  EXPECT_EQ(deltas(tokenizer, {0, 1, 2, 3}), (Deltas{"", "\uFFFD", "€!", "\uFFFD", ""}));
}

TEST(Detokenizer, SpecialTokensAreSkippedOrShown) {
  FakeTokenizer tokenizer({"a", "<|im_end|>"});
  tokenizer.make_special(1);
  Detokenizer skipping(tokenizer, true), showing(tokenizer, false);
  EXPECT_EQ(skipping.push(0), "a");
  EXPECT_EQ(skipping.push(1), "");
  EXPECT_EQ(showing.push(0), "a");
  EXPECT_EQ(showing.push(1), "<|im_end|>");
}

TEST(Detokenizer, UnknownIdsAreEmpty) {
  const FakeTokenizer tokenizer({"a"});
  EXPECT_EQ(deltas(tokenizer, {-1, 7, 0}), (Deltas{"", "", "a", ""}));
}

TEST(Detokenizer, TheLeadingSpaceGoesOnlyAtTheStartOfAText) {
  const FakeTokenizer tokenizer({" Hello", " world"}, /*strips=*/true);
  Detokenizer start(tokenizer, true, true), continued(tokenizer, true, false);
  EXPECT_EQ(start.push(0), "Hello");
  EXPECT_EQ(start.push(1), " world");
  EXPECT_EQ(continued.push(0), " Hello");
}

}  // namespace
}  // namespace zipage
