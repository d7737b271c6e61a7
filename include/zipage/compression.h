// What Compressed PagedAttention keeps: policies, their parameters, and how flags and requests override them.
// The algorithm and its words (budget, slack, window, resident) are in docs/compression.md; the source is
// Zipage, arXiv 2603.08743.
//
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "zipage/status.h"

namespace zipage {

enum class KvPolicy : uint8_t { kContent, kZipage, kRkv, kSnapKv, kH2o, kStreaming, kPage, kRandom };
enum class KvCompress : uint8_t { kAll, kPrompt };  // kPrompt: once, after a prompt longer than the budget
enum class RedundancyScope : uint8_t { kOff, kExact, kMean, kLightning };
enum class RedundancyKeys : uint8_t { kRotated, kContent };
enum class ScoreCarry : uint8_t { kOff, kMax, kSum };  // how S of an earlier compression enters
// How S and the redundancy R' of T slots become F; x = lambda.
// kLinear: x S - (1 - x) R'. kLog: x log(T S + 0.001) - (1 - x) log(T R'), the log of S^x / R'^(1 - x), both as
// multiples of the mean: what is looked at ten times as much counts alike at every length and sharpness.
enum class ScoreCombine : uint8_t { kLinear, kLog };

// Every stage's parameters for one sequence. A policy is a preset of these.
struct CompressionParams {
  int budget = 0;   // tokens kept, a multiple of the block size; 0 = keep all, never compress
  int slack = 256;  // tokens that may be added after a compression, a multiple of the block size, at least one block
  int window = 16;  // queries that score (w), 1 <= w <= block size
  int query_stride = 1;  // of the last window * query_stride tokens every so many: those at multiples of it
  KvCompress when = KvCompress::kAll;

  bool attention = true;                            // stage 1; off: A = 0
  bool value_norms = false;                         // A[t] *= |v[t]| / mean |v|
  ScoreCarry carry = ScoreCarry::kMax;              // stage 2
  float decay = 0.8F;                               // gamma of stage 2
  int pool = 5;                                     // neighbours of stage 3, odd; 1 = off
  RedundancyScope scope = RedundancyScope::kExact;  // stage 4
  RedundancyKeys keys = RedundancyKeys::kContent;
  float threshold = 0.5F;                        // cosine above which last(n) is looked for
  float temperature = 0.4F;                      // tau
  ScoreCombine combine = ScoreCombine::kLinear;  // stage 5; scope off: F = S
  float lambda = 0.01F;                          // weight of S in F
  int sinks = 0;                                 // stage 6
  int recent = 0;                                // newest slots always kept, the window's included
  bool protect_prompt = false;
  bool whole_blocks = false;  // stage 7 selects blocks by their mean S (policy page)
  bool random = false;        // F is a seeded hash of (seed, layer, head, position)
  uint64_t random_seed = 0;

  bool enabled() const { return budget > 0; }
  // Newest slots that stay whatever their score.
  int newest_kept() const { return window > recent ? window : recent; }
};

// What the user set; an empty optional leaves the policy's own value.
struct CompressionOptions {
  int kv_budget = 2048;
  int kv_slack = 256;
  KvPolicy kv_policy = KvPolicy::kContent;
  KvCompress kv_compress = KvCompress::kAll;
  int query_window = 16;
  std::optional<int> query_stride;
  std::optional<bool> protect_prompt;
  std::optional<int> kv_sinks;
  std::optional<int> kv_recent;
  std::optional<RedundancyScope> redundancy;
  std::optional<RedundancyKeys> redundancy_keys;
  std::optional<ScoreCombine> score_combine;
  std::optional<float> redundancy_lambda;
  std::optional<float> redundancy_temperature;
  std::optional<bool> value_norms;
  std::optional<float> score_decay;
  std::optional<int> score_pool;
};

// The preset of `options.kv_policy` with the options' overrides; not yet validated.
CompressionParams resolve(const CompressionOptions& options);

// One sentence when the parameters contradict each other or the block size; param() names the flag.
Status validate(const CompressionParams& params, int block_size);

std::string_view name(KvPolicy policy);
std::optional<KvPolicy> kv_policy_from_name(std::string_view name);
std::span<const std::string_view> kv_policy_names();

}  // namespace zipage
