#include "server/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace zipage {
namespace {

bool contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return (x | 0x20) == (y | 0x20); });
}

}  // namespace

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  size_t difference = given.size() ^ secret.size();
  for (size_t i = 0; i < given.size(); ++i) {
    const auto expected = static_cast<unsigned char>(secret.empty() ? 0 : secret[i % secret.size()]);
    difference |= static_cast<unsigned char>(given[i]) ^ expected;
  }
  return difference == 0;
}

Gate::Gate(GateOptions options) : options_(std::move(options)) {}

bool Gate::has_key(const HttpRequest& request) const {
  const std::string_view value = request.header("authorization");
  constexpr std::string_view kScheme = "bearer ";
  const bool bearer = value.size() > kScheme.size() && equals_ignoring_case(value.substr(0, kScheme.size()), kScheme);
  std::string_view given = bearer ? value.substr(kScheme.size()) : std::string_view();
  while (given.starts_with(' ')) given.remove_prefix(1);
  // Every key is compared, so that the time does not say which one was near.
  bool known = false;
  for (const std::string& key : options_.api_keys) known |= equal_in_constant_time(given, key);
  return known;
}

bool Gate::origin_allowed(std::string_view origin) const {
  return !origin.empty() && (contains(options_.allowed_origins, "*") || contains(options_.allowed_origins, origin));
}

std::optional<HttpResponse> Gate::stops(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  const std::string_view wanted_method = request.header("access-control-request-method");
  if (request.method == "OPTIONS" && !wanted_method.empty() && !options_.allowed_origins.empty()) {
    if (!origin_allowed(origin)) return text_response(400, "text/plain", "Disallowed CORS origin");
    HttpResponse response = text_response(200, "text/plain", "OK");
    const auto list = [](const std::vector<std::string>& allowed, std::string_view wanted) {
      return contains(allowed, "*") ? std::string(wanted) : fmt::format("{}", fmt::join(allowed, ", "));
    };
    response.headers.emplace_back("Access-Control-Allow-Methods", list(options_.allowed_methods, wanted_method));
    const std::string_view wanted_headers = request.header("access-control-request-headers");
    if (!wanted_headers.empty()) {
      response.headers.emplace_back("Access-Control-Allow-Headers", list(options_.allowed_headers, wanted_headers));
    }
    response.headers.emplace_back("Access-Control-Max-Age", "600");
    return response;
  }
  if (options_.api_keys.empty() || contains(options_.open_paths, request.path) || has_key(request)) return std::nullopt;
  HttpResponse response = error_response(401, "a valid API key is needed: Authorization: Bearer KEY");
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

void Gate::add_headers(const HttpRequest& request, HttpHeaders& headers) const {
  const std::string_view origin = request.header("origin");
  if (!origin_allowed(origin)) return;
  const bool any = contains(options_.allowed_origins, "*") && !options_.allow_credentials;
  headers.emplace_back("Access-Control-Allow-Origin", any ? "*" : origin);
  if (!any) headers.emplace_back("Vary", "Origin");
  if (options_.allow_credentials) headers.emplace_back("Access-Control-Allow-Credentials", "true");
}

}  // namespace zipage
