// From the JSON fields of a line to a request that can be submitted.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "text/reasoning_parser.h"
#include "text/request_json.h"
#include "zipage/llm.h"

namespace zipage::apps {

// Rules and defaults for requests to this model: those of its generation_config.json, and as much output as the
// context has room for.
RequestContext request_context(LLM& llm);

struct ReadyRequest {
  TextRequest request;
  std::optional<ReasoningParser> reasoning;  // of a chat with a model that thinks
  std::string echo;                          // the prompt's text where the line asks for it
};

// fields: one of prompt, prompt_token_ids and messages, and any request field. `text`: as of parse_request().
Result<ReadyRequest> ready_request(LLM& llm, const RequestContext& context, const nlohmann::json& fields,
                                   std::string_view text = {});

}  // namespace zipage::apps
