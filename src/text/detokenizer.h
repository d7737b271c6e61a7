// Token ids to text, one at a time: never half a character, never one twice, O(1) amortised per byte.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace zipage {

class Detokenizer {
 public:
  // `tokenizer` must outlive this. at_text_start: nothing comes before this text, so the space that SentencePiece puts
  // before a first word is no part of it. What a model writes continues its prompt.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens, bool at_text_start = false);

  // Text that this token completes: whole UTF-8 characters; an invalid run becomes one U+FFFD per maximal subpart
  // as soon as it cannot become valid any more.
  std::string push(int32_t id);
  // The rest at the end of a text: an unfinished character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  bool strip_space_;
  std::string pending_;  // at most 3 bytes: the beginning of a character
};

// Finds stop strings in a text that comes in pieces. Holds back only what may still become a stop string.
class StopChecker {
 public:
  StopChecker(std::vector<std::string> stops, bool include_stop_in_output);

  // Text that may be shown now. After a match matched() is true and every later push returns "".
  std::string push(std::string_view text);
  std::string finish();  // what was held back, at the end
  bool matched() const { return matched_; }
  const std::string& stop() const {
    return stop_;
  }  // the one that matched: the first to be complete, of several the longest

 private:
  std::vector<std::string> stops_;
  bool include_;
  bool matched_ = false;
  std::string stop_;
  std::string held_;
};

}  // namespace zipage
