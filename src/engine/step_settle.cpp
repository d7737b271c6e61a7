// What a launched batch changes: lengths at once; tokens, log-probabilities and ends of requests when it is done.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine_impl.h"

namespace zipage {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return from.time_since_epoch().count() == 0 || to < from ? 0 : std::chrono::duration<double>(to - from).count();
}

// A row's log-probabilities hold as many entries as the batch's greediest request asked for.
TokenLogprobs trimmed(TokenLogprobs entry, int top) {
  if (static_cast<int>(entry.top.size()) > top) entry.top.resize(static_cast<size_t>(top));
  return entry;
}

}  // namespace

// What is known as soon as a batch is launched: lengths.
void EngineImpl::advance(const StepBatch& batch) {
  Launched launched;
  launched.num_sampled = batch.num_sampled;
  int row = 0;
  for (const ScheduledChunk& chunk : batch.chunks) {
    Sequence& s = *chunk.sequence;
    const int end = s.num_computed + chunk.num_tokens;
    launched.chunks.push_back({s.id, end, chunk.samples});
    launched.num_prompt_tokens += std::max(0, std::min(end, s.num_prompt) - std::max(s.num_computed, s.max_computed));
    s.num_computed = end;
    s.num_resident += chunk.num_tokens;
    s.max_computed = std::max(s.max_computed, end);
    publish_blocks(s);
    if (!chunk.samples) continue;
    ++s.num_pending;
    s.pending_row = row++;
    launched.needs_settling |= s.needs_sampled_tokens;
  }
  for (const StepBatch::ScoredToken& token : batch.scored) launched.scored.push_back({token.sequence->id, token.index});
  launched_.push_back(std::move(launched));
}

// The rest, when its oldest launched batch is done.
void EngineImpl::settle() {
  const SampledTokens sampled = runner_->collect();
  const Launched batch = std::move(launched_.front());
  launched_.pop_front();
  totals_.prompt_tokens += batch.num_prompt_tokens;
  totals_.device_seconds += sampled.device_seconds;
  totals_.compression_seconds += sampled.compression_seconds;
  if (batch.follows) totals_.device_idle_seconds += sampled.idle_seconds;
  for (size_t i = 0; i < batch.scored.size(); ++i) {
    const auto [id, index] = batch.scored[i];
    Sequence* s = find(id);
    if (s == nullptr) continue;
    TokenLogprobs entry = sampled.logprobs[static_cast<size_t>(batch.num_sampled) + i];
    if (index < s->num_prompt) {
      s->prompt_logprobs.push_back(trimmed(std::move(entry), *s->request.sampling.prompt_logprobs));
    } else {
      output_of(*s).logprobs.push_back(trimmed(std::move(entry), *s->request.sampling.logprobs));
    }
  }
  size_t next_row = 0;
  for (const Launched::Chunk& chunk : batch.chunks) {
    const size_t row = chunk.samples ? next_row++ : 0;
    Sequence* found = find(chunk.id);
    if (found == nullptr || found->end_after_compression) continue;
    Sequence& s = *found;
    report_forced_tokens(s, chunk.end);
    if (s.state == SequenceState::kFinished || !chunk.samples) continue;
    --s.num_pending;
    const int32_t token = sampled.tokens[row];
    if (token < 0 && s.request.constraint) {
      end_constrained(s);
      continue;
    }
    if (token < 0) {
      ++totals_.corrupted_requests;
      finish(s, FinishReason::kError,
             Status(StatusCode::kInternal, "the model's logits have no finite value for the next token"));
      continue;
    }
    if (s.request.sampling.logprobs) {
      output_of(s).logprobs.push_back(trimmed(sampled.logprobs[row], *s.request.sampling.logprobs));
    }
    accept_token(s, token);
  }
}

// No token may come: where the grammar can only end, the request's other fields forbid the stop token, or there is
// none.
void EngineImpl::end_constrained(Sequence& s) {
  TokenConstraint& constraint = *s.request.constraint;
  if (constraint.finished()) return finish(s, FinishReason::kStop);
  Status error = constraint.error();
  if (error.ok()) {
    error =
        Status(StatusCode::kInvalidArgument,
               "no token is left that the request's grammar and its other fields allow and that has a finite logit");
  }
  finish(s, FinishReason::kError, std::move(error));
}

void EngineImpl::accept_token(Sequence& s, int32_t token) {
  const auto now = std::chrono::steady_clock::now();
  s.tokens.push_back(token);
  publish_blocks(s);
  s.last_token = now;
  report_token(s, token);
  if (s.history) s.history->add_output(token);
  if (s.thinking) s.thinking->accept(std::span<const int32_t>(s.tokens).subspan(static_cast<size_t>(s.num_prompt)));
  if (s.request.constraint) s.request.constraint->accept(token);

  const SamplingParams& params = s.request.sampling;
  if (s.num_output() >= params.min_tokens && is_stop(s, token)) {
    finish(s, FinishReason::kStop);
  } else if (s.num_output() >= params.max_tokens) {
    finish(s, FinishReason::kLength);
  }
}

void EngineImpl::report_token(Sequence& s, int32_t token) {
  RequestOutput& output = output_of(s);
  if (s.num_reported == 0) {
    s.first_token = std::chrono::steady_clock::now();
    output.prompt_logprobs = std::exchange(s.prompt_logprobs, {});
  }
  output.new_token_ids.push_back(token);
  ++s.num_reported;
  ++totals_.generation_tokens;
}

