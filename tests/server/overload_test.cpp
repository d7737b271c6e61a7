// Too much work, a stuck engine, an end: what clients are told.
#include "server/server_test.h"

namespace zipage {
namespace {

using ::testing::HasSubstr;

class Overload : public ServerTest {
 protected:
  ~Overload() override {
    brake.release();
    stop();
  }
  void start_with_brake() {
    model.before_token = [this] { brake.pass(); };
    start();
  }
  Brake brake;
  std::atomic<bool> broken = false;  // the next token is a device's failure
};

const std::string kLong = HttpClient::post_text("/v1/completions", R"({"prompt":"LOOP[x]","max_tokens":500})");
const std::string kStream =
    HttpClient::post_text("/v1/completions", R"({"prompt":"LOOP[x]","max_tokens":500,"stream":true})");

TEST_F(Overload, AFullQueueIs429WithRetryAfter) {
  model.config.max_num_seqs = 1;
  model.config.max_queued_requests = 1;
  start_with_brake();
  brake.hold();
  HttpClient running = client(), queued = client();
  running.send(kLong);
  brake.wait_until_reached();
  queued.send(kLong);
  EXPECT_TRUE(eventually([&] { return llm->engine().stats().num_waiting > 0; }));
  const HttpReply refused = post("/v1/completions", {{"prompt", "SAY[a]"}});
  EXPECT_EQ(refused.status, 429);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_EQ(json::parse(refused.body)["error"]["type"], "RateLimitError");
  brake.release();
  EXPECT_EQ(running.read_reply().status, 200);
  EXPECT_EQ(queued.read_reply().status, 200);
}

TEST_F(Overload, ARefusedBatchLeavesNothingBehind) {
  model.config.max_num_seqs = 1;
  model.config.max_queued_requests = 3;
  start_with_brake();
  brake.hold();
  HttpClient running = client();
  running.send(kLong);
  brake.wait_until_reached();
  EXPECT_EQ(post("/v1/completions", {{"prompt", "LOOP[x]"}, {"n", 8}}).status, 429);
  brake.release();
  EXPECT_EQ(running.read_reply().status, 200);
  EXPECT_TRUE(eventually([&] { return engine_is_empty(); }));
}

TEST_F(Overload, case_27_NotReadyWhileTheEngineStandsStill) {
  serving_options.stall_timeout = std::chrono::milliseconds(100);
  start_with_brake();
  EXPECT_EQ(get("/ready").status, 200);
  EXPECT_EQ(post("/v1/completions", {{"prompt", "SAY[a]"}}).status, 200);
  brake.hold();
  HttpClient stuck = client();
  stuck.send(kStream);
  brake.wait_until_reached();
  EXPECT_TRUE(eventually([&] { return get("/ready").status == 503; }));
  EXPECT_EQ(get("/health").status, 200);
  brake.release();
  EXPECT_TRUE(eventually([&] { return get("/ready").status == 200; }));
}

TEST_F(Overload, AStepThatThrowsFailsItsRequestsAndTheServerLives) {
  model.before_token = [this] {
    brake.pass();
    if (broken) throw std::runtime_error("device lost");
  };
  start();
  brake.hold();
  HttpClient whole = client(), stream = client();
  whole.send(kLong);
  brake.wait_until_reached();
  stream.send(kStream);
  EXPECT_TRUE(eventually([&] { return serving->num_generations() == 2; }));
  brake.release();
  stream.read_until("data: ");
  broken = true;
  const HttpReply failed = whole.read_reply();
  EXPECT_EQ(failed.status, 500);
  EXPECT_EQ(json::parse(failed.body)["error"]["type"], "InternalServerError");
  EXPECT_THAT(stream.read_until("[DONE]\n\n"), HasSubstr("device lost"));
  broken = false;
  EXPECT_EQ(complete({{"prompt", "SAY[alive]"}})["choices"][0]["text"], "alive");
  EXPECT_EQ(get("/ready").status, 200);
}

TEST_F(Overload, ShutdownLetsRunningWorkEndAndTakesNoMore) {
  start_with_brake();
  brake.hold();
  HttpClient running = client(), idle = client();
  EXPECT_EQ(idle.get("/health").status, 200);
  running.send(kLong);
  brake.wait_until_reached();
  std::thread draining([&] { server->drain(std::chrono::seconds(20)); });
  EXPECT_TRUE(idle.closed_by_server());
  idle.close();
  EXPECT_TRUE(eventually([&] { return !client().connected(); }));
  brake.release();
  const HttpReply reply = running.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(json::parse(reply.body)["usage"]["completion_tokens"], 500);
  EXPECT_TRUE(running.closed_by_server());
  running.close();
  draining.join();
  EXPECT_EQ(server->num_connections(), 0);
}

TEST_F(Overload, WhatRunsAfterTheTimeoutIsToldSo) {
  start_with_brake();
  brake.hold();
  HttpClient whole = client(), stream = client();
  whole.send(kLong);
  stream.send(kStream);
  EXPECT_TRUE(eventually([&] { return serving->num_generations() == 2; }));
  std::thread draining([&] { server->drain(std::chrono::milliseconds(100)); });
  const HttpReply ended = whole.read_reply();
  EXPECT_EQ(ended.status, 503);
  EXPECT_THAT(ended.body, HasSubstr("shutting down"));
  const HttpReply streamed = stream.read_reply();
  EXPECT_TRUE(streamed.complete);
  ASSERT_EQ(streamed.events.size(), 2U);
  EXPECT_EQ(json::parse(streamed.events[0])["error"]["code"], 503);
  EXPECT_EQ(streamed.events[1], "[DONE]");
  whole.close();
  stream.close();
  draining.join();
  brake.release();
  EXPECT_TRUE(eventually([&] { return engine_is_empty(); }));
}

}  // namespace
}  // namespace zipage
