#include "text/text_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "load/gguf.h"
#include "load/model_files.h"
#include "text/generation_config.h"

namespace zipage {
namespace {

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const EngineConfig& config, const ModelFiles& files) {
  if (!config.tokenizer.empty()) {
    std::filesystem::path path = config.tokenizer;
    if (std::filesystem::is_directory(path)) path /= "tokenizer.json";
    return Tokenizer::from_json_file(path.string());
  }
  if (files.gguf() != nullptr) return Tokenizer::from_gguf(*files.gguf());
  const std::string origin = files.directory() + "/tokenizer.json";
  const auto content = files.side_file("tokenizer.json");
  if (!content) {
    return Status(StatusCode::kNotFound, fmt::format("{} is missing; name a tokenizer with --tokenizer", origin));
  }
  return Tokenizer::from_json(*content, origin);
}

Status read_defaults(const EngineConfig& config, const ModelFiles& files, GenerationDefaults& defaults) {
  if (config.generation_config == "auto") {
    if (const auto content = files.side_file("generation_config.json")) {
      ZIPAGE_RETURN_IF_ERROR(
          apply_generation_config(*content, files.directory() + "/generation_config.json", defaults));
    }
  } else if (config.generation_config != "vllm") {
    const std::string path = config.generation_config + "/generation_config.json";
    std::ifstream file(path, std::ios::binary);
    if (!file)
      return Status(StatusCode::kNotFound, fmt::format("{} cannot be read", path)).with_param("generation-config");
    std::ostringstream content;
    content << file.rdbuf();
    ZIPAGE_RETURN_IF_ERROR(apply_generation_config(content.view(), path, defaults));
  }
  if (config.override_generation_config.empty()) return {};
  return apply_generation_config(config.override_generation_config, "--override-generation-config", defaults);
}

void add_eos(int64_t id, std::vector<int32_t>& ids) {
  if (id >= 0 && id <= INT32_MAX && std::find(ids.begin(), ids.end(), id) == ids.end()) {
    ids.push_back(static_cast<int32_t>(id));
  }
}

Result<std::unique_ptr<ChatTemplate>> parse_template(std::string source, const TextModel& model) {
  if (source.empty()) return std::unique_ptr<ChatTemplate>();
  return ChatTemplate::parse(std::move(source), model.bos_token, model.eos_token);
}

}  // namespace

Result<TextModel> load_text_model(const EngineConfig& config, std::string chat_template) {
  ZIPAGE_ASSIGN_OR_RETURN(const auto files, ModelFiles::open(config.model, config.load_format));
  TextModel model;
  ZIPAGE_ASSIGN_OR_RETURN(model.tokenizer, open_tokenizer(config, *files));
  ZIPAGE_ASSIGN_OR_RETURN(ChatTemplateFiles templates, read_chat_template(*files, *model.tokenizer));
  model.bos_token = templates.bos_token;
  model.eos_token = templates.eos_token;
  if (!chat_template.empty()) {
    templates.source = std::move(chat_template);
    templates.tool_use_source.clear();
  }
  ZIPAGE_ASSIGN_OR_RETURN(model.chat_template, parse_template(std::move(templates.source), model));
  ZIPAGE_ASSIGN_OR_RETURN(model.tool_template, parse_template(std::move(templates.tool_use_source), model));

  GenerationDefaults defaults;
  ZIPAGE_RETURN_IF_ERROR(read_defaults(config, *files, defaults));
  model.default_sampling = defaults.sampling;
  model.eos_token_ids = std::move(defaults.eos_token_ids);
  if (!model.eos_token.empty()) add_eos(model.tokenizer->token_id(model.eos_token), model.eos_token_ids);
  if (files->gguf() != nullptr) {
    for (const char* key :
         {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
      add_eos(files->gguf()->get_int(key).value_or(-1), model.eos_token_ids);
    }
  }
  return model;
}

}  // namespace zipage
