#include "kv_choice.h"

#include <fmt/format.h>

#include "base/parse_value.h"

namespace zipage::apps {

std::string KvChoice::title() const {
  return budget == 0 ? "full KV" : fmt::format("{} {}", policy, budget);
}

Result<std::vector<KvChoice>> kv_choices(const EngineConfig& base, std::string_view policies,
                                         std::string_view budgets) {
  const std::vector<std::string_view> policy_names = split_list(policies), budget_texts = split_list(budgets);
  if (policy_names.empty()) return invalid_argument("--kv-policy names no policy").with_param("kv-policy");
  if (budget_texts.empty()) return invalid_argument("--kv-budget names no budget").with_param("kv-budget");
  std::vector<KvChoice> choices;
  bool full = false;
  for (const std::string_view policy : policy_names) {
    for (const std::string_view budget : budget_texts) {
      KvChoice choice{base, std::string(policy)};
      ZIPAGE_RETURN_IF_ERROR(set_knob(choice.config, "kv-policy", policy));
      ZIPAGE_RETURN_IF_ERROR(set_knob(choice.config, "kv-budget", budget));
      ZIPAGE_RETURN_IF_ERROR(validate(choice.config));
      choice.budget = choice.config.compression.kv_budget;
      if (choice.budget == 0) {
        if (full) continue;
        full = true;
        choice.policy = "full";
      }
      choices.push_back(std::move(choice));
    }
  }
  return choices;
}

}  // namespace zipage::apps
