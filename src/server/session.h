// One client's connection: requests in, answers out, in order. Inside src/server only: this header includes Boost.
//
//   bytes ── input_ ── RequestReader ── Exchange ── handler
//   client <── in_flight_ <── pending_ <── send(), open(), write()
//
// One exchange at a time: requests that a client sends ahead wait in input_, and when that is full in the socket. While
// an exchange runs the socket is read all the same, so that a client that leaves is noticed at once.
//
// Thread-safety: everything on its IoThread.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "server/body_budget.h"
#include "server/http_server.h"
#include "server/io_thread.h"
#include "server/stream.h"

namespace zipage {

// What all sessions of a server share.
struct SessionContext {
  HttpOptions options;
  const Router& router;
  Gate gate;
  BodyBudget bodies;
  boost::asio::thread_pool workers;
  std::atomic<bool> draining = false;
  std::atomic<int> num_exchanges = 0, num_connections = 0;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  using Clock = std::chrono::steady_clock;

  Session(std::shared_ptr<IoThread> thread, std::shared_ptr<SessionContext> context, std::unique_ptr<Stream> stream);
  ~Session();
  void start();

  void check_deadlines(Clock::time_point now);
  // No new requests: closes when nothing runs. end_now: what runs is told to end.
  void drain(bool end_now);
  // Whoever waits for an answer has gone, or is made to go.
  void lose_client();
  void close();

 private:
  friend class SocketExchange;
  class SocketExchange;

  boost::asio::awaitable<void> read();
  void advance();
  void dispatch(HttpRequest request);
  void refuse(int status, std::string_view message);
  // Counts the present request's body; false: there is no room for it.
  bool count_body();
  void release_body();

  void write_head(const HttpResponse& response, bool streamed);
  void queue(std::string_view bytes);
  void write_pending();
  void wrote();
  void finish_exchange();
  void begin_closing();
  void leave();  // the counts of connections

  std::shared_ptr<IoThread> thread_;
  std::shared_ptr<SessionContext> context_;
  std::unique_ptr<Stream> stream_;
  boost::asio::steady_timer room_;  // cancelled when input_ has room again

  RequestReader reader_;
  std::string input_;
  std::shared_ptr<SocketExchange> exchange_;  // null: none runs
  size_t body_bytes_ = 0;                     // counted in context_->bodies
  bool advancing_ = false;
  bool keep_alive_ = true;  // of the present exchange
  bool chunked_ = false, head_only_ = false;

  std::string pending_, in_flight_;
  size_t written_ = 0;  // of in_flight_
  bool writing_ = false;

  bool closing_ = false;   // after what is pending the connection ends
  bool said_bye_ = false;  // it has been shut down; what the client still sends is dropped
  bool closed_ = false;
  Clock::time_point request_began_, idle_since_, write_began_, bye_at_;
};

}  // namespace zipage
