// What every command that runs a model does first and last.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "options.h"
#include "zipage/llm.h"

namespace zipage::apps {

struct CommonFlags {
  EngineConfig config;
  bool quiet = false;
  std::string output_json;
  std::string chat_template;  // a file's path, or the template itself
};

// --quiet, --output-json and the engine's knobs.
void add_common(Options& options, CommonFlags& flags, std::string_view json_help);

// --chat-template, for commands that take messages.
void add_chat_template(Options& options, CommonFlags& flags);

// Loads the model (the one that ships with zipage when none is named). The effective configuration and the memory
// plan go to stderr unless quiet.
Result<std::unique_ptr<LLM>> start_llm(CommonFlags& flags);

// The knobs that differ from their defaults, as flags.
std::string effective_flags(const EngineConfig& config);

// Writes text to a file; errors name it.
Status write_file(const std::string& path, const std::string& text);

}  // namespace zipage::apps
