#include "text/grammar_vocabulary.h"

#include <algorithm>

namespace zipage {

GrammarVocabulary grammar_vocabulary(const Tokenizer& tokenizer, int vocab, std::span<const int32_t> eos_ids) {
  GrammarVocabulary vocabulary;
  // Embedding rows beyond the tokenizer's vocabulary are no text.
  vocabulary.tokens.resize(static_cast<size_t>(vocab));
  const int known = std::min(tokenizer.vocab_size(), vocab);
  for (int32_t id = 0; id < known; ++id) {
    const AddedToken* added = tokenizer.added_token(id);
    if (added == nullptr || !added->special) vocabulary.tokens[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  for (const int32_t id : eos_ids) {
    if (id >= 0 && id < vocab) vocabulary.stop_token_ids.push_back(id);
  }
  return vocabulary;
}

ThoughtGate thought_gate(const ReasoningFormat& format, const Tokenizer& tokenizer,
                         std::span<const int32_t> prompt_ids) {
  ThoughtGate gate;
  const PromptThought prompt = prompt_thought(tokenizer, prompt_ids);
  if (prompt == PromptThought::kClosed) return gate;
  const bool inside = prompt == PromptThought::kOpened || format.always_thinks;
  gate.start = inside ? ThoughtGate::Start::kThought : ThoughtGate::Start::kEither;
  gate.begin = tokenizer.encode(format.begin, false);
  gate.end = tokenizer.encode(format.end, false);
  return gate;
}

}  // namespace zipage
