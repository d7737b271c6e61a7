// What a client sent as a grammar, checked and brought into XGrammar's forms.
//
// Thread-safety: pure functions. Internal to src/grammar.
#pragma once

#include <string>

#include "zipage/status.h"
#include "zipage/structured_output.h"

namespace zipage {

// Refuses what needs no compiler to be refused: sources that are too long, no JSON, nested too deep, and schemas that
// refer to other documents.
Status check_source(const StructuredOutput& what, size_t most_bytes);

// EBNF of a JSON list of strings.
Result<std::string> choice_grammar(const std::string& choices);

// A sentence out of what XGrammar throws.
std::string readable(std::string message);

// Whether a warning of XGrammar means that answers would not be kept to what was asked for.
bool drops_a_constraint(const std::string& warning);

}  // namespace zipage
