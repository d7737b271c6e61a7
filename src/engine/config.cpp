#include "zipage/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "base/nearest.h"
#include "base/parse_value.h"

namespace zipage {
namespace {

struct Entry {
  Knob knob;
  Status (*set)(EngineConfig& config, const Knob& knob, std::string_view value);
  std::string (*get)(const EngineConfig& config, const Knob& knob);
};

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

// The words of a metavar such as "{auto,cpu,cuda}".
std::vector<std::string_view> choices(const Knob& knob) {
  return split_list(knob.metavar.substr(1, knob.metavar.size() - 2));
}

Status bad_value(const Knob& knob, std::string_view value, std::string_view wanted) {
  return invalid_argument(fmt::format("--{} must be {}, not '{}'", knob.key, wanted, value))
      .with_param(std::string(knob.key));
}

Result<size_t> choice_index(const Knob& knob, std::string_view value) {
  const auto words = choices(knob);
  const auto found = std::find(words.begin(), words.end(), value);
  if (found != words.end()) return static_cast<size_t>(found - words.begin());
  const std::string_view nearest = nearest_word(value, words);
  return bad_value(knob, value,
                   fmt::format("one of {}{}", fmt::join(words, ", "),
                               nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest)));
}

template <typename T>
Status assign(T& field, const Knob& knob, std::string_view value) {
  if constexpr (IsOptional<T>::value) {
    if (value == "auto") {
      field.reset();
      return {};
    }
    typename T::value_type inner{};
    ZIPAGE_RETURN_IF_ERROR(assign(inner, knob, value));
    field = inner;
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (knob.type == KnobType::kChoice) ZIPAGE_RETURN_IF_ERROR(choice_index(knob, value).status());
    field = std::string(value);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    const auto words = split_list(value);
    field.assign(words.begin(), words.end());
  } else if constexpr (std::is_same_v<T, bool>) {
    const std::optional<bool> parsed = parse_bool(value);
    if (!parsed) return bad_value(knob, value, "true or false");
    field = *parsed;
  } else if constexpr (std::is_integral_v<T>) {
    const std::optional<int64_t> parsed = parse_whole_number(value);
    if (!parsed || *parsed > std::numeric_limits<T>::max() || *parsed < std::numeric_limits<T>::min()) {
      return bad_value(knob, value, "a whole number");
    }
    field = static_cast<T>(*parsed);
  } else if constexpr (std::is_same_v<T, std::vector<int>>) {
    std::vector<int> numbers;
    for (std::string_view word : split_list(value)) {
      int number = 0;
      if (!assign(number, knob, word).ok()) return bad_value(knob, value, "whole numbers with commas between");
      numbers.push_back(number);
    }
    field = std::move(numbers);
  } else if constexpr (std::is_floating_point_v<T>) {
    const std::optional<double> parsed = parse_real(value);
    if (!parsed) return bad_value(knob, value, "a number");
    field = static_cast<T>(*parsed);
  } else {
    static_assert(std::is_enum_v<T>);
    ZIPAGE_ASSIGN_OR_RETURN(const size_t index, choice_index(knob, value));
    field = static_cast<T>(index);
  }
  return {};
}

template <typename T>
std::string text_of(const T& field, const Knob& knob) {
  if constexpr (IsOptional<T>::value) {
    return field ? text_of(*field, knob) : std::string();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return field;
  } else if constexpr (std::is_same_v<T, bool>) {
    return field ? "true" : "false";
  } else if constexpr (std::is_enum_v<T>) {
    return std::string(choices(knob)[static_cast<size_t>(field)]);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return fmt::format("{}", field);
  } else {
    return fmt::format("{}", fmt::join(field, ","));
  }
}

template <typename T>
constexpr KnobType type_of() {
  if constexpr (IsOptional<T>::value) {
    return type_of<typename T::value_type>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return KnobType::kString;
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return KnobType::kStringList;
  } else if constexpr (std::is_same_v<T, std::vector<int>>) {
    return KnobType::kIntList;
  } else if constexpr (std::is_same_v<T, bool>) {
    return KnobType::kBool;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return KnobType::kInt64;
  } else if constexpr (std::is_integral_v<T>) {
    return KnobType::kInt;
  } else if constexpr (std::is_floating_point_v<T>) {
    return KnobType::kFloat;
  } else {
    return KnobType::kChoice;
  }
}

// One row of the table. `Field` picks the field; its type says how text becomes a value. The words of a metavar in
// braces are the values of an enum field in the enum's own order.
template <auto Field>
constexpr Entry knob(std::string_view key, std::string_view group, std::string_view metavar, std::string_view help) {
  using T = std::remove_cvref_t<decltype(Field(std::declval<EngineConfig&>()))>;
  const KnobType type = metavar.starts_with('{') ? KnobType::kChoice : type_of<T>();
  return {{key, type, group, metavar, help},
          [](EngineConfig& config, const Knob& k, std::string_view value) { return assign(Field(config), k, value); },
          [](const EngineConfig& config, const Knob& k) { return text_of(Field(config), k); }};
}

#define FIELD(path)           \
  [](auto& config) -> auto& { \
    return config.path;       \
  }

constexpr std::string_view kModel = "Model", kMemory = "Memory", kScheduling = "Scheduling",
                           kCompression = "KV compression", kMachine = "Machine", kLogging = "Logging";

constexpr Entry kTable[] = {
    knob<FIELD(model)>("model", kModel, "PATH", "directory, .gguf file, or config.json with --load-format dummy"),
    knob<FIELD(served_model_name)>("served-model-name", kModel, "NAME...", "names clients know the model by"),
    knob<FIELD(tokenizer)>("tokenizer", kModel, "PATH", "tokenizer.json or its directory, if not the model's"),
    knob<FIELD(dtype)>("dtype", kModel, "{auto,bfloat16}", "type of weights and activations"),
    knob<FIELD(max_model_len)>("max-model-len", kModel, "TOKENS", "longest prompt and output; default: the model's"),
    knob<FIELD(load_format)>("load-format", kModel, "{auto,safetensors,gguf,dummy}",
                             "format of the weights; dummy makes them up"),
    knob<FIELD(generation_config)>("generation-config", kModel, "auto|vllm|DIR",
                                   "sampling defaults: the model's, none, or those of a directory"),
    knob<FIELD(override_generation_config)>("override-generation-config", kModel, "JSON",
                                            "sampling defaults that win over the model's"),
    knob<FIELD(quantization)>("quantization", kModel, "NAME", "only what the file brings along is supported"),
    knob<FIELD(seed)>("seed", kModel, "N", "for whatever is random and has no seed of its own"),

    knob<FIELD(block_size)>("block-size", kMemory, "{16,32,64,128,256}", "token slots a block of the KV pool has"),
    knob<FIELD(kv_cache_memory_bytes)>("kv-cache-memory-bytes", kMemory, "BYTES",
                                       "size of the KV pool, also 512MiB or 1.5GiB"),
    knob<FIELD(num_gpu_blocks_override)>("num-gpu-blocks-override", kMemory, "BLOCKS",
                                         "blocks of the KV pool, on any device"),
    knob<FIELD(gpu_memory_utilization)>("gpu-memory-utilization", kMemory, "FRACTION",
                                        "share of the GPU's memory to use"),
    knob<FIELD(kv_cache_dtype)>("kv-cache-dtype", kMemory, "{auto,bf16,fp8_e4m3}", "type of keys and values"),
    knob<FIELD(swap_space)>("swap-space", kMemory, "GIB", "host memory for compressed requests that gave way"),
    knob<FIELD(enable_prefix_caching)>("enable-prefix-caching", kMemory, "", "share the KV of equal prompt beginnings"),

    knob<FIELD(max_num_seqs)>("max-num-seqs", kScheduling, "N", "requests in one step"),
    knob<FIELD(max_num_batched_tokens)>("max-num-batched-tokens", kScheduling, "TOKENS", "tokens in one step"),
    knob<FIELD(enable_chunked_prefill)>("enable-chunked-prefill", kScheduling, "",
                                        "compute long prompts in pieces beside decoding"),
    knob<FIELD(scheduling_policy)>("scheduling-policy", kScheduling, "{fcfs,priority}", "who comes first"),
    knob<FIELD(async_scheduling)>("async-scheduling", kScheduling, "",
                                  "plan a step while the one before runs; default: on a GPU"),
    knob<FIELD(max_queued_requests)>("max-queued-requests", kScheduling, "N", "refuse more waiting ones; 0: no limit"),
    knob<FIELD(max_logprobs)>("max-logprobs", kScheduling, "N", "most log-probabilities a request may ask for"),

    knob<FIELD(compression.kv_budget)>("kv-budget", kCompression, "TOKENS",
                                       "tokens kept by a compression, whole blocks; 0 keeps all"),
    knob<FIELD(compression.kv_slack)>("kv-slack", kCompression, "TOKENS",
                                      "tokens added before the next compression, whole blocks"),
    knob<FIELD(compression.kv_policy)>("kv-policy", kCompression,
                                       "{content,zipage,rkv,snapkv,h2o,streaming,page,random}",
                                       "what is kept; a preset of the flags below"),
    knob<FIELD(compression.kv_compress)>("kv-compress", kCompression, "{all,prompt}",
                                         "compress thoughts too, or only a long prompt, once"),
    knob<FIELD(kv_elastic)>("kv-elastic", kCompression, "", "compress only while the pool is short of blocks"),
    knob<FIELD(compression.query_window)>("query-window", kCompression, "N", "last queries that score"),
    knob<FIELD(compression.query_stride)>("query-stride", kCompression, "N",
                                          "tokens from one of them to the next; content: 4, others: 1"),
    knob<FIELD(query_slots)>("query-slots", kCompression, "N", "requests that may hold queries; default: enough"),
    knob<FIELD(compression.protect_prompt)>("protect-prompt", kCompression, "", "never drop the prompt"),
    knob<FIELD(compression.kv_sinks)>("kv-sinks", kCompression, "N", "first tokens never dropped"),
    knob<FIELD(compression.kv_recent)>("kv-recent", kCompression, "N", "newest tokens never dropped"),
    knob<FIELD(compression.redundancy)>("redundancy", kCompression, "{off,exact,mean,lightning}",
                                        "where keys are compared with each other"),
    knob<FIELD(compression.redundancy_keys)>("redundancy-keys", kCompression, "{rotated,content}",
                                             "keys as cached, or with RoPE undone"),
    knob<FIELD(compression.score_combine)>("score-combine", kCompression, "{linear,log}",
                                           "attention and redundancy: their difference, or that of their logarithms"),
    knob<FIELD(compression.redundancy_lambda)>("redundancy-lambda", kCompression, "X",
                                               "weight of attention against redundancy, 0 to 1"),
    knob<FIELD(compression.redundancy_temperature)>("redundancy-temperature", kCompression, "X",
                                                    "temperature of the redundancy's softmax"),
    knob<FIELD(compression.value_norms)>("value-norms", kCompression, "",
                                         "weigh attention by the length of the values; on in content"),
    knob<FIELD(compression.score_decay)>("score-decay", kCompression, "X", "what remains of an earlier score, 0 to 1"),
    knob<FIELD(compression.score_pool)>("score-pool", kCompression, "N", "neighbours that share a score; odd, 1: none"),
    knob<FIELD(compression_mode)>("compression-mode", kCompression, "{async,inline}",
                                  "beside decoding, or in step; default: in step on a GPU"),

    knob<FIELD(device)>("device", kMachine, "{auto,cpu,cuda}", "where the model runs"),
    knob<FIELD(threads)>("threads", kMachine, "N", "CPU threads; 0: the cores this process may use"),
    knob<FIELD(tensor_parallel_size)>("tensor-parallel-size", kMachine, "N", "GPUs that share the model"),
    knob<FIELD(enforce_eager)>("enforce-eager", kMachine, "", "no CUDA graphs"),
    knob<FIELD(cudagraph_capture_sizes)>("cudagraph-capture-sizes", kMachine, "N...", "batch sizes to capture"),

    knob<FIELD(disable_log_stats)>("disable-log-stats", kLogging, "", "no line of statistics now and then"),
    knob<FIELD(enable_log_requests)>("enable-log-requests", kLogging, "", "a line for each request"),
};
#undef FIELD

constexpr size_t kNumKnobs = std::size(kTable);

constexpr std::array<Knob, kNumKnobs> kKnobs = [] {
  std::array<Knob, kNumKnobs> result{};
  for (size_t i = 0; i < kNumKnobs; ++i) result[i] = kTable[i].knob;
  return result;
}();

// kv_budget is kv-budget.
std::string canonical(std::string_view key) {
  std::string result(key);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

const Entry* find(std::string_view key) {
  const std::string wanted = canonical(key);
  for (const Entry& entry : kTable) {
    if (entry.knob.key == wanted) return &entry;
  }
  return nullptr;
}

// Collects the first fault.
class Checker {
 public:
  void require(bool good, std::string_view key, std::string_view wanted, std::string_view found) {
    if (good || !status_.ok()) return;
    status_ = invalid_argument(fmt::format("--{} must be {}, not {}", key, wanted, found)).with_param(std::string(key));
  }
  template <typename T>
  void at_least(std::string_view key, T value, T least) {
    require(value >= least, key, fmt::format("at least {}", least), fmt::format("{}", value));
  }
  template <typename T>
  void at_least(std::string_view key, const std::optional<T>& value, T least) {
    if (value) at_least(key, *value, least);
  }
  Status take() { return std::move(status_); }

 private:
  Status status_;
};

}  // namespace

std::span<const Knob> knobs() {
  return kKnobs;
}

Status set_knob(EngineConfig& config, std::string_view key, std::string_view value) {
  if (const Entry* entry = find(key)) return entry->set(config, entry->knob, value);
  std::vector<std::string_view> keys;
  for (const Knob& knob : kKnobs) keys.push_back(knob.key);
  const std::string_view nearest = nearest_word(canonical(key), keys);
  return invalid_argument(fmt::format("unknown key '{}'{}", key,
                                      nearest.empty() ? "" : fmt::format(", did you mean '{}'?", nearest)))
      .with_param(std::string(key));
}

std::string knob_value(const EngineConfig& config, std::string_view key) {
  const Entry* entry = find(key);
  ZIPAGE_CHECK(entry != nullptr, "no knob is named '{}'", key);
  return entry->get(config, entry->knob);
}

Status validate(const EngineConfig& config) {
  Checker check;
  check.require(!config.model.empty(), "model", "a path", "empty");
  check.at_least("max-model-len", config.max_model_len, 1);
  check.at_least("kv-cache-memory-bytes", config.kv_cache_memory_bytes, int64_t{1});
  check.at_least("num-gpu-blocks-override", config.num_gpu_blocks_override, 1);
  check.require(config.gpu_memory_utilization > 0 && config.gpu_memory_utilization <= 1, "gpu-memory-utilization",
                "above 0 and at most 1", fmt::format("{}", config.gpu_memory_utilization));
  check.at_least("swap-space", config.swap_space, 0.0);
  check.at_least("max-num-seqs", config.max_num_seqs, 1);
  check.at_least("max-num-batched-tokens", config.max_num_batched_tokens, 1);
  check.at_least("max-queued-requests", config.max_queued_requests, 0);
  check.at_least("max-logprobs", config.max_logprobs, -1);
  check.at_least("query-slots", config.query_slots, 0);
  check.at_least("threads", config.threads, 0);
  check.at_least("tensor-parallel-size", config.tensor_parallel_size, 1);
  for (int size : config.cudagraph_capture_sizes) check.at_least("cudagraph-capture-sizes", size, 1);
  constexpr int kBlockSizes[] = {16, 32, 64, 128, 256};
  check.require(std::find(std::begin(kBlockSizes), std::end(kBlockSizes), config.block_size) != std::end(kBlockSizes),
                "block-size", "16, 32, 64, 128 or 256", fmt::format("{}", config.block_size));
  ZIPAGE_RETURN_IF_ERROR(check.take());
  if (!config.quantization.empty()) {
    return Status(StatusCode::kUnimplemented,
                  fmt::format("--quantization {} is not supported: a model runs as its file brings it",
                              config.quantization))
        .with_param("quantization");
  }
  if (config.kv_cache_memory_bytes && config.num_gpu_blocks_override) {
    return invalid_argument("--kv-cache-memory-bytes and --num-gpu-blocks-override both set the pool's size: give one")
        .with_param("num-gpu-blocks-override");
  }
  return validate(resolve(config.compression), config.block_size);
}

}  // namespace zipage
