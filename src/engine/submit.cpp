// The gate: every request is checked here, on its caller's thread, before the engine's thread ever sees it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/engine_impl.h"

namespace zipage {
namespace {

Status bad(std::string param, std::string message) {
  return invalid_argument(std::move(message)).with_param(std::move(param));
}

// NaN fails every comparison, so each rule is written as what must hold.
Status check_sampling(const SamplingParams& params, int vocab, int max_logprobs) {
  const auto token_ok = [vocab](int32_t token) { return token >= 0 && token < vocab; };
  if (!(params.temperature >= 0) || std::isinf(params.temperature)) {
    return bad("temperature", fmt::format("temperature must be a number >= 0, not {}", params.temperature));
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return bad("top_p", fmt::format("top_p must be in (0, 1], not {}", params.top_p));
  }
  if (params.top_k < -1) return bad("top_k", fmt::format("top_k must be -1 or more, not {}", params.top_k));
  if (!(params.min_p >= 0 && params.min_p <= 1)) {
    return bad("min_p", fmt::format("min_p must be in [0, 1], not {}", params.min_p));
  }
  if (!(params.repetition_penalty > 0) || std::isinf(params.repetition_penalty)) {
    return bad("repetition_penalty", fmt::format("repetition_penalty must be > 0, not {}", params.repetition_penalty));
  }
  if (!(params.presence_penalty >= -2 && params.presence_penalty <= 2)) {
    return bad("presence_penalty", fmt::format("presence_penalty must be in [-2, 2], not {}", params.presence_penalty));
  }
  if (!(params.frequency_penalty >= -2 && params.frequency_penalty <= 2)) {
    return bad("frequency_penalty",
               fmt::format("frequency_penalty must be in [-2, 2], not {}", params.frequency_penalty));
  }
  if (params.max_tokens < 0)
    return bad("max_tokens", fmt::format("max_tokens must be at least 1, not {}", params.max_tokens));
  if (params.min_tokens < 0)
    return bad("min_tokens", fmt::format("min_tokens must be 0 or more, not {}", params.min_tokens));
  for (const auto& [token, bias] : params.logit_bias) {
    if (!token_ok(token))
      return bad("logit_bias", fmt::format("logit_bias: token id {} is not in [0, {})", token, vocab));
    if (std::isnan(bias)) return bad("logit_bias", fmt::format("logit_bias of token {} is not a number", token));
  }
  for (int32_t token : params.stop_token_ids) {
    if (!token_ok(token))
      return bad("stop_token_ids", fmt::format("stop_token_ids: {} is not in [0, {})", token, vocab));
  }
  for (int32_t token : params.allowed_token_ids) {
    if (!token_ok(token)) {
      return bad("allowed_token_ids", fmt::format("allowed_token_ids: {} is not in [0, {})", token, vocab));
    }
  }
  for (const auto& word : params.bad_words) {
    if (word.empty() || !std::ranges::all_of(word, token_ok)) {
      return bad("bad_words", "bad_words: a word has no tokens, or one outside the vocabulary");
    }
  }
  const auto check_count = [max_logprobs](const char* field, std::optional<int> count) -> Status {
    if (!count || (*count >= 0 && *count <= max_logprobs)) return {};
    return bad(field, fmt::format("{} must be in [0, {}] (--max-logprobs), not {}", field, max_logprobs, *count));
  };
  ZIPAGE_RETURN_IF_ERROR(check_count("logprobs", params.logprobs));
  ZIPAGE_RETURN_IF_ERROR(check_count("prompt_logprobs", params.prompt_logprobs));
  if (params.thinking_token_budget && *params.thinking_token_budget < 0) {
    return bad("thinking_token_budget",
               fmt::format("thinking_token_budget must be 0 or more, not {}", *params.thinking_token_budget));
  }
  return {};
}

uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace

Status EngineImpl::validate(Request& request, CompressionParams* params) const {
  const int vocab = model_.vocab_size;
  const int block = config_.block_size;
  if (request.prompt_token_ids.empty()) return bad("prompt", "the prompt has no tokens");
  for (int32_t token : request.prompt_token_ids) {
    if (token < 0 || token >= vocab) {
      return bad("prompt", fmt::format("prompt token id {} is not in the model's vocabulary [0, {})", token, vocab));
    }
  }
  for (int32_t token : request.forced_output_token_ids) {
    if (token < 0 || token >= vocab) {
      return bad("forced_output_token_ids",
                 fmt::format("token id {} is not in the model's vocabulary [0, {})", token, vocab));
    }
  }
  SamplingParams& sampling = request.sampling;
  ZIPAGE_RETURN_IF_ERROR(check_sampling(sampling, vocab, config_.max_logprobs));
  const auto num_prompt = static_cast<int64_t>(request.prompt_token_ids.size());
  const int max_len = model_.max_model_len;
  if (num_prompt >= max_len) {
    return bad("prompt", fmt::format("the prompt has {} tokens; the model's maximum context length is {} tokens, "
                                     "at least one of them for the output",
                                     num_prompt, max_len));
  }
  if (sampling.max_tokens == 0) sampling.max_tokens = static_cast<int>(max_len - num_prompt);
  if (num_prompt + sampling.max_tokens > max_len) {
    return bad("max_tokens",
               fmt::format("the model's maximum context length is {} tokens; {} prompt tokens and max_tokens "
                           "{} ask for {}",
                           max_len, num_prompt, sampling.max_tokens, num_prompt + sampling.max_tokens));
  }
  if (sampling.min_tokens > sampling.max_tokens) {
    return bad("min_tokens",
               fmt::format("min_tokens {} is more than max_tokens {}", sampling.min_tokens, sampling.max_tokens));
  }
  if (request.made_up_tokens != 0 && (config_.load_format != LoadFormat::kDummy || request.made_up_tokens < 0 ||
                                      request.made_up_tokens >= num_prompt)) {
    return bad("made_up_tokens", "made_up_tokens must be less than the prompt's, with --load-format dummy alone");
  }
  if (static_cast<int64_t>(request.forced_output_token_ids.size()) > sampling.max_tokens) {
    return bad("forced_output_token_ids", fmt::format("{} forced tokens are more than max_tokens {}",
                                                      request.forced_output_token_ids.size(), sampling.max_tokens));
  }

  CompressionOptions options = config_.compression;
  if (request.kv_budget) options.kv_budget = *request.kv_budget;
  if (request.kv_policy) options.kv_policy = *request.kv_policy;
  if (request.protect_prompt) options.protect_prompt = *request.protect_prompt;
  *params = resolve(options);
  params->query_stride = default_compression_.query_stride;  // the rings are the engine's
  if (params->enabled()) {
    if (Status status = zipage::validate(*params, block); !status.ok()) {
      return bad(request.kv_budget ? "kv_budget" : "kv_policy", status.message());
    }
    if (runner_->plan().num_query_slots == 0) {
      return bad("kv_budget", "this server keeps no query slots (--query-slots 0) and cannot compress");
    }
  }
  // Without compression a request may stop short of max_tokens when the pool is full; its prompt must fit.
  const int needed =
      peak_blocks(static_cast<int>(num_prompt), params->enabled() ? sampling.max_tokens : 1, *params, block);
  const int blocks = runner_->plan().kv.num_blocks;
  if (needed > blocks) {
    return bad("prompt",
               fmt::format("the request needs {} KV blocks of {} tokens at its peak ({} prompt tokens, budget {} + "
                           "slack {}), the pool has {}",
                           needed, block, num_prompt, params->budget, params->enabled() ? params->slack : 0, blocks));
  }
  return {};
}

Result<std::string> EngineImpl::submit(Request request) {
  auto sequence = std::make_unique<Sequence>();
  ZIPAGE_RETURN_IF_ERROR(validate(request, &sequence->compression));

  Sequence& s = *sequence;
  s.num_prompt = static_cast<int>(request.prompt_token_ids.size());
  s.num_forced = static_cast<int>(request.forced_output_token_ids.size());
  s.tokens = std::move(request.prompt_token_ids);
  s.tokens.insert(s.tokens.end(), request.forced_output_token_ids.begin(), request.forced_output_token_ids.end());
  request.prompt_token_ids = {};
  s.request = std::move(request);
  const SamplingParams& sampling = s.request.sampling;
  s.arrived = std::chrono::steady_clock::now();
  // Log-probabilities of the prompt need its hidden states, which the prefix cache does not keep.
  s.use_prefix_cache = !sampling.prompt_logprobs && s.num_forced == 0;
  if (sampling.prompt_logprobs) s.prompt_logprobs.emplace_back(std::nullopt);
  s.needs_sampled_tokens = SamplingBatch::has_penalties(sampling) || sampling.thinking_token_budget ||
                           s.request.constraint != nullptr ||
                           std::ranges::any_of(sampling.bad_words, [](const auto& word) { return word.size() > 1; });
  if (s.request.constraint) {
    for (const int32_t token : s.request.forced_output_token_ids) s.request.constraint->accept(token);
  }
  if (SamplingBatch::has_penalties(sampling)) {
    s.history = std::make_unique<TokenHistory>();
    s.history->add_prompt(std::span<const int32_t>(s.tokens).first(static_cast<size_t>(s.num_prompt)));
    for (size_t i = static_cast<size_t>(s.num_prompt); i < s.tokens.size(); ++i) s.history->add_output(s.tokens[i]);
  }
  if (sampling.thinking_token_budget) {
    s.thinking.emplace(*sampling.thinking_token_budget, s.request.begin_thinking_token_ids,
                       s.request.end_thinking_token_ids, s.request.starts_thinking);
  }

  if (s.request.made_up_tokens > 0) make_up_beginning(s, s.request.made_up_tokens, config_.block_size);

  std::string id;
  {
    const std::lock_guard lock(mutex_);
    if (config_.max_queued_requests > 0 &&
        stats_.num_waiting + static_cast<int>(inbox_.size()) >= config_.max_queued_requests) {
      return Status(
          StatusCode::kResourceExhausted,
          fmt::format("{} requests are waiting already (--max-queued-requests)", config_.max_queued_requests));
    }
    s.id = SequenceId(next_id_++);
    if (s.request.request_id.empty()) s.request.request_id = fmt::format("req-{}", s.id.value());
    if (!live_ids_.insert(s.request.request_id).second) {
      return bad("request_id", fmt::format("a request with the id '{}' is running already", s.request.request_id));
    }
    s.sampling_seed = sampling.seed ? static_cast<uint64_t>(*sampling.seed)
                                    : mix(static_cast<uint64_t>(config_.seed) * 0x51ED270B76A5F0E3ULL + s.id.value());
    id = s.request.request_id;
    inbox_.push_back(std::move(sequence));
  }
  wake_.notify_one();
  return id;
}

}  // namespace zipage
