// zipage inspect: what a model is, what it takes, and how many requests fit, without loading its weights.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "command.h"
#include "engine/memory_plan.h"
#include "engine/sequence.h"
#include "exit_code.h"
#include "load/model_files.h"
#include "model/model_config.h"
#include "shipped_model.h"
#include "start.h"
#include "text/json_fields.h"

namespace zipage::apps {
namespace {

int64_t num_parameters(const ModelConfig& m) {
  const int64_t hidden = m.hidden_size, heads = m.num_heads, kv_heads = m.num_kv_heads, head = m.head_dim,
                ffn = m.intermediate_size;
  const int64_t qkv_rows = (heads + 2 * kv_heads) * head;
  int64_t layer = qkv_rows * hidden + heads * head * hidden + 3 * ffn * hidden + 2 * hidden;
  if (m.qkv_bias) layer += qkv_rows;
  if (m.output_bias) layer += hidden;
  if (m.mlp_bias) layer += 2 * ffn + hidden;
  if (m.qk_norm) layer += 2 * head;
  const int64_t matrices = m.tie_word_embeddings ? 1 : 2;
  return m.num_layers * layer + matrices * m.vocab_size * hidden + hidden;
}

// What the weights take in memory: as many bytes as in their file, but no more than in bfloat16.
int64_t weight_bytes(const ModelFiles& files, const ModelConfig& model) {
  if (files.dummy()) return num_parameters(model) * 2;
  int64_t bytes = 0;
  for (const std::string& name : files.names()) {
    const HostTensor* tensor = files.find(name);
    bytes += std::min(static_cast<int64_t>(tensor->data.size()), tensor->rows() * tensor->cols() * 2);
  }
  return bytes;
}

std::string grouped(int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

struct Facts {
  ModelConfig model;
  int64_t weight_bytes = 0;
  MemoryPlan plan;
  CompressionParams compression;
  int request_len = 0;
  int blocks_full = 0, blocks_compressed = 0;  // of one request of request_len tokens, at its peak
  bool compresses() const { return compression.enabled(); }
  int fit(int blocks) const { return plan.kv.num_blocks / blocks; }
};

std::string table(const EngineConfig& config, const Facts& facts) {
  const ModelConfig& m = facts.model;
  std::string text;
  const auto row = [&text](std::string_view what, const std::string& value) {
    text += fmt::format("  {:<22}{}\n", what, value);
  };
  text += fmt::format("{}\n", config.model);
  row("architecture", m.architecture);
  row("parameters", grouped(num_parameters(m)));
  row("weights", fmt::format("{} bytes", grouped(facts.weight_bytes)));
  row("layers", fmt::format("{}, hidden {}, FFN {}", m.num_layers, m.hidden_size, m.intermediate_size));
  row("heads", fmt::format("{} query, {} KV, size {}", m.num_heads, m.num_kv_heads, m.head_dim));
  row("vocabulary", fmt::format("{}, {} embeddings", grouped(m.vocab_size), m.tie_word_embeddings ? "tied" : "untied"));
  row("context", fmt::format("{} tokens", grouped(facts.plan.max_model_len)));
  const int64_t token_bytes = int64_t{4} * m.num_layers * m.num_kv_heads * m.head_dim;
  row("KV of a token", fmt::format("{} bytes in bfloat16", grouped(token_bytes)));
  text += '\n' + facts.plan.table() + '\n';

  text += fmt::format("requests of {} tokens that fit the pool of {} blocks at once\n", grouped(facts.request_len),
                      grouped(facts.plan.kv.num_blocks));
  row("full KV", fmt::format("{:>6}   {} blocks each", facts.fit(facts.blocks_full), facts.blocks_full));
  if (facts.compresses()) {
    row(fmt::format("budget {} + {}", facts.compression.budget, facts.compression.slack),
        fmt::format("{:>6}   {} blocks each at the peak", facts.fit(facts.blocks_compressed), facts.blocks_compressed));
  }
  return text;
}

nlohmann::json numbers(const EngineConfig& config, const Facts& facts) {
  const ModelConfig& m = facts.model;
  nlohmann::json memory = nlohmann::json::array();
  for (const MemoryPlan::Row& row : facts.plan.rows) {
    memory.push_back({{"name", row.name}, {"bytes", row.bytes}, {"note", row.note}, {"host", row.host}});
  }
  nlohmann::json result = {
      {"model", config.model},
      {"architecture", m.architecture},
      {"num_parameters", num_parameters(m)},
      {"weight_bytes", facts.weight_bytes},
      {"num_layers", m.num_layers},
      {"hidden_size", m.hidden_size},
      {"intermediate_size", m.intermediate_size},
      {"num_heads", m.num_heads},
      {"num_kv_heads", m.num_kv_heads},
      {"head_dim", m.head_dim},
      {"vocab_size", m.vocab_size},
      {"tie_word_embeddings", m.tie_word_embeddings},
      {"max_model_len", facts.plan.max_model_len},
      {"block_size", facts.plan.kv.block_size},
      {"num_blocks", facts.plan.kv.num_blocks},
      {"memory_plan", std::move(memory)},
      {"device_bytes", facts.plan.device_bytes()},
      {"request_len", facts.request_len},
      {"full_kv", {{"blocks_per_request", facts.blocks_full}, {"requests", facts.fit(facts.blocks_full)}}},
  };
  if (facts.compresses()) {
    result["compressed"] = {{"kv_budget", facts.compression.budget},
                            {"kv_slack", facts.compression.slack},
                            {"blocks_per_request", facts.blocks_compressed},
                            {"requests", facts.fit(facts.blocks_compressed)}};
  }
  return result;
}

class Inspect : public Command {
 public:
  void declare(Options& options) override {
    options.add("request-len", "TOKENS", "prompt and output of the requests that are to fit; default: all the context",
                &request_len_, 2);
    add_common(options, common_, "also write the numbers (JSON) to FILE");
  }

  int run(const Options& /*options*/) override {
    set_log_level(LogLevel::kError);
    const Result<Facts> facts = gather();
    if (!facts.ok()) return fail(facts.status());
    fmt::print("{}", table(common_.config, *facts));
    if (!common_.output_json.empty()) {
      const std::string text = to_json_text(numbers(common_.config, *facts)) + '\n';
      if (const Status status = write_file(common_.output_json, text); !status.ok()) return fail(status);
    }
    return kExitOk;
  }

 private:
  Result<Facts> gather() {
    EngineConfig& config = common_.config;
    ZIPAGE_RETURN_IF_ERROR(default_model(config.model));
    ZIPAGE_RETURN_IF_ERROR(validate(config));
    ZIPAGE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFiles> files,
                            ModelFiles::open(config.model, config.load_format));
    Facts facts;
    ZIPAGE_ASSIGN_OR_RETURN(facts.model, parse_model_config(files->config_json(), config.model));
    facts.weight_bytes = weight_bytes(*files, facts.model);
    std::unique_ptr<Backend> backend;
    try {
      backend = make_backend(config.device, {.num_threads = 1});
    } catch (const DeviceError& error) {
      return Status(StatusCode::kInternal, error.what());
    }
    ZIPAGE_ASSIGN_OR_RETURN(facts.plan, plan_memory(config, facts.model, *backend, facts.weight_bytes));
    facts.compression = resolve(config.compression);
    facts.request_len = std::min(request_len_.value_or(facts.plan.max_model_len), facts.plan.max_model_len);
    const auto blocks_of = [&](const CompressionParams& params) {
      return peak_blocks(1, facts.request_len - 1, params, config.block_size);
    };
    facts.blocks_full = blocks_of({});
    facts.blocks_compressed = blocks_of(facts.compression);
    return facts;
  }

  CommonFlags common_;
  std::optional<int> request_len_;
};

}  // namespace

CommandInfo inspect_command() {
  return {"inspect", "zipage inspect [MODEL] [FLAGS]",
          "Says what a model is, what memory it takes and how many requests fit.",
          [] { return std::unique_ptr<Command>(std::make_unique<Inspect>()); }};
}

}  // namespace zipage::apps
