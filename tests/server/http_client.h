// A small blocking HTTP client that shows every byte.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace zipage {

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  std::vector<std::string> events;             // data of server-sent events
  bool complete = false;                       // the end of the answer was read
};

class HttpClient {
 public:
  explicit HttpClient(int port, const std::string& address = "127.0.0.1");
  explicit HttpClient(const std::string& unix_socket);
  ~HttpClient();
  HttpClient(HttpClient&& other) noexcept;
  HttpClient(const HttpClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  void send(std::string_view bytes);
  // Up to and with the mark; what was read until then when the connection ends first.
  std::string read_until(std::string_view mark);
  // One answer. `head`: to a HEAD request, without a body.
  HttpReply read_reply(bool head = false);
  // Whether the server has closed, within two seconds.
  bool closed_by_server();
  void close();
  void shut_down_writing();
  void set_receive_buffer(int bytes);

  HttpReply get(const std::string& path);
  HttpReply post(const std::string& path, const std::string& body, const std::string& headers = "");
  static std::string post_text(const std::string& path, const std::string& body, const std::string& headers = "");

 private:
  bool fill();
  std::string take(size_t size);

  int fd_ = -1;
  std::string buffer_;
};

}  // namespace zipage
