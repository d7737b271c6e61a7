// Who may ask: API keys and browsers' origins.
//
// Thread-safety: immutable.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace zipage {

struct GateOptions {
  std::vector<std::string> api_keys;  // empty: everybody may ask
  // Answered without a key, for probes, scrapers and browsers.
  std::vector<std::string> open_paths = {"/health",  "/ready", "/ping", "/metrics",
                                         "/version", "/",      "/docs", "/openapi.json"};
  std::vector<std::string> allowed_origins;  // "*" = any; empty: no CORS headers at all
  std::vector<std::string> allowed_methods = {"*"}, allowed_headers = {"*"};
  bool allow_credentials = false;
};

class Gate {
 public:
  explicit Gate(GateOptions options);

  // The answer to a request that may not pass (401), or that the gate answers itself (a browser's preflight).
  std::optional<HttpResponse> stops(const HttpRequest& request) const;
  // CORS headers for the answer to a request that passed.
  void add_headers(const HttpRequest& request, HttpHeaders& headers) const;

 private:
  bool has_key(const HttpRequest& request) const;
  bool origin_allowed(std::string_view origin) const;

  GateOptions options_;
};

// Takes the same time for every `given` of one length.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace zipage
