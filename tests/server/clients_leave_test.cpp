// A client that goes away takes its request with it, wherever that is. (case_25)
#include "server/server_test.h"

namespace zipage {
namespace {

class ClientsLeave : public ServerTest {
 protected:
  ~ClientsLeave() override {
    brake.release();
    stop();
  }
  void start_with_brake() {
    if (!model.before_batch) model.before_token = [this] { brake.pass(); };
    model.max_model_len = 40000;
    model.num_blocks = 4000;
    start();
  }
  static std::string endless(bool stream) {
    return HttpClient::post_text("/v1/completions",
                                 json{{"prompt", "LOOP[x]"}, {"max_tokens", 30000}, {"stream", stream}}.dump());
  }
  int64_t aborted() { return llm->engine().stats().finished[static_cast<size_t>(FinishReason::kAbort)]; }
  void expect_ended(int64_t count) {
    EXPECT_TRUE(eventually([&] { return aborted() == count && engine_is_empty(); }))
        << aborted() << " of " << count << " were aborted";
    EXPECT_EQ(serving->num_generations(), 0);
    EXPECT_TRUE(eventually([&] { return server->num_exchanges() == 0; }));
  }
  Brake brake;
  const int model_chunk = scripted_config().max_num_batched_tokens;
};

TEST_F(ClientsLeave, case_25_BetweenChunks) {
  start_with_brake();
  HttpClient one = client();
  one.send(endless(true));
  one.read_until("data: ");
  one.close();
  expect_ended(1);
}

TEST_F(ClientsLeave, case_25_WhileAnAnswerIsGathered) {
  start_with_brake();
  brake.hold();
  HttpClient one = client();
  one.send(endless(false));
  brake.wait_until_reached();
  one.close();
  EXPECT_TRUE(eventually([&] { return server->num_connections() == 0; }));
  brake.release();
  expect_ended(1);
}

TEST_F(ClientsLeave, case_25_WhileItsPromptIsComputed) {
  model.before_batch = [this] { brake.pass(); };
  start_with_brake();
  for (const bool stream : {false, true}) {
    brake.hold();
    const int64_t before = llm->engine().stats().prompt_tokens;
    HttpClient one = client();
    const std::vector<int> prompt(20'000, 65);
    one.send(HttpClient::post_text("/v1/completions", json{{"prompt", prompt}, {"stream", stream}}.dump()));
    brake.wait_until_reached();
    one.close();
    EXPECT_TRUE(eventually([&] { return server->num_connections() == 0 && serving->num_generations() == 0; }));
    brake.release();
    expect_ended(stream ? 2 : 1);
    // The chunk that was under way, and one that may have been planned: never the whole prompt.
    EXPECT_LE(llm->engine().stats().prompt_tokens - before, 2 * model_chunk);
  }
  EXPECT_EQ(llm->engine().stats().generation_tokens, 0);
}

TEST_F(ClientsLeave, case_25_WithoutClosingItsSide) {
  start_with_brake();
  HttpClient one = client();
  one.send(endless(true));
  one.read_until("data: ");
  one.shut_down_writing();
  expect_ended(1);
}

TEST_F(ClientsLeave, case_25_WhileItWaitsBehindOthers) {
  model.config.max_num_seqs = 1;
  start_with_brake();
  brake.hold();
  HttpClient running = client(), waiting = client();
  running.send(endless(true));
  brake.wait_until_reached();
  waiting.send(endless(false));
  EXPECT_TRUE(eventually([&] { return serving->num_generations() == 2; }));
  waiting.close();
  EXPECT_TRUE(eventually([&] { return serving->num_generations() == 1; }));
  brake.release();
  EXPECT_TRUE(eventually([&] { return aborted() == 1; }));
  running.close();
  expect_ended(2);
}

TEST_F(ClientsLeave, case_25_WithARequestSentAhead) {
  start_with_brake();
  HttpClient one = client();
  one.send(endless(true) + endless(true));
  one.read_until("data: ");
  one.close();
  expect_ended(1);
}

TEST_F(ClientsLeave, EveryChoiceEnds) {
  start_with_brake();
  HttpClient one = client();
  one.send(HttpClient::post_text("/v1/completions",
                                 R"({"prompt":["LOOP[x]","LOOP[y]"],"n":2,"max_tokens":30000,"stream":true})"));
  one.read_until("data: ");
  one.close();
  expect_ended(4);
}

TEST_F(ClientsLeave, AbortRequestsEndsByIdWithTheReasonAbort) {
  start_with_brake();
  brake.hold();
  HttpClient one = client();
  one.send(HttpClient::post_text("/v1/completions", R"({"prompt":"LOOP[x]","max_tokens":30000,"request_id":"me"})"));
  brake.wait_until_reached();
  EXPECT_EQ(json::parse(get("/load").body)["server_load"], 1);
  EXPECT_EQ(post("/abort_requests", {{"request_ids", {"cmpl-me"}}}).status, 200);
  brake.release();
  EXPECT_EQ(json::parse(one.read_reply().body)["choices"][0]["finish_reason"], "abort");
  expect_ended(1);
}

}  // namespace
}  // namespace zipage
