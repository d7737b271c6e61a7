// Sampling defaults by flag. They are kept as the JSON fields of a request, so that one set of rules reads both.
#pragma once

#include <nlohmann/json.hpp>

#include "options.h"

namespace zipage::apps {

// Declares --max-tokens, --temperature and the rest; what is given lands in `fields`, an object.
void add_sampling(Options& options, nlohmann::json* fields);

// Whether the fields hold values that a request may have; names the flag at fault.
Status check_sampling(const nlohmann::json& fields);

}  // namespace zipage::apps
