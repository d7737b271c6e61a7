// A grammar made ready for one vocabulary, and what keeps them.
//
// Thread-safety: a CompiledGrammar is immutable. GrammarCompiler's methods may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zipage/request.h"
#include "zipage/status.h"
#include "zipage/structured_output.h"

namespace zipage {

struct GrammarVocabulary {
  std::vector<std::string> tokens;      // [vocab] the bytes of each; "" = never part of an answer (control tokens)
  std::vector<int32_t> stop_token_ids;  // may come where the grammar can end, and nowhere else
};

// How the model's thought stands before the answer that a grammar describes.
struct ThoughtGate {
  enum class Start : uint8_t {
    kAnswer,   // there is no thought
    kThought,  // the output begins inside it
    kEither,   // a thought may come first: it begins with `begin`
  };
  Start start = Start::kAnswer;
  std::vector<int32_t> begin, end;  // token ids of the tags; `end` is not empty unless kAnswer
};

class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  virtual size_t bytes() const = 0;
  // A new answer's state. Inside a thought everything but stop tokens may come. `stop_token_ids`: those of the request
  // that are control tokens, beside the vocabulary's.
  virtual std::shared_ptr<TokenConstraint> constraint(ThoughtGate gate,
                                                      const std::vector<int32_t>& stop_token_ids) const = 0;
};

struct GrammarLimits {
  double seconds = 5;                       // of processor time for one grammar
  size_t memory_bytes = size_t{768} << 20;  // of one grammar while it is compiled
  size_t source_bytes = size_t{256} << 10;
  size_t cache_bytes = size_t{512} << 20;  // of all that are kept
  int concurrent = 2;                      // compiled at one time
  int waiting = 32;                        // further ones that may wait for that
};

class GrammarCompiler {
 public:
  // `vocabulary` is called once, when the first grammar is compiled.
  explicit GrammarCompiler(std::function<GrammarVocabulary()> vocabulary, GrammarLimits limits = {});
  ~GrammarCompiler();

  // Blocks while the grammar is compiled, on a thread of its own; takes it from the cache when it can. Errors, one
  // sentence each: kInvalidArgument for what cannot be compiled within the limits or could not be kept to;
  // kResourceExhausted when too many wait.
  Result<std::shared_ptr<const CompiledGrammar>> compile(const StructuredOutput& what);

  struct Counts {
    int64_t compiled = 0, hits = 0, failed = 0;
    size_t cached = 0, cached_bytes = 0;
  };
  Counts counts() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace zipage
