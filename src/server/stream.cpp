#include "server/stream.h"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace zipage {
namespace {

namespace asio = boost::asio;

class PlainStream final : public Stream {
 public:
  explicit PlainStream(StreamSocket socket) : socket_(std::move(socket)) {}

  asio::awaitable<ErrorCode> handshake() override { co_return ErrorCode(); }
  asio::awaitable<size_t> read_some(asio::mutable_buffer buffer, ErrorCode& error) override {
    co_return co_await socket_.async_read_some(buffer, asio::redirect_error(asio::use_awaitable, error));
  }
  size_t write_now(asio::const_buffer bytes) override {
    const ssize_t size = send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return size < 0 ? 0 : static_cast<size_t>(size);
  }
  void write(asio::const_buffer bytes, WriteHandler handler) override {
    asio::async_write(socket_, bytes, std::move(handler));
  }
  void shut_down(std::function<void()> done) override {
    ErrorCode ignored;
    socket_.shutdown(asio::socket_base::shutdown_send, ignored);
    done();
  }
  void close() override {
    ErrorCode ignored;
    socket_.close(ignored);
  }

 private:
  StreamSocket socket_;
};

}  // namespace

std::unique_ptr<Stream> make_plain_stream(StreamSocket socket) {
  return std::make_unique<PlainStream>(std::move(socket));
}

}  // namespace zipage
