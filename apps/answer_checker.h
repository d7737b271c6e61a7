// Whether an answer is right.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "zipage/status.h"

namespace zipage::apps {

enum class AnswerChecker : uint8_t {
  kExact,   // the answer's text, without the spaces around it
  kNumber,  // the last number of the answer, by value: "It is 1,200." answers 1200
  kBoxed,   // the last \boxed{...}, by value when both are numbers, else by text without spaces
};

// By the name of --checker; an unknown one names the nearest.
Result<AnswerChecker> answer_checker(std::string_view name);

// answer: what the model wrote behind its thought.
bool is_right(AnswerChecker checker, std::string_view answer, std::string_view expected);

}  // namespace zipage::apps
