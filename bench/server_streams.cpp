// Many streams at once through the server, over an engine that only keeps time: what the server adds to a token's way,
// and what an open stream costs.
//
//   bench_server_streams [STREAMS [TOKENS_PER_SECOND [SECONDS]]]        (2000 50000 20)
//
// The server runs in a process of its own. Each token's text says in which step it was made; the client knows when
// that was from memory that both share.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/log.h"
#include "server/http_server.h"
#include "server/router.h"
#include "server/serving.h"
#include "support/paced_engine.h"
#include "text/text_model.h"

namespace zipage {
namespace {

using Clock = std::chrono::steady_clock;

// Letters that say the step, modulo their number.
constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

struct Shared {
  std::atomic<int> port{0};
  std::atomic<int64_t> steps{0};
  std::atomic<int64_t> made_at[kLetters.size()];  // nanoseconds of the steady clock, by step
};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

[[noreturn]] void serve(Shared* shared, std::chrono::microseconds step) {
  set_log_level(LogLevel::kError);
  EngineConfig config;
  config.model = ZIPAGE_SOURCE_DIR "/models/reasoner/model";
  auto text = load_text_model(config, "");
  if (!text.ok()) _exit(1);
  PacedEngine::Options options;
  options.step = step;
  options.token = [shared](int64_t number) {
    const size_t letter = static_cast<size_t>(number) % kLetters.size();
    shared->made_at[letter] = now_ns();
    shared->steps = number + 1;
    return static_cast<int32_t>(kLetters[letter]);
  };
  const auto llm = make_llm(std::make_unique<PacedEngine>(std::move(options)), *std::move(text));
  ServingOptions serving_options;
  serving_options.model_names = {"paced"};
  Serving serving(serving_options);
  Router router;
  add_routes(router, serving);
  HttpOptions http;
  http.host = "127.0.0.1";
  http.port = 0;
  auto server = HttpServer::start(http, router);
  if (!server.ok() || !serving.attach(*llm).ok()) _exit(1);
  shared->port = (*server)->port();
  while (true) pause();
}

double rss_bytes(pid_t process) {
  std::ifstream statm(fmt::format("/proc/{}/statm", process));
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// User and system time of a process, seconds.
double cpu_seconds(pid_t process) {
  std::ifstream stat(fmt::format("/proc/{}/stat", process));
  std::string text(std::istreambuf_iterator<char>(stat), {});
  // The fields behind the name, which may hold spaces: utime and stime are the 12th and 13th.
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  int64_t user = 0, system = 0;
  fields >> user >> system;
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

int open_stream(int port, int max_tokens) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return -1;
  const std::string body =
      fmt::format(R"({{"messages":[{{"role":"user","content":"hello"}}],"max_tokens":{},"stream":true}})", max_tokens);
  const std::string text =
      fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
  return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()) ? fd : -1;
}

struct Load {
  int num_streams, tokens_per_second, seconds;
};

int measure(Shared* shared, pid_t server, const Load& load) {
  while (shared->port == 0) {
    if (waitpid(server, nullptr, WNOHANG) != 0) return 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const double before = rss_bytes(server);
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  std::vector<int> sockets;
  for (int i = 0; i < load.num_streams; ++i) {
    const int fd = open_stream(shared->port, 1 << 18);
    if (fd < 0) {
      fmt::print(stderr, "stream {} could not be opened\n", i);
      return 1;
    }
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    sockets.push_back(fd);
  }

  std::vector<float> delays;
  delays.reserve(static_cast<size_t>(load.tokens_per_second) * static_cast<size_t>(load.seconds));
  std::vector<epoll_event> events(static_cast<size_t>(load.num_streams));
  std::vector<char> bytes(1 << 16);
  const Clock::time_point measure_from = Clock::now() + std::chrono::seconds(3);
  const Clock::time_point end = measure_from + std::chrono::seconds(load.seconds);
  double peak = 0, cpu = 0;
  int64_t num_chunks = 0;
  while (Clock::now() < end) {
    const int count = epoll_wait(epoll, events.data(), static_cast<int>(events.size()), 100);
    for (int i = 0; i < count; ++i) {
      const ssize_t size = recv(events[static_cast<size_t>(i)].data.fd, bytes.data(), bytes.size(), 0);
      if (size <= 0) {
        fmt::print(stderr, "a stream has ended\n");
        return 1;
      }
      const Clock::time_point now = Clock::now();
      if (now < measure_from) continue;
      const int64_t at = now_ns();
      const std::string_view text(bytes.data(), static_cast<size_t>(size));
      constexpr std::string_view kContent = R"("content":")";
      for (size_t found = 0; (found = text.find(kContent, found)) != std::string_view::npos;) {
        found += kContent.size();
        ++num_chunks;
        for (; found < text.size() && text[found] != '"'; ++found) {
          const int64_t made = shared->made_at[kLetters.find(text[found])];
          delays.push_back(static_cast<float>(at - made) * 1e-6F);
        }
      }
    }
    if (Clock::now() > measure_from && peak == 0) {
      peak = rss_bytes(server);
      cpu = cpu_seconds(server);
    }
  }
  const double late = rss_bytes(server);
  cpu = cpu_seconds(server) - cpu;
  for (const int fd : sockets) close(fd);
  if (delays.empty()) return 1;
  std::sort(delays.begin(), delays.end());
  const auto at = [&](double q) { return delays[static_cast<size_t>(q * static_cast<double>(delays.size() - 1))]; };
  fmt::print(
      R"({{"streams":{},"tokens_per_second":{:.0f},"tokens_per_chunk":{:.3f},"delay_ms_p50":{:.2f},"delay_ms_p90":{:.2f},"delay_ms_p99":{:.2f},"delay_ms_max":{:.2f},"server_cpu_us_per_token":{:.1f},"bytes_per_stream":{:.0f},"bytes_per_stream_late":{:.0f}}})"
      "\n",
      load.num_streams, static_cast<double>(delays.size()) / load.seconds,
      static_cast<double>(delays.size()) / static_cast<double>(num_chunks), at(.5), at(.9), at(.99), delays.back(),
      cpu * 1e6 / static_cast<double>(delays.size()), (peak - before) / load.num_streams,
      (late - before) / load.num_streams);
  return 0;
}

int run(int argc, char** argv) {
  const auto number = [&](int index, int otherwise) { return argc > index ? std::atoi(argv[index]) : otherwise; };
  const Load load{number(1, 2000), number(2, 50'000), number(3, 20)};
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* shared = new (memory) Shared();
  const pid_t server = fork();
  if (server == 0) serve(shared, std::chrono::microseconds(1'000'000LL * load.num_streams / load.tokens_per_second));
  const int result = measure(shared, server, load);
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  return result;
}

}  // namespace
}  // namespace zipage

int main(int argc, char** argv) {
  return zipage::run(argc, argv);
}