// Given output tokens are reported once the token before them has been computed, as if they had been sampled then.
void EngineImpl::report_forced_tokens(Sequence& s, int num_computed) {
  while (s.num_reported < s.num_forced && num_computed >= s.num_prompt + s.num_reported) {
    report_token(s, s.tokens[static_cast<size_t>(s.num_prompt + s.num_reported)]);
  }
  if (s.num_forced > 0 && s.num_reported == s.num_output() && s.num_output() >= s.request.sampling.max_tokens) {
    finish(s, FinishReason::kLength);
  }
}

bool EngineImpl::is_stop(const Sequence& s, int32_t token) const {
  const SamplingParams& params = s.request.sampling;
  if (!params.ignore_eos && std::ranges::find(model_.eos_token_ids, token) != model_.eos_token_ids.end()) return true;
  return std::ranges::find(params.stop_token_ids, token) != params.stop_token_ids.end();
}

std::vector<int32_t> EngineImpl::forbidden_tokens(const Sequence& s) const {
  std::vector<int32_t> forbidden;
  const SamplingParams& params = s.request.sampling;
  if (s.length() - s.num_prompt < params.min_tokens) {
    forbidden = params.stop_token_ids;
    if (!params.ignore_eos) {
      forbidden.insert(forbidden.end(), model_.eos_token_ids.begin(), model_.eos_token_ids.end());
    }
  }
  for (const std::vector<int32_t>& word : params.bad_words) {
    const size_t prefix = word.size() - 1;
    if (static_cast<size_t>(s.num_output()) < prefix) continue;
    if (std::equal(word.begin(), word.end() - 1, s.tokens.end() - static_cast<ptrdiff_t>(prefix))) {
      forbidden.push_back(word.back());
    }
  }
  return forbidden;
}

// Only clean blocks: full, of known tokens, launched, not written by a compression.
void EngineImpl::publish_blocks(Sequence& s) {
  if (!config_.enable_prefix_caching || s.num_scored > 0) return;
  const size_t block = static_cast<size_t>(config_.block_size);
  const int num_known = std::min(s.num_resident, static_cast<int>(s.tokens.size()));
  while (s.state == SequenceState::kRunning && (s.num_published + 1) * config_.block_size <= num_known) {
    const size_t index = static_cast<size_t>(s.num_published);
    s.prefix_chain = prefix_cache_.publish(
        s.prefix_chain, std::span<const int32_t>(s.tokens).subspan(index * block, block), s.blocks[index]);
    ++s.num_published;
  }
}

RequestOutput& EngineImpl::output_of(Sequence& s) {
  const auto [it, added] = outputs_.try_emplace(s.id);
  if (added) it->second.request_id = s.request.request_id;
  return it->second;
}

void EngineImpl::finish(Sequence& s, FinishReason reason, Status error) {
  // The lane still writes to its blocks: it ends when the lane is done with them (C7).
  if (s.state == SequenceState::kCompressing) {
    if (!s.end_after_compression) s.end_after_compression = {reason, std::move(error)};
    return;
  }
  RequestOutput& output = output_of(s);
  output.finish_reason = reason;
  const std::vector<int32_t>& stop_ids = s.request.sampling.stop_token_ids;
  if (reason == FinishReason::kStop && std::ranges::find(stop_ids, s.tokens.back()) != stop_ids.end()) {
    output.stop_token_id = s.tokens.back();
  }
  output.error = std::move(error);
  output.num_prompt_tokens = s.num_prompt;
  output.num_output_tokens = s.num_reported;
  output.num_cached_tokens = std::max(0, s.num_cached_tokens);
  output.kv_stats = s.stats;
  // Without what was computed ahead for nothing.
  output.kv_stats.resident_tokens =
      s.num_resident - std::max(0, s.num_computed - static_cast<int>(s.tokens.size()) + 1);
  output.kv_stats.evicted_tokens = s.num_computed - s.num_resident;
  const auto now = std::chrono::steady_clock::now();
  output.queue_seconds =
      seconds_between(s.arrived, s.first_scheduled.time_since_epoch().count() ? s.first_scheduled : now);
  output.prefill_seconds = seconds_between(s.first_scheduled, s.first_token);
  output.decode_seconds = seconds_between(s.first_token, s.last_token);

  release_kv(s);
  release_swap(s);
  running_.erase(&s);
  waiting_.erase(&s);
  s.become(SequenceState::kFinished);
  ++totals_.finished[static_cast<size_t>(reason)];
  by_request_id_.erase(s.request.request_id);
  {
    const std::lock_guard lock(mutex_);
    live_ids_.erase(s.request.request_id);
  }
  auto owned = sequences_.extract(s.id);
  finished_.push_back(std::move(owned.mapped()));
}

// What the device holds of the running requests is not to be trusted any more, and what was being sampled is lost.
// Requests that hold nothing are not touched.
void EngineImpl::fail_launched(const Status& error) {
  runner_->abandon();
  launched_.clear();
  std::vector<Sequence*> lost(running_.begin(), running_.end());
  std::ranges::copy_if(waiting_, std::back_inserter(lost), [](const Sequence* s) { return s->num_pending > 0; });
  for (Sequence* s : lost) {
    if (s->state != SequenceState::kCompressing || s->num_pending > 0) finish(*s, FinishReason::kError, error);
  }
}

}  // namespace zipage
