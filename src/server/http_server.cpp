#include "server/http_server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "base/log.h"
#include "server/io_thread.h"
#include "server/session.h"
#include "server/stream.h"

namespace zipage {
namespace {

namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;
using Acceptor = asio::basic_socket_acceptor<Protocol, asio::io_context::executor_type>;

constexpr int kFewConnections = 64;
constexpr int kMostUnsent = 32 * 1024;  // bytes that a socket's own buffer holds back

Status cannot_listen(std::string_view where, std::string_view flag) {
  return Status(StatusCode::kUnavailable, fmt::format("cannot listen on {}: {}", where, std::strerror(errno)))
      .with_param(std::string(flag));
}

struct Listening {
  int fd = -1;
  int family = 0;
  int port = 0;
};

Result<Listening> listen_on(const addrinfo& address, std::string_view where) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return cannot_listen(where, "host");
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.ai_family == AF_INET6) {
    // "::" takes IPv4 too; other IPv6 addresses take their own.
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(address.ai_addr);
    const bool any = IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr);
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, any ? &off : &on, sizeof on);
  }
  if (bind(fd, address.ai_addr, address.ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
    const Status status = cannot_listen(where, "port");
    close(fd);
    return status;
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  const in_port_t port = bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                     : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
  return Listening{fd, address.ai_family, ntohs(port)};
}

// Every address that the host's name stands for, all on one port.
Result<std::vector<Listening>> listen_tcp(const HttpOptions& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  int port = options.port;
  std::vector<Listening> sockets;
  Status last;
  std::vector<std::string> hosts = {options.host};
  if (options.host.empty()) hosts = {"::", "0.0.0.0"};  // the second where there is no IPv6
  for (const std::string& host : hosts) {
    addrinfo* found = nullptr;
    const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (error != 0) {
      last = invalid_argument(fmt::format("--host: {}: {}", host, gai_strerror(error))).with_param("host");
      continue;
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
    for (addrinfo* address = found; address != nullptr; address = address->ai_next) {
      if (address->ai_family == AF_INET) reinterpret_cast<sockaddr_in*>(address->ai_addr)->sin_port = htons(port);
      if (address->ai_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(address->ai_addr)->sin6_port = htons(port);
      Result<Listening> socket = listen_on(*address, fmt::format("{} port {}", host, port));
      if (socket.ok()) {
        port = socket->port;
        sockets.push_back(*socket);
      } else {
        last = socket.status();
        if (errno == EADDRINUSE) break;
      }
    }
    if (!sockets.empty()) break;
  }
  if (sockets.empty()) return last;
  return sockets;
}

Result<std::vector<Listening>> listen_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return invalid_argument(fmt::format("--uds: {} is longer than {} bytes", path, sizeof address.sun_path - 1))
        .with_param("uds");
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return cannot_listen(path, "uds");
  // A socket that a process before this one left behind; nothing else is removed.
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode) &&
      connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    unlink(path.c_str());
  }
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(fd, SOMAXCONN) != 0) {
    const Status status = cannot_listen(path, "uds");
    ::close(fd);
    return status;
  }
  return std::vector<Listening>{{fd, AF_UNIX, 0}};
}

void raise_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

struct HttpServer::Impl {
  std::shared_ptr<SessionContext> context;
  std::vector<std::shared_ptr<IoThread>> threads;
  std::vector<std::unique_ptr<Acceptor>> acceptors;  // on the first thread
  std::unique_ptr<TlsContext> tls;
  std::string address;
  int port = 0;

  // The first with few connections, so that a step's tokens for few clients wake one thread; else the one with fewest.
  const std::shared_ptr<IoThread>& thread_for_one_more() const {
    const auto few = [](const auto& thread) { return thread->num_connections() < kFewConnections; };
    const auto found = std::ranges::find_if(threads, few);
    if (found != threads.end()) return *found;
    return *std::ranges::min_element(threads, {}, [](const auto& thread) { return thread->num_connections().load(); });
  }

  asio::awaitable<void> accept(Acceptor& acceptor, int family) {
    asio::steady_timer pause(threads.front()->context());
    while (acceptor.is_open()) {
      const std::shared_ptr<IoThread> thread = thread_for_one_more();
      StreamSocket socket(thread->context());
      boost::system::error_code error;
      co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
      if (!acceptor.is_open()) co_return;
      if (error) {
        // Out of files, most likely: the connections that are open go on, and end.
        pause.expires_after(std::chrono::milliseconds(100));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      const int most = context->options.max_connections;
      if (most > 0 && context->num_connections >= most) continue;
      if (family != AF_UNIX) {
        const int on = 1;
        setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        // Not megabytes of the system's memory for a client that does not read: its chunks are merged here.
        setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kMostUnsent, sizeof kMostUnsent);
      }
      auto stream = tls ? tls->make_stream(std::move(socket)) : make_plain_stream(std::move(socket));
      const auto session = std::make_shared<Session>(thread, context, std::move(stream));
      thread->post([session] { session->start(); });
    }
  }

