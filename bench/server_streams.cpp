// Many streams at once through the server, over an engine that only keeps time: what the server adds to a token's way,
// and what an open stream costs.
//
//   bench_server_streams [STREAMS [TOKENS_PER_SECOND [SECONDS [SHARE]]]]        (2000 50000 20 8)
//
// The server runs in a process of its own. Each token's text says in which step it was made; the client knows when
// that was from memory that both share. One stream of SHARE is read as its tokens come, and measured. The others are
// read once a second, since real clients' work is done elsewhere and here it takes the server's processors: 1 measures
// all. Every token of every stream is checked to be the next one.
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
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
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

[[noreturn]] void serve(Shared* shared, std::chrono::microseconds step, int io_threads) {
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
  http.io_threads = io_threads;
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
  int measured_share;  // one stream of so many
};

// One stream as its client reads it.
class StreamReader {
 public:
  explicit StreamReader(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_chunks() const { return num_chunks_; }

  // Reads what has come and calls `token` with each new token's letter. False: the stream has ended, or a token was
  // lost, doubled or another's.
  template <typename Token>
  bool read(std::vector<char>& bytes, Token token) {
    const ssize_t size = recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (size <= 0) return size < 0 && errno == EAGAIN;
    std::string_view text(bytes.data(), static_cast<size_t>(size));
    if (!rest_.empty()) text = rest_.append(text);
    constexpr std::string_view kContent = R"("content":")";
    size_t line = 0;
    for (size_t end = 0; (end = text.find('\n', line)) != std::string_view::npos; line = end + 1) {
      size_t at = text.find(kContent, line);
      if (at > end) continue;
      ++num_chunks_;
      for (at += kContent.size(); text[at] != '"'; ++at) {
        const size_t letter = kLetters.find(text[at]);
        if (num_tokens_++ > 0 && letter != (last_ + 1) % kLetters.size()) return false;
        last_ = letter;
        token(letter);
      }
    }
    rest_ = std::string(text.substr(line));
    return true;
  }

 private:
  int fd_;
  std::string rest_;  // of a line that has not ended
  size_t last_ = 0;
  int64_t num_tokens_ = 0, num_chunks_ = 0;
};

struct Measured {
  std::vector<float> delays;  // milliseconds
  double bytes_before = 0, bytes_early = 0, bytes_late = 0;
  double cpu_seconds = 0;
  int64_t num_tokens = 0, num_chunks = 0;
};

void print(const Load& load, Measured& result) {
  std::vector<float>& delays = result.delays;
  std::sort(delays.begin(), delays.end());
  const auto at = [&](double q) { return delays[static_cast<size_t>(q * static_cast<double>(delays.size() - 1))]; };
  const auto tokens = static_cast<double>(result.num_tokens);
  const auto per_stream = [&](double bytes) { return (bytes - result.bytes_before) / load.num_streams; };
  fmt::print(
      R"({{"streams":{},"tokens_per_second":{:.0f},"tokens_per_chunk":{:.3f},"measured_tokens":{},"delay_ms_p50":{:.2f},)"
      R"("delay_ms_p90":{:.2f},"delay_ms_p99":{:.2f},"delay_ms_max":{:.2f},"server_cpu_us_per_token":{:.1f},)"
      R"("bytes_per_stream":{:.0f},"bytes_per_stream_late":{:.0f}}})"
      "\n",
      load.num_streams, tokens / load.seconds, tokens / static_cast<double>(result.num_chunks), delays.size(), at(.5),
      at(.9), at(.99), delays.back(), result.cpu_seconds * 1e6 / tokens, per_stream(result.bytes_early),
      per_stream(result.bytes_late));
}

int measure(Shared* shared, pid_t server, const Load& load) {
  while (shared->port == 0) {
    if (waitpid(server, nullptr, WNOHANG) != 0) return 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  Measured result;
  result.bytes_before = rss_bytes(server);
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  std::vector<StreamReader> streams;
  std::vector<size_t> unmeasured;
  for (int i = 0; i < load.num_streams; ++i) {
    const int fd = open_stream(shared->port, 1 << 18);
    if (fd < 0) {
      fmt::print(stderr, "stream {} could not be opened\n", i);
      return 1;
    }
    const size_t index = streams.size();
    streams.emplace_back(fd);
    if (i % load.measured_share != 0) {
      unmeasured.push_back(index);
      continue;
    }
    epoll_event event{.events = EPOLLIN, .data = {.u64 = index}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  }

  result.delays.reserve(static_cast<size_t>(load.tokens_per_second) * static_cast<size_t>(load.seconds));
  std::vector<epoll_event> events(static_cast<size_t>(load.num_streams));
  std::vector<char> bytes(1 << 16);
  const Clock::time_point begin = Clock::now(), measure_from = begin + std::chrono::seconds(3);
  const Clock::time_point end = measure_from + std::chrono::seconds(load.seconds);
  size_t num_drained = 0;
  bool measuring = false;
  const auto counts = [&] {
    std::pair<int64_t, int64_t> sum{0, 0};
    for (const StreamReader& stream : streams) sum.first += stream.num_tokens(), sum.second += stream.num_chunks();
    return sum;
  };
  std::pair<int64_t, int64_t> counted_before;
  while (true) {
    const Clock::time_point now = Clock::now();
    if (now >= end) break;
    if (!measuring && now >= measure_from) {
      measuring = true;
      counted_before = counts();
      result.bytes_early = rss_bytes(server);
      result.cpu_seconds = -cpu_seconds(server);
    }
    // A client that is woken for every token costs the server's threads their processor; this adds up to a millisecond.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int count = epoll_wait(epoll, events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      StreamReader& stream = streams[events[static_cast<size_t>(i)].data.u64];
      const auto arrived = [&](size_t letter) {
        if (measuring) result.delays.push_back(static_cast<float>(now_ns() - shared->made_at[letter]) * 1e-6F);
      };
      if (!stream.read(bytes, arrived)) {
        fmt::print(stderr, "a stream has ended, or a token is not the next one\n");
        return 1;
      }
    }
    // The others' turn comes once a second.
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const auto due = static_cast<size_t>(seconds * static_cast<double>(unmeasured.size()));
    for (; num_drained < due; ++num_drained) {
      if (streams[unmeasured[num_drained % unmeasured.size()]].read(bytes, [](size_t) {})) continue;
      fmt::print(stderr, "a stream has ended, or a token is not the next one\n");
      return 1;
    }
  }
  result.bytes_late = rss_bytes(server);
  result.cpu_seconds += cpu_seconds(server);
  std::tie(result.num_tokens, result.num_chunks) = counts();
  result.num_tokens -= counted_before.first;
  result.num_chunks -= counted_before.second;
  for (const StreamReader& stream : streams) close(stream.fd());
  if (result.delays.empty()) return 1;
  print(load, result);
  return 0;
}

int run(int argc, char** argv) {
  const auto number = [&](int index, int otherwise) { return argc > index ? std::atoi(argv[index]) : otherwise; };
  const Load load{number(1, 2000), number(2, 50'000), number(3, 20), std::max(1, number(4, 8))};
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* shared = new (memory) Shared();
  const pid_t server = fork();
  if (server == 0) {
    serve(shared, std::chrono::microseconds(1'000'000LL * load.num_streams / load.tokens_per_second),
          number(5, HttpOptions().io_threads));
  }
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
