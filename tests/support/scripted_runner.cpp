#include "support/scripted_runner.h"

#include <algorithm>

#include "base/check.h"

namespace zipage {
namespace {

uint64_t mix(uint64_t h, uint64_t value) {
  h ^= value + 0x9E3779B97F4A7C15ULL + (h << 6) + (h >> 2);
  h *= 0xBF58476D1CE4E5B9ULL;
  return h ^ (h >> 29);
}

std::vector<uint64_t> prefix_hashes(const std::vector<int32_t>& tokens) {
  std::vector<uint64_t> hashes;
  hashes.reserve(tokens.size());
  uint64_t h = 0x5eed;
  for (int32_t token : tokens) hashes.push_back(h = mix(h, static_cast<uint64_t>(token)));
  return hashes;
}

}  // namespace

int32_t ScriptedRunner::hashed_next_token(const std::vector<int32_t>& tokens, int vocab_size) {
  return static_cast<int32_t>(prefix_hashes(tokens).back() % static_cast<uint64_t>(vocab_size));
}

ScriptedRunner::ScriptedRunner(ScriptedOptions options) : options_(std::move(options)) {
  plan_.max_model_len = options_.max_model_len;
  plan_.max_tokens_per_step = options_.max_tokens_per_step;
  plan_.max_logit_rows = 256;
  plan_.num_query_slots = options_.num_query_slots;
  plan_.swap.num_blocks = options_.num_swap_blocks;
  plan_.swap.num_rings = options_.num_swap_blocks > 0 ? options_.num_swap_rings : 0;
  plan_.kv = {.num_layers = 1,
              .num_blocks = options_.num_blocks,
              .block_size = options_.block_size,
              .num_kv_heads = kHeads,
              .head_dim = 16};
  plan_.compression.window = options_.window;
  plan_.query_stride = options_.query_stride;
  pool_.resize(static_cast<size_t>(options_.num_blocks) * options_.block_size * kHeads);
  swap_.resize(static_cast<size_t>(options_.num_swap_blocks) * options_.block_size * kHeads);
  rings_.resize(static_cast<size_t>(options_.num_query_slots) * options_.window);
  swap_rings_.resize(static_cast<size_t>(options_.num_swap_rings) * options_.window);
}

std::vector<int32_t> ScriptedRunner::text_of(const Sequence& sequence) const {
  std::vector<int32_t> text = sequence.tokens;
  if (sequence.num_pending > 0) text.push_back(sampled_[static_cast<size_t>(sequence.pending_row)]);
  return text;
}

void ScriptedRunner::verify(const Sequence& sequence, const std::vector<int32_t>& text, int num_slots,
                            int num_computed) {
  const std::vector<uint64_t> texts = prefix_hashes(text);
  for (int head = 0; head < kHeads; ++head) {
    int previous = -1;
    for (int slot = 0; slot < num_slots; ++slot) {
      const int block = sequence.blocks[static_cast<size_t>(slot / options_.block_size)].value();
      const Cell& found = cell(block, slot % options_.block_size, head);
      ZIPAGE_CHECK(found.position > previous && found.position < static_cast<int>(texts.size()) &&
                       found.text == texts[static_cast<size_t>(found.position)],
                   "slot {} of sequence {} (block {}, head {}) holds position {} of another text, after position {}",
                   slot, sequence.id.value(), block, head, found.position, previous);
      previous = found.position;
    }
    // Nothing was evicted of what came after the last compression.
    const int tail = num_slots - sequence.num_scored;
    ZIPAGE_CHECK(tail == 0 || previous == num_computed - 1, "the newest slot of sequence {} holds position {}",
                 sequence.id.value(), previous);
  }
}

void ScriptedRunner::forward(const StepBatch& batch) {
  size_t token = 0;
  for (const ScheduledChunk& chunk : batch.chunks) {
    const std::vector<int32_t> text = text_of(*chunk.sequence);
    const std::vector<uint64_t> texts = prefix_hashes(text);
    for (int i = 0; i < chunk.num_tokens; ++i, ++token) {
      const int position = batch.positions[token];
      const int slot = batch.slot_mapping[token];
      const int32_t id = batch.token_ids[token];
      ZIPAGE_CHECK((id >= 0 ? id : sampled_[static_cast<size_t>(-1 - id)]) == text[static_cast<size_t>(position)],
                   "token {} of sequence {} is given as {}", position, chunk.sequence->id.value(), id);
      const Cell written{position, texts[static_cast<size_t>(position)]};
      for (int head = 0; head < kHeads; ++head)
        cell(slot / options_.block_size, slot % options_.block_size, head) = written;
      if (batch.query_ring_rows[token] >= 0) rings_[static_cast<size_t>(batch.query_ring_rows[token])] = written;
    }
  }
  for (const ScheduledChunk& chunk : batch.chunks) {
    const Sequence& sequence = *chunk.sequence;
    verify(sequence, text_of(sequence), sequence.num_resident + chunk.num_tokens,
           sequence.num_computed + chunk.num_tokens);
  }
}

void ScriptedRunner::launch(const StepBatch& batch, const SamplingBatch&, int top_logprobs) {
  ZIPAGE_CHECK(launched_.size() < 2, "{} batches are launched and not collected", launched_.size());
  if (options_.before_batch) options_.before_batch();
  forward(batch);
  SampledTokens sampled;
  for (const ScheduledChunk& chunk : batch.chunks) {
    if (!chunk.samples) continue;
    const std::vector<int32_t> text = text_of(*chunk.sequence);
    sampled.tokens.push_back(options_.next_token ? options_.next_token(*chunk.sequence, text)
                                                 : hashed_next_token(text, options_.vocab_size));
  }
  sampled_ = sampled.tokens;
  if (top_logprobs >= 0) {
    for (int32_t token : sampled.tokens)
      sampled.logprobs.push_back({.token = token, .logprob = -0.5F, .rank = 1, .top = {}});
    for (const auto& scored : batch.scored) {
      const int32_t token = scored.sequence->tokens[static_cast<size_t>(scored.index)];
      sampled.logprobs.push_back(
          {.token = token, .logprob = -0.01F * static_cast<float>(scored.index), .rank = 1, .top = {}});
    }
  }
  launched_.push_back(std::move(sampled));
}

SampledTokens ScriptedRunner::collect() {
  ZIPAGE_CHECK(!launched_.empty(), "nothing was launched");
  SampledTokens sampled = std::move(launched_.front());
  launched_.pop_front();
  return sampled;
}

std::function<void()> ScriptedRunner::compression(const Sequence& sequence, const CompressionPlan& plan, bool) {
  if (options_.before_compression) options_.before_compression(sequence, plan);
  return [this, job = CompressionJob{.params = sequence.compression,
                                     .kv = {},
                                     .ring = {},
                                     .query_slot = sequence.query_slot->value(),
                                     .table = sequence.blocks,
                                     .targets = plan.targets,
                                     .num_retained = plan.num_retained,
                                     .num_slots = sequence.num_resident,
                                     .num_scored = sequence.num_scored,
                                     .logical_len = sequence.num_computed,
                                     .prompt_len = sequence.num_prompt}] { compress(job); };
}

void ScriptedRunner::compress(const CompressionJob& job) {
  const int b = options_.block_size;
  // C: the window's queries are those of the newest tokens of this very text.
  const Cell& newest =
      cell(job.table[static_cast<size_t>((job.num_slots - 1) / b)].value(), (job.num_slots - 1) % b, 0);
  int rows = 0;
  for (int position = job.logical_len - 1; position >= 0 && rows < options_.window; --position) {
    if (position % options_.query_stride != 0) continue;
    ++rows;
    const int row = position / options_.query_stride % options_.window;
    const Cell& query = rings_[static_cast<size_t>(job.query_slot * options_.window + row)];
    ZIPAGE_CHECK(query.position == position, "query row of position {} holds position {}", position, query.position);
    if (position == newest.position) {
      ZIPAGE_CHECK(query.text == newest.text, "query row of position {} is another text's", position);
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    std::vector<Cell> source;
    for (int t = 0; t < job.num_slots; ++t)
      source.push_back(cell(job.table[static_cast<size_t>(t / b)].value(), t % b, head));
    // Keep the newest and, of the others, those with the smallest hash of (position, head): the same ones whenever the
    // same text is compressed at the same place.
    const int kept_anyway = job.params.newest_kept();
    std::vector<int> order(static_cast<size_t>(job.num_slots - kept_anyway));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::ranges::sort(order, {}, [&](int t) {
      return mix(static_cast<uint64_t>(source[static_cast<size_t>(t)].position), static_cast<uint64_t>(head));
    });
    order.resize(static_cast<size_t>(job.params.budget - kept_anyway));
    for (int t = job.num_slots - kept_anyway; t < job.num_slots; ++t) order.push_back(t);
    std::ranges::sort(order);
    for (int i = 0; i < job.params.budget - job.num_retained * b; ++i) {
      cell(job.targets[static_cast<size_t>(i / b)].value(), i % b, head) =
          source[static_cast<size_t>(order[static_cast<size_t>(i)])];
    }
  }
}

void ScriptedRunner::swap_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host) {
  const auto cells = static_cast<ptrdiff_t>(options_.block_size) * kHeads;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto device = pool_.begin() + blocks[i] * cells;
    const auto host = swap_.begin() + host_blocks[i] * cells;
    std::copy_n(to_host ? device : host, cells, to_host ? host : device);
    // What the pool held is gone at once: a sequence that still reads it is found out.
    if (to_host) std::fill_n(device, cells, Cell{});
  }
}

void ScriptedRunner::swap_ring(int query_slot, int host_ring, bool to_host) {
  const auto device = rings_.begin() + static_cast<ptrdiff_t>(query_slot) * options_.window;
  const auto host = swap_rings_.begin() + static_cast<ptrdiff_t>(host_ring) * options_.window;
  std::copy_n(to_host ? device : host, options_.window, to_host ? host : device);
}

}  // namespace zipage
