#include "start.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "base/log.h"
#include "shipped_model.h"

namespace zipage::apps {

void add_common(Options& options, CommonFlags& flags, std::string_view json_help) {
  options.add("output-json", "FILE", json_help, &flags.output_json);
  options.add("quiet", "no log and no progress on stderr", &flags.quiet, 'q');
  options.add_engine(&flags.config);
}

void add_chat_template(Options& options, CommonFlags& flags) {
  options.add("chat-template", "FILE|TEXT", "Jinja template in place of the model's", &flags.chat_template);
}

std::string effective_flags(const EngineConfig& config) {
  const EngineConfig defaults;
  std::string text;
  for (const Knob& knob : knobs()) {
    const std::string value = knob_value(config, knob.key);
    if (value != knob_value(defaults, knob.key)) text += fmt::format(" --{} {}", knob.key, value);
  }
  return text.empty() ? text : text.substr(1);
}

namespace {

// As vLLM takes it: a path, or the text itself, which no path looks like.
Result<std::string> chat_template_source(const std::string& flag) {
  if (flag.find("{%") != std::string::npos || flag.find("{{") != std::string::npos || flag.empty()) return flag;
  std::ifstream file(flag, std::ios::binary);
  if (!file) {
    return invalid_argument(fmt::format("--chat-template: {} cannot be read", flag)).with_param("chat-template");
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

Result<std::unique_ptr<LLM>> start_llm(CommonFlags& flags) {
  set_log_level(flags.quiet ? LogLevel::kError : LogLevel::kInfo);
  ZIPAGE_RETURN_IF_ERROR(default_model(flags.config.model));
  ZIPAGE_RETURN_IF_ERROR(validate(flags.config));
  ZIPAGE_ASSIGN_OR_RETURN(std::string chat_template, chat_template_source(flags.chat_template));
  ZIPAGE_ASSIGN_OR_RETURN(std::unique_ptr<LLM> llm, LLM::create(flags.config, std::move(chat_template)));
  log_info("configuration, where it is not the default: {}", effective_flags(llm->engine().config()));
  log_info("{}", llm->engine().memory_plan());
  return llm;
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file.fail()) return Status(StatusCode::kInternal, fmt::format("{}: cannot be written", path)).with_param(path);
  return {};
}

}  // namespace zipage::apps
