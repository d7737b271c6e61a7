// What tools, and grammars behind a thought, mean for a request of this server.
//
// Thread-safety: pure functions.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/generation.h"
#include "server/http.h"
#include "server/serving.h"
#include "text/request_json.h"

namespace zipage {

// "call_..." and such: an id that nobody else has.
std::string random_id(std::string_view prefix);

// Has the answers of a chat searched for calls, and calls that must come forced by a grammar.
void use_tools(const Serving& serving, ParsedRequest& parsed, Generation::Options& options);

// Generation::prepare(), then `start` on the exchange's thread; an error is answered. Grammars are compiled on threads
// of their own: what this is called on does not wait for them.
void prepare_generation(Serving& serving, const ExchangePtr& exchange, ParsedRequest parsed, std::string id,
                        Generation::Options options,
                        std::function<void(const std::shared_ptr<Generation>& generation)> start);

}  // namespace zipage
