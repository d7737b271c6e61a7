// Cuts a text into words, which are tokenized one by one: a list of steps, as in tokenizer.json.
//
// Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace zipage {

namespace pre_tokenizers {
// What becomes of the matches of a splitting pattern.
enum class Behavior : uint8_t { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
struct Split {
  std::shared_ptr<const Regex> pattern;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;
};
struct Digits {
  bool individual = false;
};
struct Punctuation {
  Behavior behavior = Behavior::kIsolated;
};
struct Whitespace {};       // words and runs of other characters; white space is dropped
struct WhitespaceSplit {};  // white space is dropped
// Words by `pattern` (null: as they are). From here on a text is bytes in GPT-2's alphabet.
struct ByteLevel {
  std::shared_ptr<const Regex> pattern;
  bool add_prefix_space = false;
};
struct Metaspace {
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };
  std::string replacement = "\u2581";  // for every space
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};
using Step = std::variant<Split, Digits, Punctuation, Whitespace, WhitespaceSplit, ByteLevel, Metaspace>;
}  // namespace pre_tokenizers

class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<pre_tokenizers::Step> steps);

  // Fills `words` with the ranges of `text` that are its words, in order and not empty. `text` may be changed first
  // (spaces replaced or put before). It stays raw bytes even behind a ByteLevel step.
  // at_start: nothing came before this text.
  // REQUIRES: valid UTF-8.
  void split(std::string& text, bool at_start, std::vector<ByteRange>& words) const;
  bool byte_level() const { return byte_level_; }

 private:
  std::vector<pre_tokenizers::Step> steps_;
  bool byte_level_ = false;
};

}  // namespace zipage
