// generation_config.json: how its model is meant to be sampled.
//
// Thread-safety: pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "zipage/request.h"
#include "zipage/status.h"

namespace zipage {

struct GenerationDefaults {
  SamplingParams sampling;
  std::vector<int32_t> eos_token_ids;
};

// Applies what `json` sets to `defaults`; null is unset. "do_sample": false means greedy. Errors name `origin` and the
// key.
Status apply_generation_config(std::string_view json, std::string_view origin, GenerationDefaults& defaults);

}  // namespace zipage
