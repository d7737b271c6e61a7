#include "text/reasoning_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace zipage {
namespace {

std::string_view without_trailing_space(std::string_view text) {
  const size_t last = text.find_last_not_of(" \t\r\n");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

// Length of the longest end of `text` that begins `tag` without being it.
size_t held_length(std::string_view text, std::string_view tag) {
  for (size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (text.ends_with(tag.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

PromptThought prompt_thought(std::string_view prompt) {
  const std::string_view end = without_trailing_space(prompt);
  if (end.ends_with("</think>")) return PromptThought::kClosed;
  if (end.ends_with("<think>")) return PromptThought::kOpened;
  return PromptThought::kUntouched;
}

PromptThought prompt_thought(const Tokenizer& tokenizer, std::span<const int32_t> prompt_ids) {
  constexpr size_t kTail = 16;  // the tag and white space behind it, byte by byte at worst
  return prompt_thought(tokenizer.decode(prompt_ids.last(std::min(kTail, prompt_ids.size())), false));
}

Result<std::optional<ReasoningFormat>> reasoning_format(std::string_view parser, const Tokenizer& tokenizer,
                                                        std::string_view template_source) {
  ReasoningFormat format;
  format.begin_id = tokenizer.token_id(format.begin);
  format.end_id = tokenizer.token_id(format.end);
  if (parser.empty()) return std::optional<ReasoningFormat>();
  if (parser == "auto") {
    const bool known =
        (format.begin_id >= 0 && format.end_id >= 0) || template_source.find(format.end) != std::string_view::npos;
    return known ? std::optional(format) : std::nullopt;
  }
  if (parser == "deepseek_r1") {
    format.always_thinks = true;
  } else if (parser != "qwen3") {
    return invalid_argument(fmt::format("unknown reasoning parser '{}', known are auto, qwen3 and deepseek_r1", parser))
        .with_param("reasoning-parser");
  }
  return std::optional(format);
}

ReasoningParser::ReasoningParser(ReasoningFormat format, PromptThought prompt)
    : format_(std::move(format)),
      state_(prompt == PromptThought::kClosed                            ? State::kAnswer
             : prompt == PromptThought::kOpened || format_.always_thinks ? State::kThought
                                                                         : State::kBefore) {}

void ReasoningParser::emit(std::string_view text, Delta& delta) {
  (state_ == State::kThought ? delta.reasoning : delta.content).append(text);
}

void ReasoningParser::advance(Delta& delta) {
  if (state_ == State::kThought && at_start_) {
    const std::string_view begin = format_.begin;
    if (held_.size() < begin.size() && begin.starts_with(held_)) return;
    if (held_.starts_with(begin)) held_.erase(0, begin.size());
    at_start_ = false;
  }
  if (state_ == State::kBefore) {
    const size_t at = held_.find(format_.begin);
    if (at != std::string::npos) {
      emit(std::string_view(held_).substr(0, at), delta);
      held_.erase(0, at + format_.begin.size());
      state_ = State::kThought;
      at_start_ = false;
    }
  }
  if (state_ == State::kThought) {
    const size_t at = held_.find(format_.end);
    if (at != std::string::npos) {
      emit(std::string_view(held_).substr(0, at), delta);
      held_.erase(0, at + format_.end.size());
      state_ = State::kAnswer;
    }
  }
  const size_t keep =
      state_ == State::kAnswer ? 0 : held_length(held_, state_ == State::kBefore ? format_.begin : format_.end);
  emit(std::string_view(held_).substr(0, held_.size() - keep), delta);
  held_.erase(0, held_.size() - keep);
}

ReasoningParser::Delta ReasoningParser::push(std::string_view text) {
  Delta delta;
  held_.append(text);
  advance(delta);
  return delta;
}

ReasoningParser::Delta ReasoningParser::push_token(int32_t id, std::string_view text) {
  const bool begins = id >= 0 && id == format_.begin_id && state_ != State::kAnswer;
  const bool ends = id >= 0 && id == format_.end_id && state_ == State::kThought;
  if (!begins && !ends) return push(text);
  return push(begins ? format_.begin : format_.end);
}

ReasoningParser::Delta ReasoningParser::finish() {
  Delta delta;
  emit(std::exchange(held_, {}), delta);
  return delta;
}

}  // namespace zipage
