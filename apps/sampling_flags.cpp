#include "sampling_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/parse_value.h"
#include "text/request_json.h"

namespace zipage::apps {
namespace {

std::string field_of(std::string_view key) {
  std::string field(key);
  std::replace(field.begin(), field.end(), '-', '_');
  return field;
}

Result<nlohmann::json> value_of(const Knob& knob, std::string_view text) {
  const auto fault = [&](std::string_view wanted) {
    return invalid_argument(fmt::format("--{} must be {}, not '{}'", knob.key, wanted, text))
        .with_param(std::string(knob.key));
  };
  switch (knob.type) {
    case KnobType::kInt64: {
      const std::optional<int64_t> number = parse_whole_number(text);
      return number ? Result<nlohmann::json>(*number) : fault("a whole number");
    }
    case KnobType::kFloat: {
      const std::optional<double> number = parse_real(text);
      return number ? Result<nlohmann::json>(*number) : fault("a number");
    }
    case KnobType::kBool: {
      const std::optional<bool> flag = parse_bool(text);
      return flag ? Result<nlohmann::json>(*flag) : fault("true or false");
    }
    default:
      return nlohmann::json(std::string(text));
  }
}

}  // namespace

void add_sampling(Options& options, nlohmann::json* fields) {
  *fields = nlohmann::json::object();
  constexpr std::string_view kGroup = "Sampling (defaults for requests that do not say)";
  static constexpr Knob kFields[] = {
      {"max-tokens", KnobType::kInt64, kGroup, "N", "most output tokens; default: the rest of the context"},
      {"min-tokens", KnobType::kInt64, kGroup, "N", "no end before so many output tokens"},
      {"temperature", KnobType::kFloat, kGroup, "X", "0 is greedy; default: the model's, else 1"},
      {"top-p", KnobType::kFloat, kGroup, "X", "sample from the likeliest tokens that sum to X"},
      {"top-k", KnobType::kInt64, kGroup, "N", "sample from the N likeliest tokens; -1: all"},
      {"min-p", KnobType::kFloat, kGroup, "X", "sample from tokens at least X times as likely as the likeliest"},
      {"repetition-penalty", KnobType::kFloat, kGroup, "X", "above 1 makes seen tokens less likely"},
      {"presence-penalty", KnobType::kFloat, kGroup, "X", "-2 to 2, once for every token in the output"},
      {"frequency-penalty", KnobType::kFloat, kGroup, "X", "-2 to 2, for every time a token is in the output"},
      {"seed", KnobType::kInt64, kGroup, "N", "of every request; default: a different one each"},
      {"stop", KnobType::kString, kGroup, "TEXT", "end before this text"},
      {"logprobs", KnobType::kInt64, kGroup, "N", "log-probabilities of each token and its N best rivals"},
      {"ignore-eos", KnobType::kBool, kGroup, "", "go on after the end of the answer"},
      {"thinking-token-budget", KnobType::kInt64, kGroup, "N", "end the thought after N tokens"},
  };
  for (const Knob& knob : kFields) {
    options.add({knob, 0, "", true, [fields, &knob](std::string_view text) -> Status {
                   ZIPAGE_ASSIGN_OR_RETURN((*fields)[field_of(knob.key)], value_of(knob, text));
                   return {};
                 }});
  }
}

Status check_sampling(const nlohmann::json& fields) {
  nlohmann::json line = fields;
  line["prompt"] = "";
  RequestContext context;
  context.vocab_size = std::numeric_limits<int32_t>::max();
  context.max_logprobs = -1;
  const Status status = parse_request(line, RequestKind::kLine, context).status();
  if (status.ok()) return {};
  std::string flag = status.param();
  std::replace(flag.begin(), flag.end(), '_', '-');
  return invalid_argument(fmt::format("--{}: {}", flag, status.message())).with_param(std::move(flag));
}

}  // namespace zipage::apps
