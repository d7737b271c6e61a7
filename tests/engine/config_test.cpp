#include "zipage/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/parse_value.h"

namespace zipage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

EngineConfig named() {
  EngineConfig config;
  config.model = "somewhere";
  return config;
}

std::string fault_of(const EngineConfig& config) {
  return validate(config).message();
}

const Knob& knob_named(std::string_view key) {
  for (const Knob& knob : knobs()) {
    if (knob.key == key) return knob;
  }
  ADD_FAILURE() << "no knob " << key;
  return knobs()[0];
}

TEST(Config, DefaultsOfEveryKnobSurviveARoundTripThroughText) {
  EngineConfig config;
  for (const Knob& knob : knobs()) {
    const std::string before = knob_value(config, knob.key);
    const bool is_list = knob.type == KnobType::kStringList || knob.type == KnobType::kIntList;
    const bool unset = before.empty() && knob.type != KnobType::kString && !is_list;
    const Status status = set_knob(config, knob.key, unset ? "auto" : before);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(knob_value(config, knob.key), before) << knob.key;
  }
  EXPECT_TRUE(validate(named()).ok()) << fault_of(named());
}

TEST(Config, EveryChoiceOfEveryKnobRoundTrips) {
  for (const Knob& knob : knobs()) {
    if (knob.type != KnobType::kChoice) continue;
    for (std::string_view word : split_list(knob.metavar.substr(1, knob.metavar.size() - 2))) {
      EngineConfig config;
      EXPECT_TRUE(set_knob(config, knob.key, word).ok());
      EXPECT_EQ(knob_value(config, knob.key), word);
    }
  }
}

TEST(Config, FlagsOfAPolicysStagesAreUnsetUntilGiven) {
  EngineConfig config;
  EXPECT_FALSE(config.compression.value_norms || config.compression.query_stride || config.compression.score_decay);
  EXPECT_TRUE(set_knob(config, "value-norms", "true").ok());
  EXPECT_EQ(config.compression.value_norms, true);
  EXPECT_TRUE(set_knob(config, "query-stride", "3").ok());
  EXPECT_EQ(config.compression.query_stride, 3);
  EXPECT_TRUE(set_knob(config, "score-decay", "0.25").ok());
  EXPECT_EQ(config.compression.score_decay, 0.25F);
}

TEST(Config, ChoicesStandInTheOrderOfTheirEnums) {
  EngineConfig config;
  EXPECT_TRUE(set_knob(config, "load-format", "dummy").ok());
  EXPECT_EQ(config.load_format, LoadFormat::kDummy);
  EXPECT_TRUE(set_knob(config, "scheduling-policy", "priority").ok());
  EXPECT_EQ(config.scheduling_policy, SchedulingPolicy::kPriority);
  EXPECT_TRUE(set_knob(config, "compression-mode", "inline").ok());
  EXPECT_EQ(config.compression_mode, CompressionMode::kInline);
  EXPECT_TRUE(set_knob(config, "kv-compress", "prompt").ok());
  EXPECT_EQ(config.compression.kv_compress, KvCompress::kPrompt);
  EXPECT_TRUE(set_knob(config, "redundancy", "mean").ok());
  EXPECT_EQ(config.compression.redundancy, RedundancyScope::kMean);
  EXPECT_TRUE(set_knob(config, "redundancy-keys", "content").ok());
  EXPECT_EQ(config.compression.redundancy_keys, RedundancyKeys::kContent);
  EXPECT_TRUE(set_knob(config, "score-combine", "log").ok());
  EXPECT_EQ(config.compression.score_combine, ScoreCombine::kLog);
  for (std::string_view policy : kv_policy_names()) {
    EXPECT_TRUE(set_knob(config, "kv-policy", policy).ok()) << policy;
    EXPECT_EQ(config.compression.kv_policy, kv_policy_from_name(policy));
  }
  EXPECT_EQ(split_list(knob_named("kv-policy").metavar).size(), kv_policy_names().size());
}

TEST(Config, KeysAreUniqueAndEachHasAGroupAndALineOfHelp) {
  std::set<std::string_view> seen;
  for (const Knob& knob : knobs()) {
    EXPECT_TRUE(seen.insert(knob.key).second) << knob.key;
    EXPECT_FALSE(knob.group.empty()) << knob.key;
    EXPECT_FALSE(knob.help.empty()) << knob.key;
    EXPECT_EQ(knob.metavar.empty(), knob.type == KnobType::kBool) << knob.key;
  }
}

TEST(Config, UnknownKeysNameTheNearest) {
  EngineConfig config;
  const Status status = set_knob(config, "kv_bugdet", "512");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("did you mean 'kv-budget'?"));
  EXPECT_EQ(status.param(), "kv_bugdet");
  EXPECT_EQ(set_knob(config, "zzzzzzzzzzzzzzz", "1").message(), "unknown key 'zzzzzzzzzzzzzzz'");
}

TEST(Config, UnderscoresAreDashes) {
  EngineConfig config;
  EXPECT_TRUE(set_knob(config, "kv_budget", "512").ok());
  EXPECT_EQ(config.compression.kv_budget, 512);
}

