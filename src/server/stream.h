// A connected byte stream: TCP or a Unix socket, bare or under TLS. Inside src/server only: this header includes Boost.
//
// Thread-safety: one thread, that of the stream's io_context. One read and one write may be under way at once.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "zipage/status.h"

namespace zipage {

using StreamSocket =
    boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, boost::asio::io_context::executor_type>;

class Stream {
 public:
  using ErrorCode = boost::system::error_code;
  using WriteHandler = std::function<void(ErrorCode, size_t)>;
  virtual ~Stream() = default;

  // Before anything is read or written.
  virtual boost::asio::awaitable<ErrorCode> handshake() = 0;
  virtual boost::asio::awaitable<size_t> read_some(boost::asio::mutable_buffer buffer, ErrorCode& error) = 0;
  // Writes what the system takes at once and returns how many bytes that was; an error shows in the next write().
  // REQUIRES: no write() is under way.
  virtual size_t write_now(boost::asio::const_buffer /*bytes*/) { return 0; }
  // Writes all. The bytes must live until the handler is called.
  virtual void write(boost::asio::const_buffer bytes, WriteHandler handler) = 0;
  // Says goodbye: the other side reads an end, not a reset, once it has read all that was written. `done` is called
  // when that has been handed to the system.
  virtual void shut_down(std::function<void()> done) = 0;
  // Ends everything under way. The stream must live until the handlers have been called.
  virtual void close() = 0;
};

std::unique_ptr<Stream> make_plain_stream(StreamSocket socket);

// Certificate and key of the server.
class TlsContext {
 public:
  // PEM files. Errors name the file.
  static Result<std::unique_ptr<TlsContext>> load(const std::string& certificate, const std::string& key);
  ~TlsContext();
  std::unique_ptr<Stream> make_stream(StreamSocket socket);

 private:
  struct State;
  explicit TlsContext(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace zipage
