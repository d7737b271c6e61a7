#include <filesystem>

#include "server/server_test.h"

namespace zipage {
namespace {

using ::testing::HasSubstr;

using Sessions = ServerTest;

const std::string kGet = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";

TEST_F(Sessions, AConnectionServesManyRequests) {
  start();
  HttpClient one = client();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(one.get("/health").status, 200);
  EXPECT_EQ(one.post("/v1/completions", R"({"prompt":"SAY[a]","stream":true})").status, 200);
  EXPECT_EQ(one.get("/version").status, 200);
  EXPECT_EQ(server->num_connections(), 1);
}

TEST_F(Sessions, PipelinedRequestsAreAnsweredInOrder) {
  start();
  HttpClient one = client();
  const std::string slow = HttpClient::post_text("/v1/completions", R"({"prompt":"SAY[first]"})");
  const std::string stream = HttpClient::post_text("/v1/completions", R"({"prompt":"SAY[second]","stream":true})");
  one.send(slow + stream + "GET /version HTTP/1.1\r\nHost: x\r\n\r\n" + kGet);
  EXPECT_THAT(one.read_reply().body, HasSubstr("first"));
  const HttpReply second = one.read_reply();
  EXPECT_EQ(second.events.back(), "[DONE]");
  EXPECT_THAT(one.read_reply().body, HasSubstr("1.2.3"));
  EXPECT_EQ(one.read_reply().body, "");
}

TEST_F(Sessions, ARequestMayComeByteByByte) {
  start();
  HttpClient one = client();
  for (const char c : HttpClient::post_text("/v1/completions", R"({"prompt":"SAY[slow]"})")) one.send({&c, 1});
  EXPECT_THAT(one.read_reply().body, HasSubstr("slow"));
}

TEST_F(Sessions, ChunkedBodiesAreRead) {
  start();
  HttpClient one = client();
  one.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  one.send("B\r\n{\"prompt\":\"\r\n");
  one.send("8\r\nSAY(ok)\"\r\n1\r\n}\r\n0\r\n\r\n");
  EXPECT_THAT(one.read_reply().body, HasSubstr("ok"));
  EXPECT_EQ(one.get("/health").status, 200);
}

TEST_F(Sessions, AClientThatExpectsIsToldToGoOn) {
  start();
  HttpClient one = client();
  const std::string body = R"({"prompt":"SAY[more]"})";
  one.send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
                       body.size()));
  EXPECT_EQ(one.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  one.send(body);
  EXPECT_THAT(one.read_reply().body, HasSubstr("more"));
}

TEST_F(Sessions, ABodyTooLargeIsRefusedBeforeItIsSent) {
  http.limits.body_bytes = 1000;
  start();
  HttpClient one = client();
  one.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n");
  const HttpReply reply = one.read_reply();
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_EQ(json::parse(reply.body)["error"]["code"], 413);
  EXPECT_TRUE(one.closed_by_server());

  HttpClient two = client();
  two.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
           std::string(2000, 'x') + "\r\n0\r\n\r\n");
  EXPECT_EQ(two.read_reply().status, 413);
}

