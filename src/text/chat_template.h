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

struct ChatTemplateInputs {
  std::string messages;  // JSON array
  std::string tools;     // JSON array or ""
  std::string kwargs;    // JSON object or "": extra variables (enable_thinking)
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// A rendered prompt in spans: what the template wrote, and what came from a message. Users' text containing
// "<|im_end|>" is tokenized as text, not as the control token.
struct PromptSpan {
  std::string text;
  bool from_template = true;
};

class ChatTemplate {
 public:
  static Result<std::unique_ptr<ChatTemplate>> parse(std::string source, std::string bos_token, std::string eos_token);
  virtual ~ChatTemplate() = default;
  // raise_exception and type errors of the template: kInvalidArgument with the template's message.
  virtual Result<std::vector<PromptSpan>> render(const ChatTemplateInputs& inputs) const = 0;
};

// Token ids of a rendered prompt. No special tokens are added: templates write their own.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::vector<PromptSpan>& spans);

}  // namespace zipage
