#include "server/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace zipage {
namespace {

constexpr int kPatience = 20'000;  // milliseconds until a test gives up

}  // namespace

HttpClient::HttpClient(int port, const std::string& address) {
  sockaddr_in in4{};
  in4.sin_family = AF_INET;
  in4.sin_port = htons(static_cast<uint16_t>(port));
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(static_cast<uint16_t>(port));
  const bool v6 = inet_pton(AF_INET6, address.c_str(), &in6.sin6_addr) == 1;
  if (!v6) inet_pton(AF_INET, address.c_str(), &in4.sin_addr);
  fd_ = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto* target = v6 ? reinterpret_cast<sockaddr*>(&in6) : reinterpret_cast<sockaddr*>(&in4);
  if (connect(fd_, target, v6 ? sizeof in6 : sizeof in4) != 0) close();
}

HttpClient::HttpClient(const std::string& unix_socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(unix_socket.begin(), unix_socket.end(), address.sun_path);
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
}

HttpClient::~HttpClient() {
  close();
}
HttpClient::HttpClient(HttpClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}

void HttpClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void HttpClient::shut_down_writing() {
  shutdown(fd_, SHUT_WR);
}

void HttpClient::set_receive_buffer(int bytes) {
  setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

void HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

bool HttpClient::fill() {
  pollfd waiting{fd_, POLLIN, 0};
  if (fd_ < 0 || poll(&waiting, 1, kPatience) <= 0) return false;
  char bytes[16384];
  const ssize_t size = recv(fd_, bytes, sizeof bytes, 0);
  if (size <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(size));
  return true;
}

std::string HttpClient::take(size_t size) {
  std::string result = buffer_.substr(0, size);
  buffer_.erase(0, size);
  return result;
}

std::string HttpClient::read_until(std::string_view mark) {
  size_t at = 0;
  while ((at = buffer_.find(mark)) == std::string::npos) {
    if (!fill()) return take(buffer_.size());
  }
  return take(at + mark.size());
}

bool HttpClient::closed_by_server() {
  pollfd waiting{fd_, POLLIN, 0};
  char byte = 0;
  return poll(&waiting, 1, 2000) > 0 && recv(fd_, &byte, 1, MSG_PEEK) <= 0;
}

HttpReply HttpClient::read_reply(bool head) {
  HttpReply reply;
  std::string text = read_until("\r\n\r\n");
  if (!text.starts_with("HTTP/1.")) return reply;
  reply.status = std::atoi(text.c_str() + 9);
  for (size_t line = text.find("\r\n") + 2; line + 2 < text.size();) {
    const size_t end = text.find("\r\n", line), colon = text.find(": ", line);
    std::string name = text.substr(line, colon - line);
    std::transform(name.begin(), name.end(), name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    reply.headers[name] = text.substr(colon + 2, end - colon - 2);
    line = end + 2;
  }
  if (head || reply.status == 100 || reply.status == 204) {
    reply.complete = true;
  } else if (reply.headers.contains("content-length")) {
    const size_t size = std::stoul(reply.headers["content-length"]);
    while (buffer_.size() < size && fill()) {
    }
    reply.complete = buffer_.size() >= size;
    reply.body = take(size);
  } else if (reply.headers.contains("transfer-encoding")) {
    while (true) {
      const std::string line = read_until("\r\n");
      if (!line.ends_with("\r\n")) break;
      const size_t size = std::stoul(line, nullptr, 16);
      while (buffer_.size() < size + 2 && fill()) {
      }
      if (buffer_.size() < size + 2) break;
      reply.body += take(size);
      take(2);
      reply.complete = size == 0;
      if (size == 0) break;
    }
  } else {
    while (fill()) {
    }
    reply.body = take(buffer_.size());
    reply.complete = true;
  }
  if (reply.headers["content-type"].starts_with("text/event-stream")) {
    for (size_t at = 0, end; (end = reply.body.find("\n\n", at)) != std::string::npos; at = end + 2) {
      std::string event = reply.body.substr(at, end - at);
      reply.events.push_back(event.starts_with("data: ") ? event.substr(6) : event);
    }
  }
  return reply;
}

std::string HttpClient::post_text(const std::string& path, const std::string& body, const std::string& headers) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n{}",
                     path, headers, body.size(), body);
}

HttpReply HttpClient::get(const std::string& path) {
  send(fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", path));
  return read_reply();
}

HttpReply HttpClient::post(const std::string& path, const std::string& body, const std::string& headers) {
  send(post_text(path, body, headers));
  return read_reply();
}

}  // namespace zipage
