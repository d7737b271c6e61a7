// What happens to a text before it is cut into words: a list of steps, as in tokenizer.json.
//
// Thread-safety: immutable.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "text/regex.h"
#include "text/unicode.h"

namespace zipage {

namespace normalizers {
struct Form {
  NormalForm form;
};
struct Lowercase {};
struct StripAccents {};  // drops marks
struct Strip {
  bool left = true, right = true;
};  // white space
struct Prepend {
  std::string text;
};  // nothing is put before an empty text
struct Replace {
  std::shared_ptr<const Regex> pattern;
  std::string content;
};
using Step = std::variant<Form, Lowercase, StripAccents, Strip, Prepend, Replace>;
}  // namespace normalizers

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<normalizers::Step> steps) : steps_(std::move(steps)) {}
  bool empty() const { return steps_.empty(); }
  // REQUIRES: valid UTF-8.
  std::string apply(std::string_view text) const;

 private:
  std::vector<normalizers::Step> steps_;
};

}  // namespace zipage