TEST_F(Sessions, BodiesTogetherHaveALimitThatLeavesOthersAlone) {
  http.limits.total_body_bytes = 500'000;
  start();
  const auto body = [](size_t size) { return R"({"prompt":"SAY[ok]","x":")" + std::string(size, 'y') + "\"}"; };
  // Two fit; they are held open by bodies that do not end.
  std::vector<HttpClient> open;
  for (int i = 0; i < 2; ++i) {
    open.push_back(client());
    const std::string text = HttpClient::post_text("/v1/completions", body(300'000));
    open.back().send(std::string_view(text).substr(0, text.size() - 10));
  }
  EXPECT_TRUE(eventually([&] { return server->body_bytes() > 400'000; }));
  HttpClient third = client();
  third.send(HttpClient::post_text("/v1/completions", body(300'000)));
  const HttpReply refused = third.read_reply();
  EXPECT_EQ(refused.status, 429);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_EQ(post_text("/v1/completions", body(60'000)).status, 200) << "everyday bodies are let in all the same";
  EXPECT_EQ(post_text("/v1/completions", body(600'000)).status, 413) << "never fits";
  open[0].send("yyyyyyyy\"}");
  EXPECT_EQ(open[0].read_reply().status, 200);
  EXPECT_EQ(post_text("/v1/completions", body(200'000)).status, 200) << "there is room again";
  open[1].close();
  EXPECT_TRUE(eventually([&] { return server->body_bytes() == 0; }));
}

TEST_F(Sessions, AHeaderTooLargeIsRefused) {
  http.limits.header_bytes = 1000;
  start();
  HttpClient whole = client();
  whole.send("GET /health HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n");
  EXPECT_EQ(whole.read_reply().status, 431);
  HttpClient endless = client();
  endless.send("GET /health HTTP/1.1\r\nX: " + std::string(2000, 'x'));
  EXPECT_EQ(endless.read_reply().status, 431);
}

TEST_F(Sessions, ARequestThatDoesNotArriveTimesOut) {
  http.request_timeout = std::chrono::milliseconds(300);
  start();
  HttpClient header = client();
  header.send("GET /hea");
  EXPECT_EQ(header.read_reply().status, 408);
  EXPECT_TRUE(header.closed_by_server());
  HttpClient body = client();
  body.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 10\r\n\r\n{");
  EXPECT_EQ(body.read_reply().status, 408);
}

TEST_F(Sessions, AnIdleConnectionIsClosedInTheEnd) {
  http.keep_alive_timeout = std::chrono::milliseconds(300);
  start();
  HttpClient one = client();
  EXPECT_EQ(one.get("/health").status, 200);
  EXPECT_TRUE(one.closed_by_server());
}

TEST_F(Sessions, WhatIsNoHttpIsRefusedAndClosed) {
  start();
  for (const char* text :
       {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"}) {
    HttpClient one = client();
    one.send(text);
    EXPECT_EQ(one.read_reply().status, 400) << text;
    EXPECT_TRUE(one.closed_by_server());
  }
  HttpClient two = client();
  two.send("GET / HTTP/2.0\r\n\r\n");
  EXPECT_EQ(two.read_reply().status, 505);
}

TEST_F(Sessions, UnknownPathsAndMethodsSayWhatIsKnown) {
  start();
  EXPECT_EQ(get("/nothing").status, 404);
  const HttpReply reply = get("/v1/completions");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers.at("allow"), "POST");
  const HttpReply posted = post_text("/health", "");
  EXPECT_EQ(posted.status, 405);
  EXPECT_EQ(posted.headers.at("allow"), "GET, HEAD");
}

TEST_F(Sessions, HeadIsGetWithoutTheBody) {
  start();
  HttpClient one = client();
  const size_t size = one.get("/version").body.size();
  one.send("HEAD /version HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(one.read_reply(true).headers.at("content-length"), std::to_string(size));
  EXPECT_EQ(one.get("/health").status, 200);
}

TEST_F(Sessions, Http10EndsWithTheConnection) {
  start();
  HttpClient one = client();
  const std::string body = R"({"prompt":"SAY[old]","stream":true})";
  one.send(fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
  const HttpReply reply = one.read_reply();
  EXPECT_FALSE(reply.headers.contains("transfer-encoding"));
  EXPECT_EQ(reply.events.back(), "[DONE]");
}

TEST_F(Sessions, ConnectionCloseIsHonoured) {
  start();
  HttpClient one = client();
  one.send("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(one.read_reply().headers.at("connection"), "close");
  EXPECT_TRUE(one.closed_by_server());
}

TEST_F(Sessions, QueriesAndAbsoluteTargetsFindThePath) {
  start();
  EXPECT_EQ(get("/version?x=1").status, 200);
  EXPECT_EQ(get("http://somewhere/version").status, 200);
}

TEST_F(Sessions, IPv6AndUnixSockets) {
  http.host = "::1";
  listen();
  EXPECT_EQ(HttpClient(server->port(), "::1").get("/health").status, 200);
  EXPECT_THAT(server->address(), HasSubstr("[::1]"));

  const std::string path = testing::TempDir() + "zipage_session_test.sock";
  HttpOptions unix_socket = http;
  unix_socket.uds = path;
  auto other = HttpServer::start(unix_socket, router);
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(HttpClient(path).get("/health").status, 200);
  EXPECT_EQ(HttpServer::start(unix_socket, router).status().param(), "uds");
  other->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Sessions, ATakenPortIsAnErrorThatNamesTheFlag) {
  listen();
  HttpOptions again = http;
  again.port = server->port();
  EXPECT_EQ(HttpServer::start(again, router).status().param(), "port");
}

}  // namespace
}  // namespace zipage
