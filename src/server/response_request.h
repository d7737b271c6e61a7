// A body of /v1/responses as the chat that it asks for.
//
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "zipage/status.h"

namespace zipage {

struct ResponseChat {
  std::string body;  // a chat completion's, with members in the order that they came in
  bool logprobs = false;
};

// `text`: what `body` was parsed from. Errors name the field.
Result<ResponseChat> response_chat(const nlohmann::json& body, std::string_view text);

}  // namespace zipage
