// An HTTP request, its answer, and the exchange of one for the other. Handlers are written against these and know no
// sockets: a connection, a batch file or a test can stand behind an Exchange.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zipage/llm.h"
#include "zipage/status.h"

namespace zipage {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// Thread-safety: a value.
struct HttpRequest {
  std::string method;   // "POST"
  std::string path;     // without the query
  std::string query;    // what follows '?'
  HttpHeaders headers;  // names in lower case
  std::string body;

  // The first of that name (lower case); "" when there is none.
  std::string_view header(std::string_view name) const;
};

// Thread-safety: a value.
struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;  // besides Content-Type, Content-Length, Date and Connection
};

// Why an exchange is over before its answer.
enum class EndReason : uint8_t {
  kClientGone,  // nobody reads an answer any more
  kShutdown,    // the answer should say so, now
};

// The answer is one send(), or one open(), some write()s and a close().
//
// Thread-safety: request() and post() may be used from any thread, take_body() by the handler. All else belongs to the
// exchange's own thread, that is to the tasks that it was given by post().
class Exchange {
 public:
  virtual ~Exchange() = default;

  const HttpRequest& request() const { return request_; }
  // An exchange may last long; its body need not.
  std::string take_body() { return std::exchange(request_.body, {}); }
  // Runs tasks in order, one at a time. Tasks may be dropped once the exchange is over.
  virtual void post(std::function<void()> task) = 0;

  virtual void send(HttpResponse response) = 0;
  // The head of a streamed answer; response.body is its first piece.
  virtual void open(HttpResponse response) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void close() = 0;

  // Bytes written that the client has not taken yet. on_drained() is called each time that they have fallen to none.
  virtual size_t backlog() const = 0;
  virtual void on_drained(std::function<void()> callback) = 0;

  // The client has gone: nothing of an answer will arrive.
  virtual bool gone() const = 0;
  // Called at most once for each reason, and never after the answer is complete.
  virtual void on_end(std::function<void(EndReason)> callback) = 0;

 protected:
  explicit Exchange(HttpRequest request) : request_(std::move(request)) {}

 private:
  HttpRequest request_;
};
using ExchangePtr = std::shared_ptr<Exchange>;

// "a%2Fb" is "a/b"; what is no escape stays as it is.
std::string percent_decoded(std::string_view text);

// post() as LLM::submit() wants it. Holds the exchange.
TextExecutor executor_of(const ExchangePtr& exchange);
// send() from any thread.
void respond(const ExchangePtr& exchange, HttpResponse response);

// The HTTP status that an error is answered with, and OpenAI's error object.
int http_status(const Status& status);
std::string error_json(int http_status, std::string_view message, std::string_view param = {});
HttpResponse error_response(int http_status, std::string_view message, std::string_view param = {});
HttpResponse error_response(const Status& status);
HttpResponse text_response(int http_status, std::string_view content_type, std::string body);

}  // namespace zipage
