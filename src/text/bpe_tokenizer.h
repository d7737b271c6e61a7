// A tokenizer put together from its parts; the readers of tokenizer.json and of GGUF metadata fill these in.
//
// Thread-safety: immutable once built.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace zipage {

// How a token's spelling becomes bytes.
struct TokenDecoder {
  bool byte_level = false;                                   // GPT-2's alphabet
  bool byte_fallback = false;                                // <0xE4> is that byte
  std::vector<std::pair<std::string, std::string>> replace;  // before byte_fallback
  bool strip_leading_space = false;                          // at the start of a text
};

struct TokenizerParts {
  struct MergeRule {
    int32_t left, right, merged;
    uint32_t rank;
  };
  Vocabulary vocabulary;
  BpeOptions bpe;
  std::vector<MergeRule> merges;
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::vector<int32_t> prefix_ids, suffix_ids;  // what add_special_tokens adds
  TokenDecoder decoder;
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(TokenizerParts parts);

  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens, SpecialTokens specials) const override;
  std::vector<int32_t> encode_mixed(std::string_view text, std::span<const ByteRange> literal) const override;
  std::string_view token_bytes(int32_t id) const override;
  std::string_view token_text(int32_t id) const override { return parts_.vocabulary.text(id); }
  int32_t token_id(std::string_view token_text) const override { return parts_.vocabulary.find(token_text); }
  const AddedToken* added_token(int32_t id) const override;
  int vocab_size() const override { return parts_.vocabulary.size(); }
  bool strips_leading_space() const override { return parts_.decoder.strip_leading_space; }
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;

 private:
  // REQUIRES: valid UTF-8.
  void encode_valid(std::string_view text, std::span<const ByteRange> literal, std::vector<int32_t>& ids) const;
  void encode_piece(std::string_view piece, bool at_start, std::span<const ByteRange> literal,
                    std::vector<int32_t>& ids) const;
  void encode_text(std::string text, bool at_start, std::vector<int32_t>& ids) const;
  void decode_vocabulary();

  TokenizerParts parts_;
  BpeModel model_;
  std::unordered_map<int32_t, size_t> added_by_id_;  // index into parts_.added_tokens
  AddedTokenMatcher raw_, normalized_;
  std::string bytes_;                // of all tokens, one behind the other
  std::vector<uint32_t> byte_ends_;  // [vocab_size + 1]; token i is [i, i + 1)
};

}  // namespace zipage
