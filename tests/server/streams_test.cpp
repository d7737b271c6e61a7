// Many streams at once: no token is lost, doubled or given to another.
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <stdexcept>

#include "server/server_test.h"
#include "support/paced_engine.h"

namespace zipage {
namespace {

class Streams : public ServerTest {
 protected:
  ~Streams() override {
    brake.release();
    stop();
  }

  static constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

  // One token a step for every request; its letter says the step.
  void start_paced(std::chrono::microseconds step = std::chrono::milliseconds(1)) {
    listen();
    EngineConfig config;
    config.model = std::string(ZIPAGE_SOURCE_DIR) + "/models/reasoner/model";
    auto text = load_text_model(config, "");
    ASSERT_TRUE(text.ok());
    PacedEngine::Options options;
    options.step = step;
    options.token = [this](int64_t number) {
      brake.pass();
      if (broken) throw std::runtime_error("the device is gone");
      return static_cast<int32_t>(kLetters[static_cast<size_t>(number) % kLetters.size()]);
    };
    llm = make_llm(std::make_unique<PacedEngine>(std::move(options)), *std::move(text));
    ASSERT_TRUE(serving->attach(*llm).ok());
  }
  Brake brake;
  std::atomic<bool> broken = false;  // the engine's next step ends its thread

  static int64_t resident_bytes() {
    std::ifstream statm("/proc/self/statm");
    int64_t size = 0, resident = 0;
    statm >> size >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }
  static std::string text_of(const HttpReply& reply) {
    std::string text;
    for (const std::string& event : reply.events) {
      if (event != "[DONE]") text += json::parse(event)["choices"][0]["delta"].value("content", "");
    }
    return text;
  }
  static void expect_consecutive(const std::string& text, size_t count) {
    ASSERT_EQ(text.size(), count);
    const size_t first = kLetters.find(text[0]);
    for (size_t i = 0; i < text.size(); ++i) ASSERT_EQ(text[i], kLetters[(first + i) % kLetters.size()]) << i;
  }
};

// bench_server_streams measures the same with 2,000 and looks at the clock.
TEST_F(Streams, EachOfManyGetsEveryTokenInOrderAndHoldsLittleMemory) {
  start_paced();
  brake.hold();
  [[maybe_unused]] const int64_t before = resident_bytes();
  constexpr int kStreams = 500;
  std::vector<HttpClient> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(client());
    const json body = {{"messages", user("hello")}, {"max_tokens", 100 + i % 7}, {"stream", true}};
    clients.back().send(HttpClient::post_text("/v1/chat/completions", body.dump()));
  }
  EXPECT_TRUE(eventually([&] { return serving->num_generations() == kStreams; }));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT((resident_bytes() - before) / kStreams, 100'000);
#endif
  brake.release();
  for (size_t i = 0; i < clients.size(); ++i) {
    const HttpReply reply = clients[i].read_reply();
    ASSERT_TRUE(reply.complete);
    EXPECT_EQ(reply.events.back(), "[DONE]");
    expect_consecutive(text_of(reply), 100 + i % 7);
  }
  EXPECT_EQ(serving->num_generations(), 0);
}

TEST_F(Streams, OneThatLeavesDisturbsNoOther) {
  start_paced();
  std::vector<HttpClient> clients;
  for (int i = 0; i < 60; ++i) {
    clients.push_back(client());
    const json body = {{"messages", user("hello")}, {"max_tokens", 300}, {"stream", true}};
    clients.back().send(HttpClient::post_text("/v1/chat/completions", body.dump()));
  }
  for (size_t i = 0; i < clients.size(); i += 2) {
    clients[i].read_until("content");
    clients[i].close();
  }
  for (size_t i = 1; i < clients.size(); i += 2) expect_consecutive(text_of(clients[i].read_reply()), 300);
  EXPECT_TRUE(eventually([&] { return serving->num_generations() == 0 && server->num_connections() == 30; }));
}

TEST_F(Streams, case_27_WhenTheEngineHasStoppedRequestsFailAndProbesSayNo) {
  start_paced();
  HttpClient stream = client(), whole = client();
  const json body = {{"messages", user("hello")}, {"max_tokens", 1 << 18}};
  json streamed = body;
  streamed["stream"] = true;
  stream.send(HttpClient::post_text("/v1/chat/completions", streamed.dump()));
  whole.send(HttpClient::post_text("/v1/chat/completions", body.dump()));
  EXPECT_TRUE(eventually([&] { return serving->num_generations() == 2; }));
  EXPECT_EQ(get("/health").status, 200);
  broken = true;
  const HttpReply ended = stream.read_reply();
  ASSERT_GE(ended.events.size(), 2U);
  EXPECT_THAT(ended.events[ended.events.size() - 2], testing::HasSubstr("the device is gone"));
  EXPECT_EQ(ended.events.back(), "[DONE]");
  EXPECT_EQ(whole.read_reply().status, 500);
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/ready").status, 503);
  EXPECT_EQ(post("/v1/chat/completions", body).status, 503);
}

TEST_F(Streams, ASlowReaderCostsOnlyItsText) {
  start_paced(std::chrono::microseconds(0));
  HttpClient slow = client();
  slow.set_receive_buffer(4096);
  const json body = {{"messages", user("hello")}, {"max_tokens", 40000}, {"stream", true}};
  slow.send(HttpClient::post_text("/v1/chat/completions", body.dump()));
  EXPECT_TRUE(eventually([&] { return serving->num_generations() == 1; }));
  EXPECT_EQ(chat({{"messages", user("hello")}, {"max_tokens", 3}})["usage"]["completion_tokens"], 3);
  // It is read when all of it has been made.
  EXPECT_TRUE(eventually([&] { return serving->num_generations() == 0; }));
  const HttpReply reply = slow.read_reply();
  expect_consecutive(text_of(reply), 40000);
  EXPECT_EQ(reply.events.back(), "[DONE]");
  EXPECT_LT(reply.events.size(), 39000U) << "every token had a chunk of its own: they were kept, not merged";
}

TEST_F(Streams, AReaderThatTakesNothingIsDropped) {
  http.write_timeout = std::chrono::milliseconds(300);
  start_paced();
  HttpClient stuck = client();
  stuck.set_receive_buffer(2048);
  // An answer larger than the system's own buffers.
  const json body = {{"prompt", std::string(1 << 20, '7')}, {"return_token_strs", true}};
  stuck.send(HttpClient::post_text("/tokenize", body.dump()));
  EXPECT_TRUE(eventually([&] { return server->num_exchanges() == 1; }));
  EXPECT_TRUE(eventually([&] { return server->num_connections() == 0; }));
}

}  // namespace
}  // namespace zipage
