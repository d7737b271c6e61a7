// What a grammar needs to know of a model's tokenizer.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "grammar/grammar.h"
#include "text/reasoning_parser.h"
#include "text/tokenizer.h"

namespace zipage {

// `vocab`: embedding rows. Control tokens are no part of an answer; of `eos_ids` those that are rows may end it.
GrammarVocabulary grammar_vocabulary(const Tokenizer& tokenizer, int vocab, std::span<const int32_t> eos_ids);

// Where a thought in this format stands after this prompt.
ThoughtGate thought_gate(const ReasoningFormat& format, const Tokenizer& tokenizer,
                         std::span<const int32_t> prompt_ids);

}  // namespace zipage
