// Messages to prompt text by the model's own Jinja template.
//
// Thread-safety: immutable after parsing; render() may run concurrently.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "zipage/status.h"

namespace zipage {

class ModelFiles;

struct ChatTemplateInputs {
  std::string messages;  // JSON array
  std::string tools;     // JSON array or ""
  std::string kwargs;    // JSON object or "": extra variables (enable_thinking)
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// A rendered prompt in spans: what the template wrote, and what came from a message, a tool or a variable. Users' text
// containing "<|im_end|>" is tokenized as text, not as the control token. Roles are the template's when they are plain
// words, for templates that make a control token of one ("<|" + role + "|>").
struct PromptSpan {
  std::string text;
  bool from_template = true;
};

class ChatTemplate {
 public:
  // Empty tokens are undefined in the template.
  static Result<std::unique_ptr<ChatTemplate>> parse(std::string source, std::string bos_token, std::string eos_token);
  virtual ~ChatTemplate() = default;
  // raise_exception and type errors of the template: kInvalidArgument with the template's message.
  virtual Result<std::vector<PromptSpan>> render(const ChatTemplateInputs& inputs) const = 0;
  virtual const std::string& source() const = 0;
};

// Token ids of a rendered prompt: those of its whole text, but for control tokens in messages. No special tokens are
// added: templates write their own.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::vector<PromptSpan>& spans);

// What a model brings for its chats.
struct ChatTemplateFiles {
  std::string source;           // empty: the model has none
  std::string tool_use_source;  // for requests with tools; empty: the same
  std::string bos_token, eos_token;
};
// From chat_template.jinja, tokenizer_config.json (one template or a list of named ones) or GGUF metadata.
Result<ChatTemplateFiles> read_chat_template(const ModelFiles& files, const Tokenizer& tokenizer);

}  // namespace zipage
