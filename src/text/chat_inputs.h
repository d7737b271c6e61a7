// Messages and tools as a client sends them, brought into the shape that templates are written for.
//
// Thread-safety: pure functions. Internal to src/text: this header includes the JSON library.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/chat_template.h"

namespace zipage {

// The template's variables that come from a request: messages, tools, add_generation_prompt and the kwargs.
// Lists of text parts become one string unless the template walks through them; a tool call's arguments become an
// object where they are one. Errors name the field.
Result<nlohmann::ordered_json> chat_variables(const ChatTemplateInputs& inputs, bool keeps_content_parts);

// Whether a template looks into a content's parts itself.
bool keeps_content_parts(std::string_view template_source);

// The text of the last message, for continue_final_message.
Result<std::string> final_message_text(const nlohmann::ordered_json& variables);

}  // namespace zipage
