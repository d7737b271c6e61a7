#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "load/gguf.h"
#include "load/model_files.h"
#include "text/chat_template.h"

namespace zipage {
namespace {

using nlohmann::json;

// "</s>" or {"content": "</s>", ...}.
std::string token_content(const json& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end()) return {};
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object() && it->contains("content") && (*it)["content"].is_string()) return (*it)["content"];
  return {};
}

Status read_named(const json& templates, const std::string& origin, ChatTemplateFiles& out) {
  if (templates.is_string()) {
    out.source = templates;
    return {};
  }
  if (!templates.is_array()) return {};
  for (const json& entry : templates) {
    if (!entry.is_object() || token_content(entry, "name").empty()) {
      return {StatusCode::kDataLoss, fmt::format("{}: chat_template has an entry without a name", origin)};
    }
    const std::string name = token_content(entry, "name"), source = token_content(entry, "template");
    if (name == "default") out.source = source;
    if (name == "tool_use") out.tool_use_source = source;
  }
  return {};
}

void read_gguf(const GgufFile& gguf, const Tokenizer& tokenizer, ChatTemplateFiles& out) {
  const auto token = [&](const char* key) {
    const auto id = gguf.get_int(key);
    return id && *id >= 0 && *id < tokenizer.vocab_size() ? std::string(tokenizer.token_text(static_cast<int32_t>(*id)))
                                                          : std::string();
  };
  out.source = gguf.get_string("tokenizer.chat_template").value_or("");
  out.tool_use_source = gguf.get_string("tokenizer.chat_template.tool_use").value_or("");
  out.bos_token = token("tokenizer.ggml.bos_token_id");
  out.eos_token = token("tokenizer.ggml.eos_token_id");
}

}  // namespace

Result<ChatTemplateFiles> read_chat_template(const ModelFiles& files, const Tokenizer& tokenizer) {
  ChatTemplateFiles out;
  if (files.gguf() != nullptr) read_gguf(*files.gguf(), tokenizer, out);
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const auto text = files.side_file(name);
    if (!text) continue;
    const std::string origin = fmt::format("{}/{}", files.directory(), name);
    const json config = json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) return Status(StatusCode::kDataLoss, fmt::format("{}: not a JSON object", origin));
    for (const auto& [key, token] : {std::pair{"bos_token", &out.bos_token}, std::pair{"eos_token", &out.eos_token}}) {
      if (std::string content = token_content(config, key); !content.empty()) *token = std::move(content);
    }
    if (const auto it = config.find("chat_template"); it != config.end()) {
      ZIPAGE_RETURN_IF_ERROR(read_named(*it, origin, out));
    }
  }
  if (auto source = files.side_file("chat_template.jinja")) out.source = std::move(*source);
  return out;
}

}  // namespace zipage
