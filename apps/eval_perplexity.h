// zipage eval --perplexity: how much worse a model predicts real text under each policy and budget.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kv_choice.h"
#include "start.h"

namespace zipage::apps {

struct PerplexityTask {
  std::vector<std::string> files;  // texts
  int max_tokens = 0;              // most tokens scored of each text; 0 = all that the context has room for
};

// Teacher-forced: a text's first tokens are the prompt, the rest is its output whatever the model says. Prints the
// table, writes --output-json, returns the exit code. REQUIRES: an InterruptGuard lives.
int run_perplexity(CommonFlags& common, std::span<const KvChoice> choices, const PerplexityTask& task);

}  // namespace zipage::apps
