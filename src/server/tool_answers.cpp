#include "server/tool_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace zipage {

std::string random_id(std::string_view prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}{:016x}{:016x}", prefix, random(), random());
}

void use_tools(const Serving& serving, ParsedRequest& parsed, Generation::Options& options) {
  using Choice = ToolUse::Choice;
  if (parsed.tool_use.choice == Choice::kAuto && !serving.options().auto_tool_choice) parsed.tool_use = {};
  const ToolUse& use = parsed.tool_use;
  const LLM& llm = *serving.llm();
  const ToolFormat format = serving.tools();
  for (TextRequest& request : parsed.requests) {
    const bool must_call = use.choice == Choice::kRequired || use.choice == Choice::kNamed;
    const bool strict = std::ranges::any_of(use.tools, &Tool::strict);
    if (must_call) {
      request.structured_output = tool_call_grammar(format, use.tools, use.several);
      request.structured_field = "tools";
    } else if (use.choice == Choice::kAuto && strict && format == ToolFormat::kHermes && !request.structured_output) {
      request.structured_output = optional_tool_call_grammar(use.tools, use.several);
      request.structured_field = "tools";
    }
    // Models whose tags are control tokens: their text must not be skipped before the parser sees it.
    const AddedToken* tag = llm.tokenizer().added_token(llm.tokenizer().token_id("<tool_call>"));
    if (use.choice != Choice::kNone && tag != nullptr && tag->special) request.text.skip_special_tokens = false;
  }
  if (use.choice == Choice::kNone) return;
  options.tool_parser = [format] { return make_tool_parser(format, [] { return random_id("call_"); }); };
}

void prepare_generation(Serving& serving, const ExchangePtr& exchange, ParsedRequest parsed, std::string id,
                        Generation::Options options,
                        std::function<void(const std::shared_ptr<Generation>& generation)> start) {
  const bool has_grammar = parsed.requests.front().structured_output.has_value();
  const auto request = std::make_shared<ParsedRequest>(std::move(parsed));
  auto prepare = [&serving, exchange, request, id = std::move(id), options = std::move(options),
                  start = std::move(start)] {
    auto generation = Generation::prepare(serving, std::move(*request), id, options);
    if (!generation.ok()) return respond(exchange, error_response(generation.status()));
    exchange->post([start, generation = *std::move(generation)] { start(generation); });
  };
  has_grammar ? serving.grammar_threads().post(std::move(prepare)) : prepare();
}

}  // namespace zipage
