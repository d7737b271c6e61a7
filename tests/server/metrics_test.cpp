#include "server/metrics.h"

#include <map>
#include <set>
#include <sstream>

#include "server/server_test.h"

namespace zipage {
namespace {

using ::testing::HasSubstr;

struct Family {
  std::string type;
  std::set<std::string> labels;
  std::vector<std::string> bounds;
};

// What the exposition declares, and the labels and bucket bounds that its samples carry.
std::map<std::string, Family> families(const std::string& text) {
  std::map<std::string, Family> result;
  std::string name;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      name = line.substr(7, line.find(' ', 7) - 7);
      result[name].type = line.substr(line.rfind(' ') + 1);
    } else if (!line.starts_with('#')) {
      EXPECT_TRUE(line.starts_with(name)) << line;
      const size_t open = line.find('{'), close = line.find('}');
      for (size_t at = open + 1; at < close;) {
        const size_t equals = line.find('=', at), end = line.find('"', equals + 2);
        const std::string label = line.substr(at, equals - at);
        result[name].labels.insert(label);
        if (label == "le") result[name].bounds.push_back(line.substr(equals + 2, end - equals - 2));
        at = end + 2;
      }
    }
  }
  return result;
}

using MetricsTest = ServerTest;

TEST_F(MetricsTest, NamesTypesAndLabelsAreThoseOfVllmsDashboards) {
  start();
  const auto found = families(get("/metrics").body);
  const std::set<std::string> plain = {"engine", "model_name"};
  const std::map<std::string, std::string> expected = {
      {"vllm:num_requests_running", "gauge"},
      {"vllm:num_requests_waiting", "gauge"},
      {"vllm:kv_cache_usage_perc", "gauge"},
      {"vllm:num_preemptions_total", "counter"},
      {"vllm:prefix_cache_queries_total", "counter"},
      {"vllm:prefix_cache_hits_total", "counter"},
      {"vllm:prompt_tokens_total", "counter"},
      {"vllm:generation_tokens_total", "counter"},
      {"vllm:corrupted_requests_total", "counter"},
      {"vllm:iteration_tokens_total", "histogram"},
      {"vllm:time_to_first_token_seconds", "histogram"},
      {"vllm:inter_token_latency_seconds", "histogram"},
      {"vllm:e2e_request_latency_seconds", "histogram"},
      {"vllm:request_queue_time_seconds", "histogram"},
      {"vllm:request_prefill_time_seconds", "histogram"},
      {"vllm:request_decode_time_seconds", "histogram"},
      {"vllm:request_prompt_tokens", "histogram"},
      {"vllm:request_generation_tokens", "histogram"},
      {"zipage:compressions_total", "counter"},
      {"zipage:evicted_tokens_total", "counter"},
      {"zipage:compression_seconds_total", "counter"},
      {"zipage:compressing_requests", "gauge"},
      {"zipage:query_slots_used", "gauge"},
      {"zipage:swap_bytes_total", "counter"},
      {"zipage:kv_resident_tokens", "gauge"},
  };
  for (const auto& [name, type] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found.at(name).type, type) << name;
    std::set<std::string> labels = plain;
    if (type == "histogram") labels.insert("le");
    EXPECT_EQ(found.at(name).labels, labels) << name;
  }
  EXPECT_TRUE(found.at("vllm:request_success_total").labels.contains("finished_reason"));
  EXPECT_TRUE(found.at("zipage:blocks").labels.contains("state"));
  EXPECT_TRUE(found.at("zipage:swaps_total").labels.contains("direction"));
  EXPECT_TRUE(found.at("vllm:cache_config_info").labels.contains("block_size"));
  EXPECT_EQ(found.size(), expected.size() + 4) << "a metric that no dashboard knows";
}

TEST_F(MetricsTest, BucketsAreVllms) {
  start();
  const auto found = families(get("/metrics").body);
  using Bounds = std::vector<std::string>;
  EXPECT_EQ(found.at("vllm:time_to_first_token_seconds").bounds,
            (Bounds{"0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1",   "0.25",  "0.5",    "0.75", "1.0",
                    "2.5",   "5.0",   "7.5",  "10.0", "20.0", "40.0", "80.0", "160.0", "640.0", "2560.0", "+Inf"}));
  EXPECT_EQ(found.at("vllm:inter_token_latency_seconds").bounds,
            (Bounds{"0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2",  "0.3",  "0.4",  "0.5",
                    "0.75", "1.0",   "2.5",  "5.0",   "7.5", "10.0", "20.0", "40.0", "80.0", "+Inf"}));
  const Bounds latency = {"0.3",   "0.5",   "0.8",   "1.0",    "1.5",    "2.0",  "2.5",  "5.0",
                          "10.0",  "15.0",  "20.0",  "30.0",   "40.0",   "50.0", "60.0", "120.0",
                          "240.0", "480.0", "960.0", "1920.0", "7680.0", "+Inf"};
  for (const char* name : {"vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
                           "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds"}) {
    EXPECT_EQ(found.at(name).bounds, latency) << name;
  }
  EXPECT_EQ(found.at("vllm:request_prompt_tokens").bounds,
            (Bounds{"1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "200.0", "500.0", "1000.0", "+Inf"}));
  EXPECT_EQ(found.at("vllm:iteration_tokens_total").bounds,
            (Bounds{"1.0", "8.0", "16.0", "32.0", "64.0", "128.0", "256.0", "512.0", "1024.0", "2048.0", "4096.0",
                    "8192.0", "16384.0", "+Inf"}));
}

TEST_F(MetricsTest, RequestsAreCounted) {
  start();
  const json answer = complete({{"prompt", "SAY[hello]"}, {"n", 2}});
  const std::string text = get("/metrics").body;
  const std::string labels = R"({engine="0",model_name="scripted")";
  EXPECT_THAT(text, HasSubstr("vllm:request_success_total" + labels + R"(,finished_reason="stop"} 2.0)"));
  EXPECT_THAT(text, HasSubstr("vllm:time_to_first_token_seconds_count" + labels + "} 2.0"));
  EXPECT_THAT(text, HasSubstr("vllm:request_generation_tokens_sum" + labels + "} " +
                              std::to_string(answer["usage"]["completion_tokens"].get<int>()) + ".0"));
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_running" + labels + "} 0.0"));
  const EngineStats stats = llm->engine().stats();
  EXPECT_THAT(text, HasSubstr("vllm:iteration_tokens_total_count" + labels + "} " + std::to_string(stats.steps)));
}

TEST(MetricsHistogram, AValueAtABoundIsInItsBucket) {
  Histogram histogram({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 2.0, 3.0}) histogram.observe(value);
  EXPECT_EQ(histogram.snapshot().counts, (std::vector<int64_t>{2, 2, 1}));
  EXPECT_EQ(histogram.snapshot().sum, 8);
}

}  // namespace
}  // namespace zipage
