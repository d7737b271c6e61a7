// Apart from llm.cpp, so that a program with an engine of its own links no model code.
#include "text/text_model.h"
#include "zipage/llm.h"

namespace zipage {

Result<std::unique_ptr<LLM>> LLM::create(const EngineConfig& config, std::string chat_template) {
  ZIPAGE_ASSIGN_OR_RETURN(TextModel model, load_text_model(config, std::move(chat_template)));
  ZIPAGE_ASSIGN_OR_RETURN(auto engine, Engine::create(config));
  return make_llm(std::move(engine), std::move(model));
}

}  // namespace zipage
