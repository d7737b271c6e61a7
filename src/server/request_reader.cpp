#include "server/request_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace zipage {
namespace {

namespace http = boost::beast::http;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return result;
}

// From origin-form ("/v1/models?x") or absolute-form ("http://host/v1/models").
void split_target(std::string_view target, HttpRequest& request) {
  if (target.starts_with("http://") || target.starts_with("https://")) {
    const size_t path = target.find('/', target.find("//") + 2);
    target = path == std::string_view::npos ? "/" : target.substr(path);
  }
  const size_t query = target.find('?');
  request.path = std::string(target.substr(0, query));
  if (query != std::string_view::npos) request.query = std::string(target.substr(query + 1));
}

}  // namespace

struct RequestReader::Parser : http::request_parser<http::string_body> {};

RequestReader::RequestReader(HttpLimits limits) : limits_(limits) {}
RequestReader::~RequestReader() = default;

RequestReader::State RequestReader::malformed(int status, std::string message) {
  error_status_ = status;
  error_message_ = std::move(message);
  return state_ = State::kMalformed;
}

RequestReader::State RequestReader::feed(std::string& input) {
  if (state_ == State::kIdle) {
    // Empty lines before a request are allowed (RFC 9112, 2.2).
    input.erase(0, std::min(input.find_first_not_of("\r\n"), input.size()));
    if (input.empty()) return state_;
    parser_ = std::make_unique<Parser>();
    parser_->header_limit(static_cast<std::uint32_t>(limits_.header_bytes));
    parser_->body_limit(limits_.body_bytes);
    state_ = State::kHeader;
  }
  size_t used = 0;
  const auto put = [&](bool eager) {
    boost::beast::error_code error;
    parser_->eager(eager);
    used += parser_->put(boost::asio::buffer(input.data() + used, input.size() - used), error);
    return error == http::error::need_more ? boost::beast::error_code() : error;
  };
  boost::beast::error_code error;
  if (state_ == State::kHeader) error = put(false);
  if (!error && parser_->is_header_done()) {
    if (state_ == State::kHeader) {
      const bool expects = lower(std::string_view(parser_->get()[http::field::expect])) == "100-continue";
      state_ = State::kBody;
      if (expects && !parser_->is_done() && used == input.size()) {
        input.erase(0, used);
        return state_ = State::kExpects;
      }
    }
    state_ = State::kBody;
    while (!error && !parser_->is_done() && used < input.size()) {
      const size_t before = used;
      error = put(true);
      if (used == before) break;
    }
  }
  input.erase(0, used);
  if (error == http::error::header_limit) {
    return malformed(431, fmt::format("the header is longer than {} bytes", limits_.header_bytes));
  }
  if (error == http::error::body_limit) {
    return malformed(413, fmt::format("the body is longer than {} bytes", limits_.body_bytes));
  }
  if (error == http::error::bad_version) return malformed(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  if (error) return malformed(400, fmt::format("not an HTTP request: {}", error.message()));
  // Beast finds an over-long header only when its end has come.
  if (state_ == State::kHeader && input.size() > limits_.header_bytes) {
    return malformed(431, fmt::format("the header is longer than {} bytes", limits_.header_bytes));
  }
  if (parser_->is_done()) state_ = State::kDone;
  return state_;
}

void RequestReader::abandon() {
  parser_.reset();
  state_ = State::kMalformed;
}

size_t RequestReader::body_size() const {
  return parser_ == nullptr ? 0 : parser_->get().body().size();
}

HttpRequest RequestReader::take() {
  keep_alive_ = parser_->keep_alive();
  http_1_0_ = parser_->get().version() == 10;
  auto message = parser_->release();
  parser_.reset();
  state_ = State::kIdle;
  HttpRequest request;
  request.method = std::string(message.method_string());
  split_target(message.target(), request);
  for (const auto& field : message) {
    request.headers.emplace_back(lower(std::string_view(field.name_string())), std::string(field.value()));
  }
  request.body = std::move(message.body());
  return request;
}

}  // namespace zipage
