// What a model brings for text, and the LLM that is made of it and an engine.
//
// Thread-safety: load_text_model() and make_llm() may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "zipage/llm.h"

namespace zipage {

struct TextModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // null: the model has none
  std::unique_ptr<ChatTemplate> tool_template;  // for requests with tools; null: the same
  std::string bos_token, eos_token;             // of templates that a request brings
  SamplingParams default_sampling;
  std::vector<int32_t> eos_token_ids;  // of the tokenizer and of generation_config.json
};

// Reads tokenizer, templates and generation_config.json of config.model (and of config.tokenizer,
// config.generation_config). `chat_template`: a source in place of the model's.
Result<TextModel> load_text_model(const EngineConfig& config, std::string chat_template);

// Runs `engine` on a thread of its own.
std::unique_ptr<LLM> make_llm(std::unique_ptr<Engine> engine, TextModel model);

}  // namespace zipage
