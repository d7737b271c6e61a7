#include "server/gate.h"

#include "server/server_test.h"

namespace zipage {
namespace {

using GateTest = ServerTest;

TEST(Gate, ComparesWholeKeys) {
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  EXPECT_FALSE(equal_in_constant_time("secre", "secret"));
  EXPECT_FALSE(equal_in_constant_time("secretsecret", "secret"));
  EXPECT_FALSE(equal_in_constant_time("secres", "secret"));
  EXPECT_FALSE(equal_in_constant_time("", "secret"));
}

TEST_F(GateTest, AnyOfSeveralKeysOpensAndProbesNeedNone) {
  http.gate.api_keys = {"one", "two"};
  start();
  const auto status = [&](const std::string& headers) {
    return client().post("/v1/completions", R"({"prompt":"SAY[a]"})", headers).status;
  };
  EXPECT_EQ(status("Authorization: Bearer one\r\n"), 200);
  EXPECT_EQ(status("authorization: bearer two\r\n"), 200);
  EXPECT_EQ(status("Authorization: Bearer three\r\n"), 401);
  EXPECT_EQ(status("Authorization: one\r\n"), 401);
  const HttpReply reply = client().post("/v1/completions", "{}");
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(json::parse(reply.body)["error"]["type"], "AuthenticationError");
  EXPECT_EQ(get("/v1/models").status, 401);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/metrics").status, 200);
}

TEST_F(GateTest, OpenPathsCanBeClosed) {
  http.gate.api_keys = {"one"};
  http.gate.open_paths = {"/health"};
  start();
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/metrics").status, 401);
}

TEST_F(GateTest, BrowsersOfAllowedOriginsAreAnswered) {
  http.gate.api_keys = {"one"};
  http.gate.allowed_origins = {"https://a.example"};
  start();
  HttpClient one = client();
  one.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nOrigin: https://a.example\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n\r\n");
  HttpReply reply = one.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(reply.headers.at("access-control-allow-methods"), "POST");
  EXPECT_EQ(reply.headers.at("access-control-allow-headers"), "authorization");
  one.send("GET /health HTTP/1.1\r\nOrigin: https://a.example\r\n\r\n");
  EXPECT_EQ(one.read_reply().headers.at("vary"), "Origin");
  one.send("GET /health HTTP/1.1\r\nOrigin: https://b.example\r\n\r\n");
  EXPECT_FALSE(one.read_reply().headers.contains("access-control-allow-origin"));
  one.send("OPTIONS /v1/models HTTP/1.1\r\nOrigin: https://b.example\r\nAccess-Control-Request-Method: GET\r\n\r\n");
  EXPECT_EQ(one.read_reply().status, 400);
}

}  // namespace
}  // namespace zipage
