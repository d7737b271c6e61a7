#include "server/session.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <ctime>
#include <utility>

#include "base/log.h"

namespace zipage {
namespace {

namespace asio = boost::asio;

constexpr size_t kReadSize = 4096;
constexpr size_t kReadAhead = 64 * 1024;  // of requests sent while one is being answered
constexpr size_t kWriteSize = 256 * 1024;
constexpr auto kLinger = std::chrono::seconds(2);

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

// As HTTP wants it: "Sun, 06 Nov 1994 08:49:37 GMT".
std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[parts.tm_wday], parts.tm_mday,
                     kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

// A header's value must not begin another header.
std::string one_line(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return result;
}

}  // namespace

// ---- the exchange as handlers see it

class Session::SocketExchange final : public Exchange {
 public:
  SocketExchange(HttpRequest request, std::shared_ptr<Session> session)
      : Exchange(std::move(request)), session_(std::move(session)) {}

  void post(std::function<void()> task) override { session_->thread_->post(std::move(task)); }

  void send(HttpResponse response) override {
    if (!present() || opened_) return;
    session_->write_head(response, false);
    if (!session_->head_only_) session_->queue(response.body);
    session_->finish_exchange();
  }
  void open(HttpResponse response) override {
    if (!present() || opened_) return;
    opened_ = true;
    session_->write_head(response, true);
    write(response.body);
    session_->write_pending();
  }
  void write(std::string_view bytes) override {
    if (!present() || !opened_ || bytes.empty() || session_->head_only_) return;
    if (!session_->chunked_) return session_->queue(bytes);
    // A token's chunk is put together where memory is warm, not in this one of thousands of sessions.
    std::array<char, 1024> chunk;
    if (bytes.size() + 16 <= chunk.size()) {
      char* end = fmt::format_to(chunk.data(), "{:x}\r\n", bytes.size());
      end = std::copy(bytes.begin(), bytes.end(), end);
      *end++ = '\r';
      *end++ = '\n';
      return session_->queue({chunk.data(), static_cast<size_t>(end - chunk.data())});
    }
    std::string& pending = session_->pending_;
    fmt::format_to(std::back_inserter(pending), "{:x}\r\n", bytes.size());
    pending.append(bytes).append("\r\n");
    session_->write_pending();
  }
  void close() override {
    if (!present() || !opened_) return;
    if (session_->chunked_ && !session_->head_only_) session_->pending_.append("0\r\n\r\n");
    session_->finish_exchange();
  }

  size_t backlog() const override {
    return session_->pending_.size() + session_->in_flight_.size() - session_->written_;
  }
  void on_drained(std::function<void()> callback) override { drained_ = std::move(callback); }
  bool gone() const override { return gone_; }
  void on_end(std::function<void(EndReason)> callback) override { end_ = std::move(callback); }

  void call_drained() {
    if (drained_) drained_();
  }
  void call_end(EndReason reason) {
    if (reason == EndReason::kClientGone) gone_ = true;
    // The callback may replace itself.
    if (const auto callback = end_) callback(reason);
  }
  void forget_callbacks() {
    drained_ = nullptr;
    end_ = nullptr;
  }

 private:
  bool present() const { return session_->exchange_.get() == this && !session_->closed_; }

