// Requests to an HTTP server, many at once on one thread: what `chat --url` and `bench serve` speak with.
//
// Thread-safety: one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "zipage/status.h"

namespace zipage::apps {

struct HttpTarget {
  std::string host = "127.0.0.1", port = "8000";
  std::string base;  // path before every request's, without a slash at its end
};
// "http://host:port/base", the scheme and the port may be missing.
Result<HttpTarget> parse_url(std::string_view url);

struct HttpPost {
  std::string path, body;
  std::string api_key;  // "" = none
  // The body as it comes; of an answer with another status than 200 it is kept for `done`.
  std::function<void(std::string_view)> data;
  // Once. An error: no answer, or not a whole one; or the server's own, with its sentence.
  std::function<void(const Status&)> done;
};

class HttpClient {
 public:
  explicit HttpClient(HttpTarget target);
  ~HttpClient();

  // GET, blocking: the body. For what happens once, before a run.
  Result<std::string> get(const std::string& path, const std::string& api_key);
  void post(HttpPost request);
  void after(double seconds, std::function<void()> task);
  // Until nothing is left to wait for.
  void run();
  // Drops every connection; `done` is not called any more. From tasks of run() only.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Server-sent events out of bytes: the text behind "data: " of each.
class EventReader {
 public:
  explicit EventReader(std::function<void(std::string_view)> event) : event_(std::move(event)) {}
  void push(std::string_view bytes);

 private:
  std::function<void(std::string_view)> event_;
  std::string line_;
};

}  // namespace zipage::apps
