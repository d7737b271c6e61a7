#include "ready_request.h"

#include <nlohmann/json.hpp>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace zipage::apps {

RequestContext request_context(LLM& llm) {
  RequestContext context;
  context.defaults = llm.default_sampling();
  context.defaults.max_tokens = 0;
  context.vocab_size = llm.engine().model().vocab_size;
  context.max_logprobs = llm.engine().config().max_logprobs;
  context.tokenizer = &llm.tokenizer();
  return context;
}

Result<ReadyRequest> ready_request(LLM& llm, const RequestContext& context, const nlohmann::json& fields,
                                   std::string_view text) {
  ZIPAGE_ASSIGN_OR_RETURN(ParsedRequest parsed, parse_request(fields, RequestKind::kLine, context, text));
  if (parsed.n != 1) return invalid_argument("n must be 1: write the line n times instead").with_param("n");
  ReadyRequest ready;
  ready.request = std::move(parsed.requests.front());
  TextRequest& request = ready.request;
  const bool chat = !request.messages.empty();
  const std::string prompt = request.prompt.value_or("");
  ZIPAGE_RETURN_IF_ERROR(truncate_prompt(llm, parsed, request));
  if (chat) {
    request.reasoning_parser = "auto";
    ZIPAGE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, llm.tokenize(request));
    const std::string source = llm.chat_template() == nullptr ? "" : llm.chat_template()->source();
    ZIPAGE_ASSIGN_OR_RETURN(const auto format, reasoning_format("auto", llm.tokenizer(), source));
    if (format) ready.reasoning.emplace(*format, prompt_thought(llm.tokenizer(), ids));
    request.messages.clear();
    request.prompt_token_ids = ids;
  }
  if (parsed.echo) ready.echo = request.prompt_token_ids ? llm.detokenize(*request.prompt_token_ids, true) : prompt;
  return ready;
}

}  // namespace zipage::apps
