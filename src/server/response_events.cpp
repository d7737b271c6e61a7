#include "server/response_events.h"

#include <utility>

#include "server/openai_json.h"

namespace zipage {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json part_of(std::string_view type, std::string text, Json logprobs) {
  Json part{{"type", type}, {"text", std::move(text)}};
  if (type == "output_text") {
    part["annotations"] = Json::array();
    part["logprobs"] = std::move(logprobs);
  }
  return part;
}

}  // namespace

ResponseEvents::ResponseEvents(Json response, std::function<std::string(std::string_view)> make_id,
                               const Tokenizer& tokenizer, Sink sink)
    : response_(std::move(response)), make_id_(std::move(make_id)), tokenizer_(tokenizer), sink_(std::move(sink)) {
  response_["status"] = "in_progress";
  response_["output"] = Json::array();
  response_["usage"] = nullptr;
}

void ResponseEvents::emit(std::string_view type, Json event) {
  if (!sink_) return;
  Json whole{{"type", type}, {"sequence_number", sequence_++}};
  whole.update(std::move(event));
  sink_(type, text_of(whole));
}

void ResponseEvents::begin() {
  emit("response.created", {{"response", response_}});
  emit("response.in_progress", {{"response", response_}});
}

void ResponseEvents::open(Open kind, Json item, std::string_view part_type) {
  close(true);
  open_ = kind;
  item_ = std::move(item);
  text_.clear();
  logprobs_ = Json::array();
  const size_t index = response_["output"].size();
  emit("response.output_item.added", {{"output_index", index}, {"item", item_}});
  if (part_type.empty()) return;
  emit("response.content_part.added", {{"item_id", item_["id"]},
                                       {"output_index", index},
                                       {"content_index", 0},
                                       {"part", part_of(part_type, "", Json::array())}});
}

void ResponseEvents::close(bool complete) {
  if (open_ == Open::kNone) return;
  const size_t index = response_["output"].size();
  const Json where{{"item_id", item_["id"]}, {"output_index", index}};
  const auto with = [&](Json more) {
    Json event = where;
    event.update(std::move(more));
    return event;
  };
  if (open_ == Open::kCall) {
    item_["arguments"] = text_;
    emit("response.function_call_arguments.done", with({{"name", item_["name"]}, {"arguments", text_}}));
  } else {
    const bool message = open_ == Open::kMessage;
    Json part = part_of(message ? "output_text" : "reasoning_text", text_, logprobs_);
    Json done{{"content_index", 0}, {"text", text_}};
    if (message) done["logprobs"] = logprobs_;
    emit(message ? "response.output_text.done" : "response.reasoning_text.done", with(std::move(done)));
    emit("response.content_part.done", with({{"content_index", 0}, {"part", part}}));
    item_["content"] = Json::array({std::move(part)});
  }
  item_["status"] = complete ? "completed" : "incomplete";
  emit("response.output_item.done", {{"output_index", index}, {"item", item_}});
  response_["output"].push_back(std::move(item_));
  open_ = Open::kNone;
}

Json ResponseEvents::logprobs_of(const std::vector<TokenLogprobs>& logprobs) const {
  if (logprobs.empty()) return Json::array();
  std::string text;
  append_chat_logprobs(text, logprobs, tokenizer_);
  return Json::parse(text)["content"];
}

void ResponseEvents::add_text(Open kind, const std::string& text, const std::vector<TokenLogprobs>& logprobs) {
  const bool message = kind == Open::kMessage;
  if (open_ != kind) {
    Json item;
    if (message) {
      item = {{"id", make_id_("msg_")}, {"type", "message"}, {"status", "in_progress"}, {"role", "assistant"}};
    } else {
      item = {{"id", make_id_("rs_")}, {"type", "reasoning"}, {"status", "in_progress"}, {"summary", Json::array()}};
    }
    item["content"] = Json::array();
    open(kind, std::move(item), message ? "output_text" : "reasoning_text");
  }
  text_ += text;
  Json event{
      {"item_id", item_["id"]}, {"output_index", response_["output"].size()}, {"content_index", 0}, {"delta", text}};
  if (message) {
    Json entries = logprobs_of(logprobs);
    logprobs_.insert(logprobs_.end(), entries.begin(), entries.end());
    event["logprobs"] = std::move(entries);
  }
  emit(message ? "response.output_text.delta" : "response.reasoning_text.delta", std::move(event));
}

void ResponseEvents::add_call(const ToolCallDelta& call) {
  if (!call.id.empty()) {
    open(Open::kCall,
         {{"id", make_id_("fc_")},
          {"type", "function_call"},
          {"status", "in_progress"},
          {"call_id", call.id},
          {"name", call.name},
          {"arguments", ""}},
         "");
  }
  if (call.arguments.empty()) return;
  text_ += call.arguments;
  emit("response.function_call_arguments.delta",
       {{"item_id", item_["id"]}, {"output_index", response_["output"].size()}, {"delta", call.arguments}});
}

void ResponseEvents::add(const ChoiceDelta& delta) {
  if (!delta.reasoning.empty()) add_text(Open::kReasoning, delta.reasoning, {});
  if (!delta.content.empty()) add_text(Open::kMessage, delta.content, delta.logprobs);
  for (const ToolCallDelta& call : delta.tool_calls) add_call(call);
  if (delta.finished()) finish_ = delta.finish_reason;
}

void ResponseEvents::end(const Usage& usage) {
  const bool complete = finish_ == FinishReason::kStop;
  close(complete);
  // An answer without a word is a message all the same.
  if (response_["output"].empty()) {
    add_text(Open::kMessage, "", {});
    close(complete);
  }
  response_["status"] = complete ? "completed" : "incomplete";
  if (!complete) {
    response_["incomplete_details"] = {
        {"reason", finish_ == FinishReason::kLength ? "max_output_tokens" : "content_filter"}};
  }
  response_["usage"] = {{"input_tokens", usage.prompt_tokens},
                        {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
                        {"output_tokens", usage.completion_tokens},
                        {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
                        {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  emit(complete ? "response.completed" : "response.incomplete", {{"response", response_}});
}

void ResponseEvents::fail(const Status& status) {
  response_["status"] = "failed";
  response_["error"] = {{"code", "server_error"}, {"message", status.message()}};
  emit("response.failed", {{"response", response_}});
}

}  // namespace zipage
