// A request as people send it, in OpenAI's fields and vLLM's and ours, turned into a TextRequest. Serves the server's
// bodies and the lines of `generate --prompts` alike.
//
// Thread-safety: pure functions; truncate_prompt() may run concurrently on one LLM.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_fields.h"
#include "text/json_fields.h"
#include "zipage/llm.h"
#include "zipage/status.h"

namespace zipage {

enum class RequestKind : uint8_t {
  kCompletion,  // `prompt`: a string, token ids, or a list of either
  kChat,        // `messages`
  kLine,        // one of `prompt` (a string), `prompt_token_ids`, `messages`
};

struct RequestContext {
  SamplingParams defaults;               // for fields that are absent or null; max_tokens 0 = the rest of the context
  int vocab_size = 0;                    // embedding rows: token ids lie below
  int max_logprobs = 20;                 // -1 = the vocabulary's size
  const Tokenizer* tokenizer = nullptr;  // null only where no request has bad_words
};

struct ParsedRequest {
  std::vector<TextRequest> requests;  // one for each prompt; equal but for the prompt
  std::string id;                     // `id` of a line or `request_id`; "" = none given
  std::string model;
  int n = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;
  bool echo = false;
  bool return_token_ids = false;
  bool kv_stats = false;
  ToolUse tool_use;                           // of chats
  std::optional<int> truncate_prompt_tokens;  // keep the last so many; -1 = as many as fit
};

// Errors are kInvalidArgument, one sentence, param() names the field. Fields nobody knows are ignored, as OpenAI's
// servers do. `text`: what `body` was parsed from, where that is at hand: schemas keep the order of their properties
// then.
Result<ParsedRequest> parse_request(const nlohmann::json& body, RequestKind kind, const RequestContext& context,
                                    std::string_view text = {});

// The fields of such a request but for its prompt, as they are checked.
FieldTable request_fields(RequestKind kind, const RequestContext& context);

// Cuts the prompt to its last truncate_prompt_tokens; it becomes token ids then. Does nothing where none is asked for.
Status truncate_prompt(LLM& llm, const ParsedRequest& parsed, TextRequest& request);

}  // namespace zipage
