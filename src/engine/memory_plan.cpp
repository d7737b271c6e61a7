#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/sequence.h"
#include "engine/step_inputs.h"
#include "model/decoder.h"

namespace zipage {
namespace {

std::string human_bytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (1 << 30));
  if (bytes >= int64_t{1} << 20) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.1f} KiB", value / 1024);
}

// What an asynchronous device's libraries and recorded graphs take beside the plan, about.
constexpr int64_t kLibraryBytes = int64_t{512} << 20, kGraphBytes = int64_t{6} << 20;

// Recording every size would take long, and padding costs little: 1, 2, 4, steps of 8 to 256, of 16 to 512, of 32
// beyond.
std::vector<int> choose_graph_sizes(const EngineConfig& config, const BackendInfo& info, int max_tokens_per_step) {
  std::vector<int> sizes;
  if (config.enforce_eager || !info.asynchronous) return sizes;
  const int most = std::min(config.max_num_seqs, max_tokens_per_step);
  if (!config.cudagraph_capture_sizes.empty()) {
    sizes = config.cudagraph_capture_sizes;
    std::erase_if(sizes, [most](int size) { return size > most; });
  } else {
    const auto step = [](int size) { return size < 4 ? size : size < 8 ? 4 : size < 128 ? 8 : size < 512 ? 16 : 32; };
    for (int size = 1; size < most; size += step(size)) sizes.push_back(size);
    sizes.push_back(most);
  }
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace

// Blocks of the pool: what the user said, or what the device has left.
Result<int> choose_num_blocks(const EngineConfig& config, const BackendInfo& info, int64_t bytes_per_block,
                              int64_t other_bytes, int64_t useful_blocks) {
  const auto free = static_cast<int64_t>(info.free_memory_bytes);
  int64_t bytes = 0;
  if (config.num_gpu_blocks_override) {
    bytes = *config.num_gpu_blocks_override * bytes_per_block;
  } else if (config.kv_cache_memory_bytes) {
    bytes = *config.kv_cache_memory_bytes;
  } else if (info.host_accessible) {
    // Host memory belongs to others too: half of what is free, and no more than all requests at full length can use.
    bytes = std::min(free / 2, useful_blocks * bytes_per_block);
  } else {
    const int64_t used = static_cast<int64_t>(info.memory_bytes) - free;
    bytes = static_cast<int64_t>(static_cast<double>(info.memory_bytes) * config.gpu_memory_utilization) - used -
            other_bytes;
  }
  if (bytes < bytes_per_block) {
    return Status(
        StatusCode::kResourceExhausted,
        fmt::format("no memory is left for KV blocks: one takes {}, {} are there beside {} for activations, "
                    "compression and logits; lower --max-num-batched-tokens or --max-num-seqs, or raise {}",
                    human_bytes(bytes_per_block), human_bytes(std::max<int64_t>(bytes, 0)), human_bytes(other_bytes),
                    config.kv_cache_memory_bytes
                        ? "--kv-cache-memory-bytes"
                        : fmt::format("--gpu-memory-utilization ({})", config.gpu_memory_utilization)));
  }
  // What was asked for on a device of its own memory has to fit there; the host's may be swapped or overcommitted.
  if (!info.host_accessible && bytes + other_bytes > free) {
    const int64_t most = std::max<int64_t>(0, (free - other_bytes) / bytes_per_block);
    return Status(
        StatusCode::kResourceExhausted,
        fmt::format(
            "KV blocks of {} do not fit beside {} for activations, compression and logits: {} are free; lower {} "
            "to {} at most, or --max-num-batched-tokens or --max-num-seqs",
            human_bytes(bytes), human_bytes(other_bytes), human_bytes(free),
            config.num_gpu_blocks_override ? "--num-gpu-blocks-override" : "--kv-cache-memory-bytes",
            config.num_gpu_blocks_override ? fmt::format("{}", most) : human_bytes(most * bytes_per_block)));
  }
  return static_cast<int>(std::min<int64_t>(bytes / bytes_per_block, (int64_t{1} << 31) / config.block_size - 1));
}

int64_t MemoryPlan::device_bytes() const {
  int64_t sum = 0;
  for (const Row& row : rows) sum += row.host ? 0 : row.bytes;
  return sum;
}

std::string MemoryPlan::table() const {
  std::string text = "memory plan\n";
  for (const Row& row : rows) {
    fmt::format_to(std::back_inserter(text), "  {:<24} {:>12}  {}{}\n", row.name, human_bytes(row.bytes), row.note,
                   row.host ? " (host)" : "");
  }
  fmt::format_to(std::back_inserter(text), "  {:<24} {:>12}\n", "total", human_bytes(device_bytes()));
  return text;
}

Result<MemoryPlan> plan_memory(const EngineConfig& config, const ModelConfig& model, const Backend& backend,
                               int64_t weight_bytes) {
  MemoryPlan plan;
  const int block = config.block_size;
  plan.max_model_len = config.max_model_len.value_or(model.max_position_embeddings);
  if (plan.max_model_len > model.max_position_embeddings) {
    return invalid_argument(fmt::format("--max-model-len {} is more than the model's {} positions", plan.max_model_len,
                                        model.max_position_embeddings));
  }
  plan.max_tokens_per_step = config.enable_chunked_prefill
                                 ? config.max_num_batched_tokens
                                 : std::max(config.max_num_batched_tokens, plan.max_model_len);
  plan.max_seqs_per_step = config.max_num_seqs;
  plan.max_logit_rows = std::max(config.max_num_seqs, 64);
  const BackendInfo info = backend.info();
  plan.graph_sizes = choose_graph_sizes(config, info, plan.max_tokens_per_step);
  const CompressionParams params = resolve(config.compression);
  const int max_blocks_per_seq = (plan.max_model_len + block - 1) / block;

  plan.kv = {.num_layers = model.num_layers,
             .num_blocks = 1,
             .block_size = block,
             .num_kv_heads = model.num_kv_heads,
             .head_dim = model.head_dim,
             .dtype = config.kv_cache_dtype == "fp8_e4m3" ? DType::kF8E4M3 : DType::kBF16};
  plan.compression = {.kv = plan.kv,
                      .num_heads = model.num_heads,
                      .window = params.window,
                      .max_slots = max_blocks_per_seq * block,
                      .max_budget = max_blocks_per_seq * block};

  const size_t activation = static_cast<size_t>(traits(info.activation).block_bytes);
  const auto workspace =
      static_cast<int64_t>(Decoder::workspace_bytes(model, activation, plan.max_tokens_per_step, plan.max_logit_rows));
  const auto compression = static_cast<int64_t>(CompressionWorkspace::bytes(backend, plan.compression));
  const int64_t ring_bytes =
      int64_t{model.num_layers} * params.window * model.num_heads * model.head_dim * static_cast<int64_t>(activation);
  plan.query_stride = params.query_stride;
  plan.num_query_slots = config.query_slots.value_or(config.max_num_seqs);
  const int64_t kv_bytes = static_cast<int64_t>(backend.kv_bytes_per_block(plan.kv)) * model.num_layers;
  const int64_t marks_bytes = int64_t{model.num_layers} * model.num_kv_heads * block * 8;  // scores and positions
  const auto step_arrays = static_cast<int64_t>(
      StepInputs::bytes(plan.max_tokens_per_step, plan.max_seqs_per_step, max_blocks_per_seq) + plan.result_bytes());
  const int64_t libraries =
      info.asynchronous ? kLibraryBytes + kGraphBytes * static_cast<int64_t>(plan.graph_sizes.size()) : 0;
  const int64_t block_swap_bytes = static_cast<int64_t>(backend.swap_bytes_per_block(plan.kv));
  plan.swap = SwapShape::of(backend, plan.kv, static_cast<int64_t>(config.swap_space * (int64_t{1} << 30)),
                            params.enabled() ? max_compressed_blocks(params, block) : 1, config.max_num_seqs);
  const int64_t staging = plan.swap.staging_blocks * block_swap_bytes;
  const int64_t other = workspace + compression + ring_bytes * plan.num_query_slots + step_arrays + staging + libraries;
  ZIPAGE_ASSIGN_OR_RETURN(plan.kv.num_blocks, choose_num_blocks(config, info, kv_bytes + marks_bytes, other,
                                                                int64_t{config.max_num_seqs} * max_blocks_per_seq));
  plan.compression.kv = plan.kv;

  // More host blocks than the pool has are of no use twice over: a preempted request leaves room for another one.
  plan.swap.num_blocks = std::min(plan.swap.num_blocks, int64_t{plan.kv.num_blocks} * 4);

  const int64_t blocks = plan.kv.num_blocks;
  plan.rows = {
      {"weights", weight_bytes, "", false},
      {"KV blocks", blocks * kv_bytes, fmt::format("{} blocks of {} tokens, {}", blocks, block, human_bytes(kv_bytes)),
       false},
      {"scores and positions", blocks * marks_bytes, "of kept slots", false},
      {"query slots", ring_bytes * plan.num_query_slots,
       fmt::format("{} of {} queries a layer", plan.num_query_slots, params.window), false},
      {"activations and logits", workspace,
       fmt::format("{} tokens a step, {} sampled", plan.max_tokens_per_step, plan.max_logit_rows), false},
      {"inputs and results", step_arrays, "of a step", false},
      {"compression workspace", compression, fmt::format("up to {} tokens", plan.compression.max_slots), false},
      {"swap space", plan.swap.num_blocks * block_swap_bytes + plan.swap.num_rings * ring_bytes,
       fmt::format("{} blocks", plan.swap.num_blocks), true},
  };
  if (staging > 0) {
    plan.rows.insert(plan.rows.end() - 1,
                     {"staging of swapped KV", staging, fmt::format("{} blocks", plan.swap.staging_blocks), false});
  }
  if (libraries > 0) {
    plan.rows.insert(plan.rows.end() - 1,
                     {"libraries and graphs", libraries,
                      fmt::format("about, {} graphs of decode steps", plan.graph_sizes.size()), false});
  }
  return plan;
}

}  // namespace zipage
