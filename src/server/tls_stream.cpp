#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "server/stream.h"

namespace zipage {
namespace {

namespace asio = boost::asio;

class TlsStream final : public Stream {
 public:
  TlsStream(StreamSocket socket, asio::ssl::context& context) : stream_(std::move(socket), context) {}

  asio::awaitable<ErrorCode> handshake() override {
    ErrorCode error;
    co_await stream_.async_handshake(asio::ssl::stream_base::server, asio::redirect_error(asio::use_awaitable, error));
    co_return error;
  }
  asio::awaitable<size_t> read_some(asio::mutable_buffer buffer, ErrorCode& error) override {
    co_return co_await stream_.async_read_some(buffer, asio::redirect_error(asio::use_awaitable, error));
  }
  void write(asio::const_buffer bytes, WriteHandler handler) override {
    asio::async_write(stream_, bytes, std::move(handler));
  }
  void shut_down(std::function<void()> done) override {
    stream_.async_shutdown([done = std::move(done)](const ErrorCode& /*error*/) { done(); });
  }
  void close() override {
    ErrorCode ignored;
    stream_.next_layer().close(ignored);
  }

 private:
  asio::ssl::stream<StreamSocket> stream_;
};

}  // namespace

struct TlsContext::State {
  asio::ssl::context context{asio::ssl::context::tls_server};
};

TlsContext::TlsContext(std::unique_ptr<State> state) : state_(std::move(state)) {}
TlsContext::~TlsContext() = default;

Result<std::unique_ptr<TlsContext>> TlsContext::load(const std::string& certificate, const std::string& key) {
  auto state = std::make_unique<State>();
  asio::ssl::context& context = state->context;
  context.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                      asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  SSL_CTX_set_mode(context.native_handle(), SSL_MODE_RELEASE_BUFFERS);
  boost::system::error_code error;
  context.use_certificate_chain_file(certificate, error);
  if (error) {
    return invalid_argument(fmt::format("--ssl-certfile: {}: {}", certificate, error.message()))
        .with_param("ssl-certfile");
  }
  context.use_private_key_file(key, asio::ssl::context::pem, error);
  if (error) {
    return invalid_argument(fmt::format("--ssl-keyfile: {}: {}", key, error.message())).with_param("ssl-keyfile");
  }
  return std::unique_ptr<TlsContext>(new TlsContext(std::move(state)));
}

std::unique_ptr<Stream> TlsContext::make_stream(StreamSocket socket) {
  return std::make_unique<TlsStream>(std::move(socket), state_->context);
}

}  // namespace zipage