  // On every thread, with all of its sessions; returns when all have done it.
  void for_sessions(const std::function<void(Session&)>& action) {
    std::vector<std::future<void>> done;
    for (const auto& thread : threads) {
      auto promise = std::make_shared<std::promise<void>>();
      done.push_back(promise->get_future());
      thread->post([thread = thread.get(), promise, &action] {
        const std::vector<Session*> sessions(thread->sessions().begin(), thread->sessions().end());
        for (Session* session : sessions) {
          if (thread->sessions().contains(session)) action(*session->shared_from_this());
        }
        promise->set_value();
      });
    }
    for (auto& each : done) each.wait();
  }

  void stop_accepting() {
    auto promise = std::make_shared<std::promise<void>>();
    threads.front()->post([this, promise] {
      boost::system::error_code ignored;
      for (const auto& acceptor : acceptors) acceptor->close(ignored);
      promise->set_value();
    });
    promise->get_future().wait();
  }
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options, const Router& router) {
  raise_open_files();
  auto impl = std::make_unique<Impl>();
  if (options.ssl_certfile.empty() != options.ssl_keyfile.empty()) {
    return invalid_argument("--ssl-certfile and --ssl-keyfile go together").with_param("ssl-keyfile");
  }
  if (!options.ssl_certfile.empty()) {
    ZIPAGE_ASSIGN_OR_RETURN(impl->tls, TlsContext::load(options.ssl_certfile, options.ssl_keyfile));
  }
  ZIPAGE_ASSIGN_OR_RETURN(const std::vector<Listening> sockets,
                          options.uds.empty() ? listen_tcp(options) : listen_unix(options.uds));
  HttpOptions kept = options;
  // What could never be let in is too large, not too much for now.
  kept.limits.body_bytes = std::min(kept.limits.body_bytes, kept.limits.total_body_bytes + BodyBudget::kFree);
  impl->context = std::shared_ptr<SessionContext>(
      new SessionContext{.options = std::move(kept),
                         .router = router,
                         .gate = Gate(options.gate),
                         .bodies = BodyBudget(options.limits.total_body_bytes),
                         .workers = asio::thread_pool(static_cast<size_t>(std::max(1, options.worker_threads)))});
  for (int i = 0; i < std::max(1, options.io_threads); ++i) impl->threads.push_back(std::make_shared<IoThread>());
  for (const Listening& socket : sockets) {
    impl->port = socket.port;
    impl->acceptors.push_back(
        std::make_unique<Acceptor>(impl->threads.front()->context(), Protocol(socket.family, 0), socket.fd));
    asio::co_spawn(impl->threads.front()->context(), impl->accept(*impl->acceptors.back(), socket.family),
                   asio::detached);
  }
  if (!options.uds.empty()) {
    impl->address = fmt::format("unix:{}", options.uds);
  } else {
    const std::string host = options.host.empty() ? "0.0.0.0" : options.host;
    const bool brackets = host.find(':') != std::string::npos;
    impl->address = fmt::format("{}://{}{}{}:{}", impl->tls ? "https" : "http", brackets ? "[" : "", host,
                                brackets ? "]" : "", impl->port);
  }
  for (const auto& thread : impl->threads) thread->start();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() {
  impl_->context->draining = true;
  impl_->stop_accepting();
  impl_->for_sessions([](Session& session) { session.lose_client(); });
  impl_->context->workers.join();
  for (const auto& thread : impl_->threads) thread->stop();
  if (!impl_->context->options.uds.empty()) unlink(impl_->context->options.uds.c_str());
}

int HttpServer::port() const {
  return impl_->port;
}
std::string HttpServer::address() const {
  return impl_->address;
}
int HttpServer::num_exchanges() const {
  return impl_->context->num_exchanges;
}
int HttpServer::num_connections() const {
  return impl_->context->num_connections;
}
size_t HttpServer::body_bytes() const {
  return impl_->context->bodies.used();
}

void HttpServer::drain(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto wait = [](const std::atomic<int>& count, Clock::time_point until) {
    while (count > 0 && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  SessionContext& context = *impl_->context;
  context.draining = true;
  impl_->stop_accepting();
  impl_->for_sessions([](Session& session) { session.drain(false); });
  wait(context.num_exchanges, Clock::now() + timeout);
  if (context.num_exchanges > 0) impl_->for_sessions([](Session& session) { session.drain(true); });
  // What was written last is on its way.
  wait(context.num_exchanges, Clock::now() + std::chrono::seconds(2));
  wait(context.num_connections, Clock::now() + std::chrono::milliseconds(500));
}

}  // namespace zipage
