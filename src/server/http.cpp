#include "server/http.h"

#include <fmt/format.h>

#include <charconv>

#include "server/openai_json.h"

namespace zipage {
namespace {

// vLLM's words for the kinds of errors.
std::string_view error_type(int http_status) {
  switch (http_status) {
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 429:
      return "RateLimitError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return http_status >= 500 ? "InternalServerError" : "BadRequestError";
  }
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::string percent_decoded(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    result += escape ? static_cast<char>(byte) : text[i];
    if (escape) i += 2;
  }
  return result;
}

TextExecutor executor_of(const ExchangePtr& exchange) {
  return [exchange](std::function<void()> task) { exchange->post(std::move(task)); };
}

void respond(const ExchangePtr& exchange, HttpResponse response) {
  exchange->post([exchange, response = std::move(response)]() mutable { exchange->send(std::move(response)); });
}

int http_status(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return 200;
    case StatusCode::kInvalidArgument:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kResourceExhausted:
      return 429;
    case StatusCode::kUnimplemented:
      return 501;
    case StatusCode::kCancelled:
    case StatusCode::kUnavailable:
      return 503;
    case StatusCode::kDataLoss:
    case StatusCode::kInternal:
      break;
  }
  return 500;
}

std::string error_json(int http_status, std::string_view message, std::string_view param) {
  std::string out = R"({"error":{"message":)";
  append_json_string(out, message);
  out += fmt::format(R"(,"type":"{}","param":)", error_type(http_status));
  param.empty() ? void(out += "null") : append_json_string(out, param);
  out += fmt::format(R"(,"code":{}}}}})", http_status);
  return out;
}

HttpResponse error_response(int http_status, std::string_view message, std::string_view param) {
  HttpResponse response;
  response.status = http_status;
  response.body = error_json(http_status, message, param);
  if (http_status == 429 || http_status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse error_response(const Status& status) {
  return error_response(http_status(status), status.message(), status.param());
}

HttpResponse text_response(int http_status, std::string_view content_type, std::string body) {
  HttpResponse response;
  response.status = http_status;
  response.content_type = std::string(content_type);
  response.body = std::move(body);
  return response;
}

}  // namespace zipage
