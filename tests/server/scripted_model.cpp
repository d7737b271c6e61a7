#include "server/scripted_model.h"

#include <gtest/gtest.h>

#include "base/parse_value.h"

namespace zipage {
namespace {

std::string reasoner() {
  return std::string(ZIPAGE_SOURCE_DIR) + "/models/reasoner/model";
}

// What follows the last `name(` in the prompt, up to its "]".
std::optional<std::string> argument(const std::string& prompt, const std::string& name) {
  const size_t begin = prompt.rfind(name + "[");
  if (begin == std::string::npos) return std::nullopt;
  const size_t from = begin + name.size() + 1;
  return prompt.substr(from, prompt.find(']', from) - from);
}

class Script {
 public:
  explicit Script(std::shared_ptr<Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  int32_t next(const Sequence& sequence, const std::vector<int32_t>& text_so_far) const {
    const std::span<const int32_t> tokens(text_so_far);
    const std::string prompt = tokenizer_->decode(tokens.first(static_cast<size_t>(sequence.num_prompt)), false);
    const size_t at = tokens.size() - static_cast<size_t>(sequence.num_prompt);
    std::vector<int32_t> output;
    if (const auto text = argument(prompt, "LOOP")) {
      output = tokenizer_->encode(*text, false);
      return output[at % output.size()];
    }
    if (const auto text = argument(prompt, "SAY")) {
      output = tokenizer_->encode(*text, false);
    } else if (const auto ids = argument(prompt, "IDS")) {
      for (const std::string_view word : split_list(*ids)) {
        output.push_back(static_cast<int32_t>(parse_whole_number(word).value_or(0)));
      }
    } else {
      return ScriptedRunner::hashed_next_token(text_so_far, tokenizer_->vocab_size());
    }
    return at < output.size() ? output[at] : kScriptEnd;
  }

 private:
  std::shared_ptr<Tokenizer> tokenizer_;
};

}  // namespace

std::unique_ptr<LLM> scripted_llm(ScriptedModelOptions options) {
  EngineConfig text_config;
  text_config.model = reasoner();
  auto model = load_text_model(text_config, "");
  auto tokenizer = Tokenizer::from_json_file(reasoner() + "/tokenizer.json");
  EXPECT_TRUE(model.ok() && tokenizer.ok());
  const Script script(std::shared_ptr<Tokenizer>(*std::move(tokenizer)));

  ScriptedOptions scripted = scripted_options(options.config, options.num_blocks);
  scripted.vocab_size = model->tokenizer->vocab_size();
  scripted.max_model_len = options.max_model_len;
  scripted.before_batch = options.before_batch;
  scripted.next_token = [script, before_token = options.before_token](const Sequence& sequence,
                                                                      const std::vector<int32_t>& text) {
    if (before_token) before_token();
    return script.next(sequence, text);
  };
  ModelInfo info;
  info.name = "scripted";
  info.vocab_size = scripted.vocab_size;
  info.max_model_len = scripted.max_model_len;
  info.eos_token_ids = {kScriptEnd};
  auto engine =
      std::make_unique<EngineImpl>(options.config, info, std::make_unique<ScriptedRunner>(std::move(scripted)));
  return make_llm(std::move(engine), *std::move(model));
}

}  // namespace zipage
