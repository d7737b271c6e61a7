// Listens, speaks HTTP/1.1, hands requests to a router's handlers.
//
// Thread-safety: all methods may be called from any thread, drain() from one.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "server/gate.h"
#include "server/request_reader.h"
#include "server/router.h"
#include "zipage/status.h"

namespace zipage {

struct HttpOptions {
  std::string host;  // "" = every address of the machine
  int port = 8000;   // 0 = one that is free
  std::string uds;   // a Unix socket's path, in place of host and port
  std::string ssl_certfile, ssl_keyfile;
  int io_threads = 4;       // more than processors: whichever is free finishes a step's tokens (decision 0060)
  int worker_threads = 2;   // for handlers that run on kWorker
  int max_connections = 0;  // 0 = as many as the process may have files open
  HttpLimits limits;
  std::chrono::milliseconds request_timeout{60'000};     // from a request's first byte to its last
  std::chrono::milliseconds keep_alive_timeout{75'000};  // between requests
  std::chrono::milliseconds write_timeout{60'000};       // a client that takes nothing for so long has gone
  GateOptions gate;
};

class HttpServer {
 public:
  // Binds and serves. Errors name the flag. The router must outlive the server.
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options, const Router& router);
  ~HttpServer();  // closes everything at once

  int port() const;             // 0 with a Unix socket
  std::string address() const;  // "http://127.0.0.1:8000", "unix:/run/zipage.sock"
  int num_exchanges() const;    // requests that are being answered
  int num_connections() const;
  size_t body_bytes() const;  // counted towards HttpLimits::total_body_bytes now

  // Takes no new work and waits for what runs; what still runs after `timeout` is told to end. Then closes.
  void drain(std::chrono::milliseconds timeout);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace zipage
