#include "text/chat_template.h"

#include <fmt/format.h>
#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <jinja/value.h>

#include <algorithm>
#include <unordered_set>

#include "text/chat_inputs.h"

namespace zipage {
namespace {

using nlohmann::ordered_json;

// The text of every string and key that came from the request, as it looks inside a JSON string.
using JsonTexts = std::unordered_set<std::string>;

bool plain_word(std::string_view text) {
  return !text.empty() && text.size() <= 32 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

void remember(const std::string& text, JsonTexts& texts) {
  const std::string quoted = jinja::value_to_json(jinja::mk_val<jinja::value_string>(text));
  texts.insert(quoted.substr(1, quoted.size() - 2));
}

jinja::value to_value(const ordered_json& node, bool is_role, JsonTexts& texts) {
  switch (node.type()) {
    case ordered_json::value_t::boolean:
      return jinja::mk_val<jinja::value_bool>(node.get<bool>());
    case ordered_json::value_t::number_integer:
    case ordered_json::value_t::number_unsigned:
      return jinja::mk_val<jinja::value_int>(node.get<int64_t>());
    case ordered_json::value_t::number_float:
      return jinja::mk_val<jinja::value_float>(node.get<double>());
    case ordered_json::value_t::string: {
      const auto& text = node.get_ref<const std::string&>();
      auto value = jinja::mk_val<jinja::value_string>(text);
      if (!is_role || !plain_word(text)) {
        value->mark_input();
        remember(text, texts);
      }
      return value;
    }
    case ordered_json::value_t::array: {
      auto value = jinja::mk_val<jinja::value_array>();
      for (const ordered_json& item : node) value->push_back(to_value(item, false, texts));
      return value;
    }
    case ordered_json::value_t::object: {
      auto value = jinja::mk_val<jinja::value_object>();
      for (const auto& [key, item] : node.items()) {
        remember(key, texts);
        value->insert(key, to_value(item, key == "role", texts));
      }
      return value;
    }
    default:
      return jinja::mk_val<jinja::value_none>();
  }
}

// The engine's `tojson` forgets where strings came from: those between quotes are found again here.
void append_template_text(std::string_view text, const JsonTexts& texts, std::vector<PromptSpan>& spans) {
  size_t done = 0;
  for (size_t open = text.find('"'); open != std::string_view::npos; open = text.find('"', open + 1)) {
    if (open < done) continue;
    size_t close = open + 1;
    while (close < text.size() && text[close] != '"') close += text[close] == '\\' ? 2 : 1;
    if (close >= text.size()) continue;
    const std::string_view inside = text.substr(open + 1, close - open - 1);
    if (inside.empty() || !texts.contains(std::string(inside))) continue;
    spans.push_back({std::string(text.substr(done, open + 1 - done)), true});
    spans.push_back({std::string(inside), false});
    done = close;
  }
  if (done < text.size()) spans.push_back({std::string(text.substr(done)), true});
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// Drops what the template wrote behind the last message's text.
Status cut_behind(std::string_view message, std::vector<PromptSpan>& spans) {
  std::string whole;
  for (const PromptSpan& span : spans) whole += span.text;
  const std::string_view trimmed = trim(message);
  const size_t found = trimmed.empty() ? std::string::npos : whole.rfind(trimmed);
  if (found == std::string::npos) {
    return invalid_argument("continue_final_message: the chat template does not show the last message's text")
        .with_param("continue_final_message");
  }
  // Trailing white space belongs to the message where the template kept it.
  size_t end = found + trimmed.size();
  const std::string_view tail = message.substr(message.find(trimmed) + trimmed.size());
  if (whole.compare(end, tail.size(), tail) == 0) end += tail.size();
  size_t begin = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (begin + spans[i].text.size() >= end) {
      spans[i].text.resize(end - begin);
      spans.resize(i + 1);
      return {};
    }
    begin += spans[i].text.size();
  }
  return {};
}

// The engine wraps what went wrong in excerpts of the template.
std::string innermost(std::string_view what) {
  for (const std::string_view mark : {"Jinja Exception: ", "Error: "}) {
    if (const size_t at = what.rfind(mark); at != std::string_view::npos) {
      return std::string(trim(what.substr(at + mark.size())));
    }
  }
  return std::string(trim(what));
}

class JinjaTemplate final : public ChatTemplate {
 public:
  JinjaTemplate(std::string source, jinja::program program, std::string bos_token, std::string eos_token)
      : source_(std::move(source)),
        program_(std::move(program)),
        bos_token_(std::move(bos_token)),
        eos_token_(std::move(eos_token)),
        keeps_parts_(keeps_content_parts(source_)) {}

  const std::string& source() const override { return source_; }

  Result<std::vector<PromptSpan>> render(const ChatTemplateInputs& inputs) const override {
    ZIPAGE_ASSIGN_OR_RETURN(const ordered_json variables, chat_variables(inputs, keeps_parts_));
    std::vector<PromptSpan> spans;
    try {
      spans = run(variables);
    } catch (const std::exception& error) {
      return invalid_argument(fmt::format("chat template: {}", innermost(error.what()))).with_param("messages");
    }
    if (inputs.continue_final_message) {
      ZIPAGE_ASSIGN_OR_RETURN(const std::string text, final_message_text(variables));
      ZIPAGE_RETURN_IF_ERROR(cut_behind(text, spans));
    }
    return spans;
  }

 private:
  std::vector<PromptSpan> run(const ordered_json& variables) const {
    jinja::context context(source_);
    if (!bos_token_.empty()) context.set_val("bos_token", jinja::mk_val<jinja::value_string>(bos_token_));
    if (!eos_token_.empty()) context.set_val("eos_token", jinja::mk_val<jinja::value_string>(eos_token_));
    JsonTexts texts;
    for (const auto& [key, value] : variables.items()) context.set_val(key, to_value(value, false, texts));
    jinja::runtime runtime(context);
    const auto parts = jinja::runtime::gather_string_parts(runtime.execute(program_));
    std::vector<PromptSpan> spans;
    for (const auto& part : parts->val_str.parts) {
      if (part.val.empty()) continue;
      if (part.is_input) {
        spans.push_back({part.val, false});
      } else {
        append_template_text(part.val, texts, spans);
      }
    }
    return spans;
  }

  std::string source_;
  jinja::program program_;
  std::string bos_token_, eos_token_;
  bool keeps_parts_;
};

}  // namespace

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(std::string source, std::string bos_token,
                                                          std::string eos_token) {
  try {
    jinja::lexer lexer;
    jinja::program program = jinja::parse_from_tokens(lexer.tokenize(source));
    return std::unique_ptr<ChatTemplate>(std::make_unique<JinjaTemplate>(std::move(source), std::move(program),
                                                                         std::move(bos_token), std::move(eos_token)));
  } catch (const std::exception& error) {
    return invalid_argument(fmt::format("the chat template cannot be parsed: {}", trim(error.what())));
  }
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::vector<PromptSpan>& spans) {
  std::string text;
  std::vector<ByteRange> literal;
  for (const PromptSpan& span : spans) {
    if (!span.from_template && !span.text.empty()) literal.push_back({text.size(), text.size() + span.text.size()});
    text += span.text;
  }
  return tokenizer.encode_mixed(text, literal);
}

}  // namespace zipage