  std::shared_ptr<Session> session_;
  std::function<void()> drained_;
  std::function<void(EndReason)> end_;
  bool opened_ = false, gone_ = false;
};

// ---- the connection

Session::Session(std::shared_ptr<IoThread> thread, std::shared_ptr<SessionContext> context,
                 std::unique_ptr<Stream> stream)
    : thread_(std::move(thread)),
      context_(std::move(context)),
      stream_(std::move(stream)),
      room_(thread_->context(), Clock::time_point::max()),
      reader_(context_->options.limits),
      idle_since_(Clock::now()) {
  ++context_->num_connections;
  ++thread_->num_connections();
}

Session::~Session() {
  if (!closed_) leave();
}

void Session::leave() {
  --context_->num_connections;
  --thread_->num_connections();
}

void Session::start() {
  thread_->sessions().insert(this);
  asio::co_spawn(
      thread_->context(), [self = shared_from_this()]() -> asio::awaitable<void> { co_await self->read(); },
      asio::detached);
}

asio::awaitable<void> Session::read() {
  if (co_await stream_->handshake()) {
    close();
    co_return;
  }
  std::array<char, kReadSize> bytes;
  while (!closed_) {
    Stream::ErrorCode error;
    const size_t size = co_await stream_->read_some(asio::buffer(bytes), error);
    if (closed_) co_return;
    if (error) {
      lose_client();
      co_return;
    }
    if (said_bye_) continue;
    input_.append(bytes.data(), size);
    advance();
    while (exchange_ && input_.size() >= kReadAhead && !closed_) {
      co_await room_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
  }
}

void Session::advance() {
  if (std::exchange(advancing_, true)) return;
  while (!exchange_ && !closing_ && !closed_) {
    const bool was_idle = reader_.state() == RequestReader::State::kIdle;
    const RequestReader::State state = reader_.feed(input_);
    if (was_idle && state != RequestReader::State::kIdle) request_began_ = Clock::now();
    if (!count_body()) {
      refuse(429, fmt::format("the bodies of the requests that are open hold the {} bytes that they may hold together",
                              context_->bodies.total()));
      break;
    }
    if (state == RequestReader::State::kDone) {
      dispatch(reader_.take());
      continue;
    }
    if (state == RequestReader::State::kMalformed) refuse(reader_.error_status(), reader_.error_message());
    if (state == RequestReader::State::kExpects) queue("HTTP/1.1 100 Continue\r\n\r\n");
    break;
  }
  advancing_ = false;
  if (!exchange_ && input_.empty()) input_.shrink_to_fit();
}

void Session::dispatch(HttpRequest request) {
  keep_alive_ = reader_.keep_alive() && !context_->draining;
  chunked_ = !reader_.http_1_0();
  head_only_ = request.method == "HEAD";
  exchange_ = std::make_shared<SocketExchange>(std::move(request), shared_from_this());
  ++context_->num_exchanges;
  const std::shared_ptr<SocketExchange> exchange = exchange_;
  if (context_->draining) return exchange->send(error_response(503, "the server is shutting down"));
  if (auto answer = context_->gate.stops(exchange->request())) return exchange->send(*std::move(answer));
  const std::string& method = exchange->request().method;
  const std::string& path = exchange->request().path;
  const Router::Match match = context_->router.find(method, path);
  if (match.route == nullptr) {
    if (match.allow.empty()) return exchange->send(error_response(404, fmt::format("there is nothing at {}", path)));
    HttpResponse response = error_response(405, fmt::format("{} does not know the method {}", path, method));
    response.headers.emplace_back("Allow", match.allow);
    return exchange->send(std::move(response));
  }
  const auto run = [exchange, route = match.route] {
    try {
      route->handler(exchange);
    } catch (const std::exception& error) {
      log_error("{} {}: {}", route->method, route->path, error.what());
      respond(exchange, error_response(500, "internal error; the server's log says more"));
    }
  };
  if (match.route->runs_on == RunsOn::kExchange) {
    run();
  } else {
    asio::post(context_->workers, run);
  }
}

bool Session::count_body() {
  const size_t bytes = reader_.body_size();
  if (!context_->bodies.grow(body_bytes_, bytes)) return false;
  body_bytes_ = bytes;
  return true;
}

void Session::release_body() {
  context_->bodies.release(std::exchange(body_bytes_, 0));
}

void Session::refuse(int status, std::string_view message) {
  reader_.abandon();
  keep_alive_ = false;
  chunked_ = head_only_ = false;
  exchange_ = std::make_shared<SocketExchange>(HttpRequest(), shared_from_this());
  ++context_->num_exchanges;
  const auto exchange = exchange_;
  exchange->send(error_response(status, message));
}

// ---- answers

void Session::write_head(const HttpResponse& response, bool streamed) {
  auto out = std::back_inserter(pending_);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\nDate: {}\r\nServer: zipage\r\n", response.status,
                 reason_phrase(response.status), http_date());
  if (!response.content_type.empty()) fmt::format_to(out, "Content-Type: {}\r\n", response.content_type);
  if (!streamed) {
    fmt::format_to(out, "Content-Length: {}\r\n", response.body.size());
  } else if (chunked_) {
    pending_.append("Transfer-Encoding: chunked\r\n");
  } else {
    keep_alive_ = false;  // the end of the connection is the end of the body
  }
  HttpHeaders headers = response.headers;
  context_->gate.add_headers(exchange_->request(), headers);
  for (const auto& [name, value] : headers) fmt::format_to(out, "{}: {}\r\n", name, one_line(value));
  if (!keep_alive_) {
    pending_.append("Connection: close\r\n");
  } else if (!chunked_) {
    pending_.append("Connection: keep-alive\r\n");
  }
  pending_.append("\r\n");
}

void Session::queue(std::string_view bytes) {
  if (!writing_ && pending_.empty() && !closed_) {
    bytes.remove_prefix(stream_->write_now(asio::buffer(bytes)));
    if (bytes.empty()) return;
  }
  pending_.append(bytes);
  write_pending();
}

void Session::write_pending() {
  if (writing_ || closed_) return;
  if (written_ == in_flight_.size()) {
    in_flight_.clear();
    written_ = 0;
    // Most of what is written fits into the socket's buffer, and is gone without a task of the io_context's.
    if (!pending_.empty()) pending_.erase(0, stream_->write_now(asio::buffer(pending_)));
    if (pending_.empty()) {
      if (pending_.capacity() > kReadAhead) pending_.shrink_to_fit();
      if (closing_ && !exchange_) begin_closing();
      return;
    }
    std::swap(in_flight_, pending_);
  }
  writing_ = true;
  write_began_ = Clock::now();
  const size_t size = std::min(in_flight_.size() - written_, kWriteSize);
  stream_->write(asio::buffer(in_flight_.data() + written_, size),
                 [self = shared_from_this()](Stream::ErrorCode error, size_t written) {
                   self->writing_ = false;
                   self->written_ += written;
                   if (self->closed_) return;
                   error ? self->lose_client() : self->wrote();
                 });
}

void Session::wrote() {
  write_pending();
  if (writing_) return;
  // A stream's buffers grow while its client is slow; they need not stay.
  if (in_flight_.capacity() > kReadAhead) in_flight_.shrink_to_fit();
  if (const auto exchange = exchange_) exchange->call_drained();
}

void Session::finish_exchange() {
  const auto exchange = std::exchange(exchange_, nullptr);
  exchange->forget_callbacks();
  --context_->num_exchanges;
  release_body();
  if (!keep_alive_ || context_->draining) closing_ = true;
  idle_since_ = Clock::now();
  write_pending();
  room_.cancel();
  // Not from within the handler that has just answered.
  if (!closing_ && !input_.empty()) thread_->post([self = shared_from_this()] { self->advance(); });
}

void Session::begin_closing() {
  if (std::exchange(said_bye_, true)) return;
  bye_at_ = Clock::now();
  stream_->shut_down([self = shared_from_this()] {});
}

void Session::lose_client() {
  if (closed_) return;
  const auto exchange = exchange_;
  close();
  if (exchange) {
    exchange->call_end(EndReason::kClientGone);
    exchange->forget_callbacks();
  }
}

void Session::close() {
  if (std::exchange(closed_, true)) return;
  thread_->sessions().erase(this);
  leave();
  if (exchange_) --context_->num_exchanges;
  exchange_ = nullptr;
  release_body();
  room_.cancel();
  stream_->close();
}

void Session::drain(bool end_now) {
  closing_ = true;
  if (!exchange_) {
    write_pending();
  } else if (end_now) {
    const auto exchange = exchange_;
    exchange->call_end(EndReason::kShutdown);
  }
}

void Session::check_deadlines(Clock::time_point now) {
  const HttpOptions& options = context_->options;
  if (said_bye_) {
    if (now - bye_at_ > kLinger) close();
  } else if (writing_) {
    if (now - write_began_ > options.write_timeout) lose_client();
  } else if (!exchange_) {
    const bool idle = reader_.state() == RequestReader::State::kIdle;
    if (idle && now - idle_since_ > options.keep_alive_timeout) close();
    if (!idle && now - request_began_ > options.request_timeout) {
      refuse(408, fmt::format("the request did not arrive within {} s", options.request_timeout.count() / 1000));
    }
  }
}

}  // namespace zipage
