// A server over a scripted model, on a free port.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "server/http_client.h"
#include "server/http_server.h"
#include "server/router.h"
#include "server/scripted_model.h"
#include "server/serving.h"

namespace zipage {

class ServerTest : public testing::Test {
 protected:
  using json = nlohmann::json;

  // Fields that a test may change before start().
  HttpOptions http;
  ServingOptions serving_options;
  ScriptedModelOptions model;

  ServerTest() {
    http.host = "127.0.0.1";
    http.port = 0;
    http.io_threads = 2;
    serving_options.model_names = {"scripted"};
    serving_options.model_root = "scripted";
    serving_options.version = "1.2.3";
  }
  ~ServerTest() override { stop(); }
  // For the destructors of tests whose members the engine's thread uses.
  void stop() {
    server.reset();
    llm.reset();
  }

  void listen() {
    serving = std::make_unique<Serving>(serving_options);
    add_routes(router, *serving);
    auto started = HttpServer::start(http, router);
    ASSERT_TRUE(started.ok()) << started.status().message();
    server = *std::move(started);
  }
  void load() {
    llm = scripted_llm(std::move(model));
    const Status attached = serving->attach(*llm);
    ASSERT_TRUE(attached.ok()) << attached.message();
  }
  void start() {
    listen();
    load();
  }

  HttpClient client() { return HttpClient(server->port()); }
  HttpReply get(const std::string& path) { return client().get(path); }
  HttpReply post(const std::string& path, const json& body) { return client().post(path, body.dump()); }
  HttpReply post_text(const std::string& path, const std::string& body) { return client().post(path, body); }
  json complete(json body) {
    const HttpReply reply = post("/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body, nullptr, false);
  }
  json chat(json body) {
    const HttpReply reply = post("/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body, nullptr, false);
  }
  static json user(const std::string& text) { return json::array({{{"role", "user"}, {"content", text}}}); }

  // Until the condition holds; false after 20 s.
  template <typename Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 4000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return condition();
  }
  bool engine_is_empty() {
    const EngineStats stats = llm->engine().stats();
    return stats.num_running == 0 && stats.num_waiting == 0 && stats.blocks_live == 0 && stats.query_slots_used == 0;
  }

  Router router;
  std::unique_ptr<Serving> serving;
  std::unique_ptr<LLM> llm;
  std::unique_ptr<HttpServer> server;
};

}  // namespace zipage
