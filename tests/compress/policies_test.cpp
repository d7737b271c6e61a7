#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "zipage/compression.h"

namespace zipage {
namespace {

using ::testing::HasSubstr;

CompressionOptions options(KvPolicy policy, int budget = 512) {
  CompressionOptions o;
  o.kv_policy = policy;
  o.kv_budget = budget;
  o.kv_slack = 64;
  return o;
}

TEST(Policies, AreWhatTheTableSays) {
  const CompressionParams content = resolve(options(KvPolicy::kContent));
  EXPECT_EQ(content.scope, RedundancyScope::kMean);
  EXPECT_EQ(content.keys, RedundancyKeys::kContent);
  EXPECT_TRUE(content.value_norms);
  EXPECT_EQ(content.combine, ScoreCombine::kLog);
  EXPECT_FLOAT_EQ(content.lambda, 0.06F);
  EXPECT_FLOAT_EQ(content.decay, 0.3F);
  EXPECT_EQ(content.recent, 320);
  EXPECT_EQ(content.sinks, 0);
  EXPECT_FALSE(content.protect_prompt);
  EXPECT_EQ(content.carry, ScoreCarry::kMax);
  EXPECT_EQ(content.query_stride, 4);

  const CompressionParams zipage = resolve(options(KvPolicy::kZipage));
  EXPECT_EQ(zipage.scope, RedundancyScope::kLightning);
  EXPECT_EQ(zipage.keys, RedundancyKeys::kRotated);
  EXPECT_FALSE(zipage.value_norms);
  EXPECT_EQ(zipage.combine, ScoreCombine::kLinear);
  EXPECT_FLOAT_EQ(zipage.lambda, 0.2F);
  EXPECT_FLOAT_EQ(zipage.decay, 0.8F);
  EXPECT_FLOAT_EQ(zipage.temperature, 0.4F);
  EXPECT_EQ(zipage.pool, 5);
  EXPECT_EQ(zipage.recent, 0);

  const CompressionParams rkv = resolve(options(KvPolicy::kRkv));
  EXPECT_EQ(rkv.scope, RedundancyScope::kExact);
  EXPECT_EQ(rkv.keys, RedundancyKeys::kRotated);
  EXPECT_EQ(rkv.carry, ScoreCarry::kOff);

  const CompressionParams snapkv = resolve(options(KvPolicy::kSnapKv));
  EXPECT_TRUE(snapkv.attention && snapkv.pool == 5 && snapkv.carry == ScoreCarry::kOff);
  EXPECT_EQ(snapkv.scope, RedundancyScope::kOff);

  const CompressionParams h2o = resolve(options(KvPolicy::kH2o));
  EXPECT_TRUE(h2o.attention && h2o.pool == 1 && h2o.carry == ScoreCarry::kSum && h2o.decay == 1.0F);
  EXPECT_EQ(h2o.scope, RedundancyScope::kOff);

  const CompressionParams streaming = resolve(options(KvPolicy::kStreaming));
  EXPECT_FALSE(streaming.attention);
  EXPECT_EQ(streaming.sinks + streaming.recent, 512);

  const CompressionParams page = resolve(options(KvPolicy::kPage));
  EXPECT_TRUE(page.whole_blocks && page.protect_prompt && page.attention);
  EXPECT_EQ(page.scope, RedundancyScope::kOff);

  const CompressionParams random = resolve(options(KvPolicy::kRandom));
  EXPECT_TRUE(random.random && !random.attention);
  EXPECT_EQ(random.scope, RedundancyScope::kOff);
}

TEST(Policies, AllAreValidAtEveryBudgetOfAtLeastTwoBlocks) {
  for (std::string_view policy_name : kv_policy_names()) {
    const KvPolicy policy = *kv_policy_from_name(policy_name);
    EXPECT_EQ(name(policy), policy_name);
    for (int b : {16, 32, 64, 128, 256}) {
      for (int budget = 2 * b; budget <= 4096; budget += b) {
        CompressionOptions o = options(policy, budget);
        o.kv_slack = b;
        const Status status = validate(resolve(o), b);
        EXPECT_TRUE(status.ok()) << policy_name << " at " << budget << ", block " << b << ": " << status.message();
      }
    }
  }
  EXPECT_EQ(kv_policy_from_name("contents"), std::nullopt);
}

TEST(Policies, FlagsOverrideThePreset) {
  CompressionOptions o = options(KvPolicy::kContent, 384);
  o.kv_recent = 224;
  o.kv_sinks = 4;
  o.protect_prompt = false;
  o.redundancy = RedundancyScope::kMean;
  o.redundancy_keys = RedundancyKeys::kRotated;
  o.score_combine = ScoreCombine::kLinear;
  o.redundancy_lambda = 0.1F;
  o.redundancy_temperature = 0.3F;
  o.value_norms = false;
  o.score_decay = 0.5F;
  o.score_pool = 7;
  o.kv_compress = KvCompress::kPrompt;
  o.query_window = 8;
  const CompressionParams p = resolve(o);
  EXPECT_EQ(p.recent, 224);
  EXPECT_EQ(p.sinks, 4);
  EXPECT_EQ(p.scope, RedundancyScope::kMean);
  EXPECT_EQ(p.keys, RedundancyKeys::kRotated);
  EXPECT_EQ(p.combine, ScoreCombine::kLinear);
  EXPECT_FLOAT_EQ(p.lambda, 0.1F);
  EXPECT_FLOAT_EQ(p.temperature, 0.3F);
  EXPECT_FALSE(p.value_norms);
  EXPECT_FLOAT_EQ(p.decay, 0.5F);
  EXPECT_EQ(p.pool, 7);
  EXPECT_EQ(p.when, KvCompress::kPrompt);
  EXPECT_EQ(p.window, 8);
}

struct Refusal {
  std::string_view flag;
  std::string_view words;
  void (*change)(CompressionOptions&);
};

TEST(Policies, RefusalsNameTheFlagAndTheNumbers) {
  const Refusal refusals[] = {
      {"kv-budget", "100", [](CompressionOptions& o) { o.kv_budget = 100; }},
      {"kv-budget", "64 and 128", [](CompressionOptions& o) { o.kv_budget = 100; }},
      {"kv-budget", "the least is 64", [](CompressionOptions& o) { o.kv_budget = 30; }},
      {"kv-budget", "-64", [](CompressionOptions& o) { o.kv_budget = -64; }},
      {"kv-slack", "0", [](CompressionOptions& o) { o.kv_slack = 0; }},
      {"kv-slack", "96", [](CompressionOptions& o) { o.kv_slack = 96; }},
      {"query-window", "65", [](CompressionOptions& o) { o.query_window = 65; }},
      {"query-window", "0", [](CompressionOptions& o) { o.query_window = 0; }},
      {"score-pool", "4", [](CompressionOptions& o) { o.score_pool = 4; }},
      {"score-pool", "-1", [](CompressionOptions& o) { o.score_pool = -1; }},
      {"score-decay", "1.5", [](CompressionOptions& o) { o.score_decay = 1.5F; }},
      {"redundancy-lambda", "-0.5", [](CompressionOptions& o) { o.redundancy_lambda = -0.5F; }},
      {"redundancy-lambda", "nan", [](CompressionOptions& o) { o.redundancy_lambda = __builtin_nanf(""); }},
      {"redundancy-temperature", "0", [](CompressionOptions& o) { o.redundancy_temperature = 0.0F; }},
      {"kv-sinks", "-1", [](CompressionOptions& o) { o.kv_sinks = -1; }},
      {"query-stride", "0", [](CompressionOptions& o) { o.query_stride = 0; }},
      {"query-stride", "[1, ", [](CompressionOptions& o) { o.query_stride = 100; }},
      {"kv-recent", "-2", [](CompressionOptions& o) { o.kv_recent = -2; }},
      {"kv-recent", "513", [](CompressionOptions& o) { o.kv_recent = 513; }},
      {"kv-recent", "300 tokens, a prompt of up to 256",
       [](CompressionOptions& o) { o.kv_recent = 300, o.protect_prompt = true; }},
      {"kv-sinks", "500 sinks", [](CompressionOptions& o) { o.kv_recent = 0, o.kv_sinks = 500; }},
  };
  for (const Refusal& refusal : refusals) {
    CompressionOptions o = options(KvPolicy::kContent);
    refusal.change(o);
    const Status status = validate(resolve(o), 64);
    ASSERT_FALSE(status.ok()) << refusal.flag << " " << refusal.words;
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.param(), refusal.flag) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("--" + std::string(refusal.flag)));
    EXPECT_THAT(status.message(), HasSubstr(std::string(refusal.words)));
  }
}

TEST(Policies, ABudgetOfZeroIsOffWhateverElseIsSet) {
  CompressionOptions o = options(KvPolicy::kContent, 0);
  o.kv_slack = 1;
  EXPECT_TRUE(validate(resolve(o), 64).ok());
  EXPECT_FALSE(resolve(o).enabled());
}

}  // namespace
}  // namespace zipage
