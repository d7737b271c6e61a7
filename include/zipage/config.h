// Everything that can be configured about the engine, one default per knob. Names are vLLM's wherever it has one.
//
// The table knobs() describes every knob once: flags, the YAML file, --help and the error for an unknown key are made
// from it. Numbers that follow from these live in the memory plan, never here.
//
// Thread-safety: values; knobs() is immutable.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zipage/compression.h"
#include "zipage/status.h"

namespace zipage {

enum class LoadFormat : uint8_t { kAuto, kSafetensors, kGguf, kDummy };
enum class SchedulingPolicy : uint8_t { kFcfs, kPriority };
enum class CompressionMode : uint8_t { kAsync, kInline };

struct EngineConfig {
  // model
  std::string model;  // directory, .gguf file or config.json (dummy)
  std::vector<std::string> served_model_name;
  std::string tokenizer;             // empty = the model's
  std::string dtype = "auto";        // auto, bfloat16
  std::optional<int> max_model_len;  // tokens of prompt and output; none = the model's
  LoadFormat load_format = LoadFormat::kAuto;
  std::string generation_config = "auto";  // auto = the model's, "vllm" = none, or a directory
  std::string override_generation_config;  // JSON
  std::string quantization;                // none but what the file brings
  int64_t seed = 0;

  // memory
  int block_size = 64;  // slots a block: 16, 32, 64, 128 or 256
  std::optional<int64_t> kv_cache_memory_bytes;
  std::optional<int> num_gpu_blocks_override;  // blocks of the pool, on any device
  double gpu_memory_utilization = 0.92;
  std::string kv_cache_dtype = "auto";  // auto, bf16, fp8_e4m3
  double swap_space = 4.0;              // GiB of host memory for preempted, compressed requests
  bool enable_prefix_caching = true;

  // scheduling
  int max_num_seqs = 256;
  int max_num_batched_tokens = 2048;
  bool enable_chunked_prefill = true;  // false: a prompt is computed in one step, alone if it must
  SchedulingPolicy scheduling_policy = SchedulingPolicy::kFcfs;
  std::optional<bool> async_scheduling;  // plan a step while the one before runs; none = where the device is beside
                                         // the host
  int max_queued_requests = 0;           // 0 = no limit
  int max_logprobs = 20;

  // compression
  CompressionOptions compression;
  std::optional<CompressionMode> compression_mode;  // none = in step on a GPU, else beside the steps
  bool kv_elastic = false;
  std::optional<int> query_slots;  // none = as many as can be of use

  // machine
  std::string device = "auto";  // auto, cpu, cuda
  int threads = 0;              // CPU threads; 0 = the cores this process may use
  int tensor_parallel_size = 1;
  bool enforce_eager = false;
  std::vector<int> cudagraph_capture_sizes;  // empty = chosen from max_num_seqs

  // logging
  bool disable_log_stats = false;
  bool enable_log_requests = false;
};

enum class KnobType : uint8_t { kString, kStringList, kInt, kInt64, kFloat, kBool, kIntList, kChoice };

struct Knob {
  std::string_view key;  // "kv-budget"; the flag is --kv-budget, in YAML also kv_budget
  KnobType type;
  std::string_view group;    // heading in --help
  std::string_view metavar;  // "TOKENS", or the choices "{async,inline}"
  std::string_view help;     // one line, with the default where it is not a plain value
};

std::span<const Knob> knobs();

// Sets one knob from text ("true"/"false" for kBool, commas in lists). An unknown key names the nearest known one.
Status set_knob(EngineConfig& config, std::string_view key, std::string_view value);
// The knob's present value as text; "" for one that is unset. REQUIRES: a known key.
std::string knob_value(const EngineConfig& config, std::string_view key);

// Checks each knob and how they go together. Does not look at the model.
Status validate(const EngineConfig& config);

}  // namespace zipage
