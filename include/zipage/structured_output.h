// What a request's answer must look like.
//
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <string>

namespace zipage {

struct StructuredOutput {
  enum class Kind : uint8_t {
    kJsonObject,     // any JSON object; no source
    kJsonSchema,     // source: a JSON schema
    kRegex,          // source: a regular expression that the whole answer matches
    kChoice,         // source: a JSON list of strings, one of which is the answer
    kGrammar,        // source: EBNF with a rule `root`
    kStructuralTag,  // source: an XGrammar structural tag, JSON
  };
  Kind kind = Kind::kJsonObject;
  std::string source;
  // JSON: whether the model may put white space between tokens as it likes, or one space after ':' and ',' alone.
  bool any_whitespace = true;

  bool operator==(const StructuredOutput&) const = default;
};

}  // namespace zipage