TEST(Config, UnknownChoicesNameTheNearestAndLeaveTheValue) {
  EngineConfig config;
  const Status status = set_knob(config, "kv-policy", "contnet");
  EXPECT_THAT(status.message(), HasSubstr("kv-policy must be one of content, zipage,"));
  EXPECT_THAT(status.message(), HasSubstr("did you mean content?"));
  EXPECT_EQ(config.compression.kv_policy, KvPolicy::kContent);
  EXPECT_EQ(set_knob(config, "dtype", "float64").param(), "dtype");
}

TEST(Config, SizesTakeMultipliers) {
  EngineConfig config;
  EXPECT_TRUE(set_knob(config, "kv-cache-memory-bytes", "1.5GiB").ok());
  EXPECT_EQ(config.kv_cache_memory_bytes, 1610612736);
  EXPECT_TRUE(set_knob(config, "max-num-batched-tokens", "2k").ok());
  EXPECT_EQ(config.max_num_batched_tokens, 2000);
  EXPECT_THAT(set_knob(config, "max-num-seqs", "4T").message(), HasSubstr("must be a whole number, not '4T'"));
  EXPECT_THAT(set_knob(config, "max-num-seqs", "many").message(), HasSubstr("not 'many'"));
}

TEST(Config, OptionalKnobsGoBackToAuto) {
  EngineConfig config;
  EXPECT_TRUE(set_knob(config, "max-model-len", "4096").ok());
  EXPECT_EQ(knob_value(config, "max-model-len"), "4096");
  EXPECT_TRUE(set_knob(config, "max-model-len", "auto").ok());
  EXPECT_EQ(config.max_model_len, std::nullopt);
  EXPECT_EQ(knob_value(config, "max-model-len"), "");
}

TEST(Config, ListsHaveCommas) {
  EngineConfig config;
  EXPECT_TRUE(set_knob(config, "cudagraph-capture-sizes", "1, 2,4").ok());
  EXPECT_THAT(config.cudagraph_capture_sizes, ElementsAre(1, 2, 4));
  EXPECT_TRUE(set_knob(config, "served-model-name", "a,b").ok());
  EXPECT_THAT(config.served_model_name, ElementsAre("a", "b"));
  EXPECT_FALSE(set_knob(config, "cudagraph-capture-sizes", "1,x").ok());
}

TEST(ConfigValidate, NamesTheKnobAndTheValueAtFault) {
  struct Case {
    std::string_view key, value, message;
  };
  for (const Case& c : {
           Case{"block-size", "48", "--block-size must be 16, 32, 64, 128 or 256, not 48"},
           Case{"max-num-seqs", "0", "--max-num-seqs must be at least 1, not 0"},
           Case{"max-num-batched-tokens", "0", "--max-num-batched-tokens must be at least 1, not 0"},
           Case{"max-model-len", "-1", "--max-model-len must be at least 1, not -1"},
           Case{"gpu-memory-utilization", "1.5", "--gpu-memory-utilization must be above 0 and at most 1, not 1.5"},
           Case{"swap-space", "-1", "--swap-space must be at least 0, not -1"},
           Case{"num-gpu-blocks-override", "0", "--num-gpu-blocks-override must be at least 1, not 0"},
           Case{"kv-cache-memory-bytes", "0", "--kv-cache-memory-bytes must be at least 1, not 0"},
           Case{"threads", "-2", "--threads must be at least 0, not -2"},
           Case{"query-slots", "-1", "--query-slots must be at least 0, not -1"},
           Case{"tensor-parallel-size", "0", "--tensor-parallel-size must be at least 1, not 0"},
           Case{"cudagraph-capture-sizes", "4,0", "--cudagraph-capture-sizes must be at least 1, not 0"},
       }) {
    EngineConfig config = named();
    ASSERT_TRUE(set_knob(config, c.key, c.value).ok()) << c.key;
    EXPECT_EQ(fault_of(config), c.message);
    EXPECT_EQ(validate(config).param(), c.key);
  }
}

TEST(ConfigValidate, RefusesKnobsThatContradictEachOther) {
  EngineConfig config = named();
  config.num_gpu_blocks_override = 8;
  EXPECT_TRUE(validate(config).ok());
  config.kv_cache_memory_bytes = 1 << 20;
  EXPECT_THAT(fault_of(config), HasSubstr("give one"));
}

TEST(ConfigValidate, RefusesQuantizationByName) {
  EngineConfig config = named();
  config.quantization = "awq";
  EXPECT_EQ(validate(config).code(), StatusCode::kUnimplemented);
  EXPECT_THAT(fault_of(config), HasSubstr("awq"));
}

TEST(ConfigValidate, RefusesABudgetThatIsNoWholeNumberOfBlocks) {
  EngineConfig config = named();
  config.compression.kv_budget = 100;
  EXPECT_EQ(validate(config).param(), "kv-budget");
  EXPECT_THAT(fault_of(config), HasSubstr("100"));
}

TEST(ConfigValidate, WantsAModel) {
  EXPECT_EQ(validate(EngineConfig()).param(), "model");
}

}  // namespace
}  // namespace zipage
