// The known word that is nearest to a mistyped one, for "unknown flag --kv-bugdet, did you mean --kv-budget?".
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace zipage {

// Returns the candidate with the smallest edit distance (transpositions count as one), or "" when none is within
// max(2, a third of the word's length). Equal distances: the earlier candidate.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace zipage
