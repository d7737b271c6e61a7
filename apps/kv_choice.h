// The configurations that one run compares: each KV policy at each budget.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "zipage/config.h"

namespace zipage::apps {

struct KvChoice {
  EngineConfig config;
  std::string policy;  // "full" at budget 0
  int budget = 0;      // tokens
  std::string title() const;
};

// policies: names, budgets: whole numbers; commas between them. Budget 0 is full KV, one configuration whatever the
// policies. Every configuration is validated.
Result<std::vector<KvChoice>> kv_choices(const EngineConfig& base, std::string_view policies, std::string_view budgets);

}  // namespace zipage::apps
