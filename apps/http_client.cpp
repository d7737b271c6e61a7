#include "http_client.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace zipage::apps {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr size_t kMaxErrorBody = size_t{64} << 10;

Status unreachable(const HttpTarget& target, const ErrorCode& error) {
  return {StatusCode::kUnavailable, fmt::format("http://{}:{}: {}", target.host, target.port, error.message())};
}

// The sentence in OpenAI's error object, or the beginning of whatever came.
Status refusal(int status, const std::string& body) {
  const auto answer = nlohmann::json::parse(body, nullptr, false);
  std::string message = body.substr(0, 200);
  if (answer.is_object() && answer.contains("error") && answer["error"].is_object()) {
    message = answer["error"].value("message", message);
  }
  const auto code = status >= 500 ? StatusCode::kUnavailable : StatusCode::kInvalidArgument;
  return {code, fmt::format("the server answered {}: {}", status, message)};
}

}  // namespace

Result<HttpTarget> parse_url(std::string_view url) {
  HttpTarget target;
  std::string_view rest = url;
  if (rest.starts_with("https://")) {
    return invalid_argument(
        "https is not spoken by this client: give the address of a server or proxy that speaks http");
  }
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  const size_t slash = rest.find('/');
  std::string_view authority = rest.substr(0, slash);
  if (slash != std::string_view::npos) target.base = std::string(rest.substr(slash));
  while (target.base.ends_with('/')) target.base.pop_back();
  // [::1]:8000
  const size_t bracket = authority.rfind(']');
  const size_t colon = authority.rfind(':');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    target.port = std::string(authority.substr(colon + 1));
    authority = authority.substr(0, colon);
  } else {
    target.port = "80";
  }
  if (authority.starts_with('[') && authority.ends_with(']')) authority = authority.substr(1, authority.size() - 2);
  target.host = std::string(authority);
  if (target.host.empty() || target.port.empty()) {
    return invalid_argument(fmt::format("'{}' is no address like http://localhost:8000", url));
  }
  return target;
}

class HttpClient::Impl {
 public:
  explicit Impl(HttpTarget target) : target_(std::move(target)) {}

  Result<std::string> get(const std::string& path, const std::string& api_key) {
    std::string body;
    std::optional<Status> status;
    HttpPost request;
    request.path = path;
    request.api_key = api_key;
    request.data = [&](std::string_view bytes) { body += bytes; };
    request.done = [&](const Status& outcome) { status = outcome; };
    start(http::verb::get, std::move(request));
    run();
    return status && status->ok() ? Result<std::string>(body)
                                  : status.value_or(Status(StatusCode::kUnavailable, "no answer came"));
  }

  void start(http::verb verb, HttpPost request) {
    asio::co_spawn(context_, exchange(verb, std::move(request)), asio::detached);
  }

  void after(double seconds, std::function<void()> task) {
    auto timer = std::make_shared<asio::steady_timer>(context_);
    timer->expires_after(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds)));
    timer->async_wait([timer, task = std::move(task)](const ErrorCode& error) {
      if (!error) task();
    });
  }

  void run() {
    context_.restart();
    context_.run();
  }
  void stop() { context_.stop(); }

 private:
  asio::awaitable<void> exchange(http::verb verb, HttpPost request) {
    Status status;
    try {
      status = co_await converse(verb, request);
    } catch (const boost::system::system_error& error) {
      status = unreachable(target_, error.code());
    }
    request.done(status);
  }

  asio::awaitable<Status> converse(http::verb verb, const HttpPost& request) {
    if (addresses_.empty()) {
      tcp::resolver resolver(context_);
      addresses_ = co_await resolver.async_resolve(target_.host, target_.port, asio::use_awaitable);
    }
    tcp::socket socket(context_);
    co_await asio::async_connect(socket, addresses_, asio::use_awaitable);
    socket.set_option(tcp::no_delay(true));

    http::request<http::string_body> message(verb, target_.base + request.path, 11);
    message.set(http::field::host, target_.host + ":" + target_.port);
    message.set(http::field::connection, "close");
    if (verb == http::verb::post) message.set(http::field::content_type, "application/json");
    if (!request.api_key.empty()) message.set(http::field::authorization, "Bearer " + request.api_key);
    message.body() = request.body;
    message.prepare_payload();
    co_await http::async_write(socket, message, asio::use_awaitable);

    boost::beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    co_await http::async_read_header(socket, buffer, parser, asio::use_awaitable);
    const int code = parser.get().result_int();
    std::string error_body;
    std::array<char, 16384> piece;
    while (!parser.is_done()) {
      parser.get().body() = {piece.data(), piece.size(), true};
      ErrorCode error;
      co_await http::async_read_some(socket, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
      if (error && error != http::error::need_buffer) co_return unreachable(target_, error);
      const std::string_view bytes(piece.data(), piece.size() - parser.get().body().size);
      if (bytes.empty()) continue;
      if (code == 200) {
        request.data(bytes);
      } else if (error_body.size() < kMaxErrorBody) {
        error_body += bytes;
      }
    }
    co_return code == 200 ? Status() : refusal(code, error_body);
  }

  HttpTarget target_;
  asio::io_context context_{1};
  tcp::resolver::results_type addresses_;
};

HttpClient::HttpClient(HttpTarget target) : impl_(std::make_unique<Impl>(std::move(target))) {}
HttpClient::~HttpClient() = default;

Result<std::string> HttpClient::get(const std::string& path, const std::string& api_key) {
  return impl_->get(path, api_key);
}
void HttpClient::post(HttpPost request) {
  impl_->start(http::verb::post, std::move(request));
}
void HttpClient::after(double seconds, std::function<void()> task) {
  impl_->after(seconds, std::move(task));
}
void HttpClient::run() {
  impl_->run();
}
void HttpClient::stop() {
  impl_->stop();
}

void EventReader::push(std::string_view bytes) {
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = bytes.find('\n', begin);
    line_ += bytes.substr(begin, end == std::string_view::npos ? end : end - begin);
    if (end == std::string_view::npos) return;
    begin = end + 1;
    if (line_.ends_with('\r')) line_.pop_back();
    if (line_.starts_with("data: ")) event_(std::string_view(line_).substr(6));
    line_.clear();
  }
}

}  // namespace zipage::apps
