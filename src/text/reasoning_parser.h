// Splits what a reasoning model writes into its thought and its answer.
//
// Thread-safety: a ReasoningParser is one text's, for one thread at a time; the functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "text/tokenizer.h"
#include "zipage/status.h"

namespace zipage {

// How a prompt leaves the thought: templates may open it ("<think>\n" at the end), or open and close it to forbid it.
enum class PromptThought : uint8_t { kUntouched, kOpened, kClosed };
PromptThought prompt_thought(std::string_view prompt);
PromptThought prompt_thought(const Tokenizer& tokenizer, std::span<const int32_t> prompt_ids);

// What a model's thoughts are written in.
struct ReasoningFormat {
  std::string begin = "<think>", end = "</think>";
  int32_t begin_id = -1, end_id = -1;  // the tokens that are exactly these texts, if there are any
  bool always_thinks = false;          // the text begins inside the thought unless the prompt has closed it
};

// By the name of --reasoning-parser: "qwen3" and "deepseek_r1"; "auto" looks whether the model knows <think> and
// </think>, as tokens or in its template; "" is none. kInvalidArgument for another name.
Result<std::optional<ReasoningFormat>> reasoning_format(std::string_view parser, const Tokenizer& tokenizer,
                                                        std::string_view template_source);

class ReasoningParser {
 public:
  struct Delta {
    std::string reasoning, content;
  };

  ReasoningParser(ReasoningFormat format, PromptThought prompt);

  // The next piece of text. Holds back only what may still become a tag. The tags themselves are in neither part. After
  // the first thought everything is content.
  Delta push(std::string_view text);
  // The next token with the text it completed: a tag's token is the tag even where its text is not shown.
  Delta push_token(int32_t id, std::string_view text);
  // What was held back, at the end. A thought that has not ended stays reasoning.
  Delta finish();

  bool thinking() const { return state_ == State::kThought; }

 private:
  enum class State : uint8_t { kBefore, kThought, kAnswer };
  void advance(Delta& delta);
  void emit(std::string_view text, Delta& delta);

  ReasoningFormat format_;
  State state_;
  bool at_start_ = true;  // nothing of the thought has been seen: a begin tag may still repeat the prompt's
  std::string held_;
};

}  // namespace zipage
