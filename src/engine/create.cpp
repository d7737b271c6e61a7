// From a configuration to an engine: files, backend, weights, memory.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/runner.h"
#include "load/model_files.h"

namespace zipage {
namespace {

// All ids that end an answer: config.json's and generation_config.json's.
std::vector<int32_t> eos_token_ids(const EngineConfig& config, const ModelConfig& model, const ModelFiles& files) {
  std::vector<int32_t> ids = model.eos_token_ids;
  const std::optional<std::string> text =
      config.generation_config == "vllm" ? std::nullopt : files.side_file("generation_config.json");
  if (!text) return ids;
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("eos_token_id")) return ids;
  const auto add = [&ids](const nlohmann::json& value) {
    if (!value.is_number_integer()) return;
    const auto id = value.get<int32_t>();
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  };
  const nlohmann::json& eos = json["eos_token_id"];
  if (eos.is_array()) {
    for (const nlohmann::json& value : eos) add(value);
  } else {
    add(eos);
  }
  return ids;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineConfig& requested) {
  EngineConfig config = requested;
  ZIPAGE_RETURN_IF_ERROR(validate(config));
  ZIPAGE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFiles> files, ModelFiles::open(config.model, config.load_format));
  ZIPAGE_ASSIGN_OR_RETURN(const ModelConfig model, parse_model_config(files->config_json(), config.model));

  std::unique_ptr<Backend> backend;
  try {
    backend = make_backend(config.device, {.num_threads = config.threads});
    log_info("device: {} ({})", backend->info().name, backend->info().description);
    if (config.device == "auto") config.device = backend->info().name;
    if (!config.compression_mode) {
      config.compression_mode = backend->info().asynchronous ? CompressionMode::kInline : CompressionMode::kAsync;
    }
    if (!config.async_scheduling) config.async_scheduling = backend->info().asynchronous;
    ZIPAGE_ASSIGN_OR_RETURN(std::unique_ptr<Runner> runner,
                            Runner::create(config, std::move(backend), *files, model, {}));
    config.max_model_len = runner->plan().max_model_len;
    config.num_gpu_blocks_override = runner->plan().kv.num_blocks;
    ModelInfo info{.name = config.served_model_name.empty() ? config.model : config.served_model_name.front(),
                   .architecture = model.architecture,
                   .dtype = "bfloat16",
                   .num_layers = model.num_layers,
                   .hidden_size = model.hidden_size,
                   .num_heads = model.num_heads,
                   .num_kv_heads = model.num_kv_heads,
                   .head_dim = model.head_dim,
                   .intermediate_size = model.intermediate_size,
                   .vocab_size = model.vocab_size,
                   .max_model_len = runner->plan().max_model_len,
                   .num_parameters = runner->weights().num_parameters,
                   .weight_bytes = runner->weights().bytes,
                   .eos_token_ids = eos_token_ids(config, model, *files)};
    return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(std::move(config), std::move(info), std::move(runner)));
  } catch (const DeviceError& error) {
    return Status(StatusCode::kInternal, error.what());
  }
}

}  // namespace zipage
