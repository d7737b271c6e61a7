#include "text/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <functional>

#include "text/byte_level.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace zipage {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// "<0xE4>" to 0xE4, or -1.
int byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string decode_token(const TokenDecoder& decoder, std::string_view token) {
  if (decoder.byte_level) return from_byte_level(token);
  std::string out(token);
  for (const auto& [from, to] : decoder.replace) {
    for (size_t at = out.find(from); at != std::string::npos; at = out.find(from, at + to.size())) {
      out.replace(at, from.size(), to);
    }
  }
  if (const int byte = decoder.byte_fallback ? byte_token(out) : -1; byte >= 0)
    return std::string(1, static_cast<char>(byte));
  return out;
}

// The words of one text that have been tokenized already. The newer of two words in one slot stays.
class WordCache {
 public:
  WordCache(std::string_view text, size_t words) : text_(text), slots_(words < 64 ? 0 : kSlots) {}

  // Appends the ids of `word`, which lies in the text, if they are known.
  bool copy(ByteRange word, std::vector<int32_t>& ids) {
    if (slots_.empty()) return false;
    const std::string_view view = text_.substr(word.begin, word.size());
    slot_ = &slots_[std::hash<std::string_view>{}(view) & (kSlots - 1)];
    if (slot_->size != view.size() || text_.substr(slot_->begin, slot_->size) != view) return false;
    const size_t old = ids.size();
    ids.resize(old + slot_->num_ids);
    std::copy_n(ids.begin() + static_cast<ptrdiff_t>(slot_->first_id), slot_->num_ids,
                ids.begin() + static_cast<ptrdiff_t>(old));
    return true;
  }
  // What the last copy() did not know has been appended behind `first_id`.
  void keep(ByteRange word, size_t first_id, size_t num_ids) {
    if (!slots_.empty()) *slot_ = {word.begin, word.size(), first_id, num_ids};
  }

 private:
  static constexpr size_t kSlots = 4096;
  struct Slot {
    size_t begin = 0, size = 0;        // of the word in the text
    size_t first_id = 0, num_ids = 0;  // of its ids in the output
  };
  std::string_view text_;
  std::vector<Slot> slots_;
  Slot* slot_ = nullptr;
};

}  // namespace

BpeTokenizer::BpeTokenizer(TokenizerParts parts) : parts_(std::move(parts)), model_(parts_.vocabulary, parts_.bpe) {
  model_.reserve(parts_.merges.size());
  for (const TokenizerParts::MergeRule& rule : parts_.merges) {
    model_.add_merge(rule.left, rule.right, rule.merged, rule.rank);
  }
  parts_.merges = {};
  for (size_t i = 0; i < parts_.added_tokens.size(); ++i) {
    const AddedToken& token = parts_.added_tokens[i];
    added_by_id_[token.id] = i;
    if (token.normalized) {
      normalized_.add(token, parts_.normalizer.apply(token.content));
    } else {
      raw_.add(token, token.content);
    }
  }
  decode_vocabulary();
}

void BpeTokenizer::decode_vocabulary() {
  byte_ends_.reserve(static_cast<size_t>(vocab_size()) + 1);
  byte_ends_.push_back(0);
  for (int32_t id = 0; id < vocab_size(); ++id) {
    bytes_ += decode_token(parts_.decoder, token_text(id));
    byte_ends_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text, bool add_special_tokens,
                                          SpecialTokens specials) const {
  std::string mended;
  if (!is_valid_utf8(text)) {
    mended = replace_invalid_utf8(text);
    text = mended;
  }
  const ByteRange whole{0, text.size()};
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = parts_.prefix_ids;
  encode_valid(text, std::span(&whole, specials == SpecialTokens::kAsText ? 1 : 0), ids);
  if (add_special_tokens) ids.insert(ids.end(), parts_.suffix_ids.begin(), parts_.suffix_ids.end());
  return ids;
}

std::vector<int32_t> BpeTokenizer::encode_mixed(std::string_view text, std::span<const ByteRange> literal) const {
  std::vector<int32_t> ids;
  if (is_valid_utf8(text)) {
    encode_valid(text, literal, ids);
    return ids;
  }
  std::string mended;
  std::vector<ByteRange> moved;
  size_t done = 0;
  const auto mend_up_to = [&](size_t end) {
    mended += replace_invalid_utf8(text.substr(done, end - done));
    done = end;
    return mended.size();
  };
  for (const ByteRange& range : literal) {
    const size_t begin = mend_up_to(range.begin);
    moved.push_back({begin, mend_up_to(range.end)});
  }
  mend_up_to(text.size());
  encode_valid(mended, moved, ids);
  return ids;
}

void BpeTokenizer::encode_valid(std::string_view text, std::span<const ByteRange> literal,
                                std::vector<int32_t>& ids) const {
  ids.reserve(ids.size() + text.size() / 3 + 8);
  std::vector<ByteRange> inside;
  for (const AddedTokenMatcher::Piece& piece : raw_.split(text, literal)) {
    if (piece.id >= 0) {
      ids.push_back(piece.id);
      continue;
    }
    inside.clear();
    for (const ByteRange& range : literal) {
      const size_t begin = std::max(range.begin, piece.begin), end = std::min(range.end, piece.end);
      if (begin < end) inside.push_back({begin - piece.begin, end - piece.begin});
    }
    encode_piece(text.substr(piece.begin, piece.end - piece.begin), piece.begin == 0, inside, ids);
  }
}

void BpeTokenizer::encode_piece(std::string_view piece, bool at_start, std::span<const ByteRange> literal,
                                std::vector<int32_t>& ids) const {
  std::string normal = parts_.normalizer.apply(piece);
  if (normalized_.empty()) {
    encode_text(std::move(normal), at_start, ids);
    return;
  }
  // Where the ranges lie after normalization: a prefix of a text becomes the prefix of what the text becomes.
  std::vector<ByteRange> moved;
  const auto moved_to = [&](size_t offset) {
    return offset == piece.size() ? normal.size()
                                  : std::min(normal.size(), parts_.normalizer.apply(piece.substr(0, offset)).size());
  };
  for (const ByteRange& range : literal) moved.push_back({moved_to(range.begin), moved_to(range.end)});
  for (const AddedTokenMatcher::Piece& part : normalized_.split(normal, moved)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      encode_text(normal.substr(part.begin, part.end - part.begin), at_start && part.begin == 0, ids);
    }
  }
}

void BpeTokenizer::encode_text(std::string text, bool at_start, std::vector<int32_t>& ids) const {
  std::vector<ByteRange> words;
  parts_.pre_tokenizer.split(text, at_start, words);
  WordCache cache(text, words.size());
  for (const ByteRange& word : words) {
    if (cache.copy(word, ids)) continue;
    const size_t first = ids.size();
    model_.encode(std::string_view(text).substr(word.begin, word.size()), ids);
    cache.keep(word, first, ids.size() - first);
  }
}

std::string_view BpeTokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return std::string_view(bytes_).substr(byte_ends_[id], byte_ends_[id + 1] - byte_ends_[id]);
}

const AddedToken* BpeTokenizer::added_token(int32_t id) const {
  const auto it = added_by_id_.find(id);
  return it == added_by_id_.end() ? nullptr : &parts_.added_tokens[it->second];
}

std::string BpeTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  Detokenizer detokenizer(*this, skip_special_tokens, /*at_text_start=*/true);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  text += detokenizer.finish();
  return text;
}

}  // namespace zipage
