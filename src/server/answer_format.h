// OpenAI's answers to a completion or a chat: whole, or chunk by chunk.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/generation.h"
#include "text/tokenizer.h"

namespace zipage {

struct AnswerOptions {
  bool chat = false;
  std::string id, model;
  int64_t created = 0;  // seconds since 1970
  std::string role = "assistant";
  std::string echoed_message;  // chat with echo: what the answer continues
  bool return_tokens_as_token_ids = false;
  bool include_reasoning = true;  // chat: thoughts are part of the answer
};

class AnswerFormat {
 public:
  AnswerFormat(AnswerOptions options, const Generation& generation, const Tokenizer& tokenizer);

  // The whole answer. `choices` in order, each merged from all of its deltas.
  std::string whole(std::vector<ChoiceDelta>&& choices);

  // Chunks are JSON texts. What a stream of chats begins with, one chunk for each choice.
  std::vector<std::string> opening();
  // Whether a delta has anything to show; append_chunk() is for those that have.
  bool shows(const ChoiceDelta& delta) const;
  void append_chunk(std::string& out, const ChoiceDelta& delta);
  std::string usage_chunk() const;

 private:
  struct ChoiceState {
    bool begun = false, calls_tools = false;
    size_t text_offset = 0;
  };
  void append_finish(std::string& out, const ChoiceDelta& delta, const ChoiceState& state) const;
  void append_completion_choice(std::string& out, const ChoiceDelta& delta, bool whole);
  void append_completion_logprobs(std::string& out, const ChoiceDelta& delta, ChoiceState& state, bool echo);
  void append_chat_choice(std::string& out, const ChoiceDelta& delta);
  void append_chat_message(std::string& out, const ChoiceDelta& delta);
  void append_chunk_end(std::string& out, int num_output_tokens, int index) const;
  static void append_tool_calls(std::string& out, const std::vector<ToolCallDelta>& calls, bool whole);

  AnswerOptions options_;
  const Generation& generation_;
  const ParsedRequest& parsed_;
  const Tokenizer& tokenizer_;
  std::string chunk_head_, whole_head_;  // up to the choices
  std::vector<ChoiceState> states_;
};

}  // namespace zipage
