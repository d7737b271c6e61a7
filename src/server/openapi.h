// The server's own description: /openapi.json and a page that shows it.
//
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "text/request_json.h"

namespace zipage {

// OpenAPI 3.1. Requests' fields are those that parse_request() checks in these contexts.
std::string openapi_json(const RequestContext& completion, const RequestContext& chat, const std::string& version);

// HTML that reads openapi.json beside it; nothing else is fetched.
extern const char* const kDocsPage;

}  // namespace zipage
