// Regular expressions of tokenizer.json files, which are written for Oniguruma, run by PCRE2's JIT.
//
// Thread-safety: immutable; find_all() may run concurrently.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_range.h"
#include "zipage/status.h"

namespace zipage {

class Regex {
 public:
  // Syntax that means something else to PCRE2 is translated (\s, \w, \d, \h, \v, (?m), {n,m}+) or refused by name
  // (set operations inside a class).
  static Result<std::shared_ptr<const Regex>> compile(std::string_view pattern);
  // A pattern without special characters.
  static std::shared_ptr<const Regex> literal(std::string_view text);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // All matches from left to right, empty ones included; appended to `out`. A match that exceeds the limits (a
  // pattern that backtracks without end) ends the search.
  // REQUIRES: valid UTF-8.
  void find_all(std::string_view text, std::vector<ByteRange>& out) const;

 private:
  struct Program;
  explicit Regex(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

// The pattern in PCRE2's syntax.
Result<std::string> translate_oniguruma(std::string_view pattern);

}  // namespace zipage
