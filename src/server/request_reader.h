// Bytes to HTTP/1.1 requests, with limits.
//
// Thread-safety: one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "server/http.h"

namespace zipage {

struct HttpLimits {
  size_t header_bytes = 32 * 1024;
  size_t body_bytes = 32 * 1024 * 1024;         // of one request
  size_t total_body_bytes = 512 * 1024 * 1024;  // of all that are being received or answered, see BodyBudget
};

class RequestReader {
 public:
  enum class State : uint8_t {
    kIdle,       // between requests: not a byte of the next one has come
    kHeader,     // the header is not complete
    kExpects,    // the header is complete and the client waits for "100 Continue"; goes on with the next feed()
    kBody,       // the body is not complete
    kDone,       // take() gives the request
    kMalformed,  // error_status() and error_message() say why; nothing more can be read
  };

  explicit RequestReader(HttpLimits limits);
  ~RequestReader();

  // Takes from the front of `input` what belongs to the present request. REQUIRES: not kDone, not kMalformed.
  State feed(std::string& input);
  State state() const { return state_; }
  int error_status() const { return error_status_; }
  const std::string& error_message() const { return error_message_; }
  size_t body_size() const;  // of the present request, so far

  // Nothing more will be read: gives back what the request holds.
  void abandon();

  // The request, after kDone; the reader is kIdle then.
  HttpRequest take();
  // Of the request that take() gave last.
  bool keep_alive() const { return keep_alive_; }
  bool http_1_0() const { return http_1_0_; }

 private:
  struct Parser;
  State malformed(int status, std::string message);

  HttpLimits limits_;
  std::unique_ptr<Parser> parser_;  // null while idle: an open connection costs no more than it must
  State state_ = State::kIdle;
  bool keep_alive_ = false, http_1_0_ = false;
  int error_status_ = 0;
  std::string error_message_;
};

}  // namespace zipage
