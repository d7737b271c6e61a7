#include "engine/batch.h"

#include <algorithm>

#include "base/check.h"
#include "ops/ops.h"

namespace zipage {
namespace {

// Tokens [computed, computed + n) of a sequence go to resident slots [resident, resident + n).
void append_tokens(const ScheduledChunk& chunk, int block_size, const QueryRing& ring, StepBatch& batch) {
  const Sequence& sequence = *chunk.sequence;
  for (int i = 0; i < chunk.num_tokens; ++i) {
    const int index = sequence.num_computed + i;
    const int slot = sequence.num_resident + i;
    ZIPAGE_CHECK(slot / block_size < static_cast<int>(sequence.blocks.size()), "sequence {} has no block for slot {}",
                 sequence.id.value(), slot);
    const BlockId block = sequence.blocks[static_cast<size_t>(slot / block_size)];
    const bool known = index < static_cast<int>(sequence.tokens.size());
    batch.token_ids.push_back(known ? sequence.tokens[static_cast<size_t>(index)] : -1 - sequence.pending_row);
    batch.positions.push_back(index);
    batch.slot_mapping.push_back(block.value() * block_size + slot % block_size);
    // A chunk's last tokens have distinct rows of the ring; earlier ones would be overwritten by them anyway.
    const bool records =
        chunk.records_queries && ring.records(index) && i >= chunk.num_tokens - ring.window * ring.stride;
    batch.query_ring_rows.push_back(records ? sequence.query_slot->value() * ring.window + ring.row(index) : -1);
  }
}

void append_scored_rows(const ScheduledChunk& chunk, int first_row, StepBatch& batch) {
  Sequence& sequence = *chunk.sequence;
  const SamplingParams& sampling = sequence.request.sampling;
  for (int i = 0; i < chunk.num_tokens; ++i) {
    const int predicted = sequence.num_computed + i + 1;
    if (predicted >= static_cast<int>(sequence.tokens.size()) || predicted - 1 < sequence.max_computed) continue;
    const bool wanted = predicted < sequence.num_prompt
                            ? sampling.prompt_logprobs.has_value()
                            : sampling.logprobs.has_value() && predicted < sequence.num_prompt + sequence.num_forced;
    if (!wanted) continue;
    batch.logit_rows.push_back(first_row + i);
    batch.scored.push_back({&sequence, predicted});
  }
}

}  // namespace

StepBatch flatten(std::vector<ScheduledChunk> chunks, int block_size, const CompressionParams& compression) {
  const QueryRing ring{.window = compression.window, .stride = compression.query_stride};
  std::stable_partition(chunks.begin(), chunks.end(),
                        [](const ScheduledChunk& chunk) { return chunk.num_tokens == 1; });
  StepBatch batch;
  for (const ScheduledChunk& chunk : chunks) {
    batch.max_blocks_per_seq = std::max(batch.max_blocks_per_seq, static_cast<int>(chunk.sequence->blocks.size()));
  }
  std::vector<int> first_rows;
  batch.query_start_loc.push_back(0);
  for (const ScheduledChunk& chunk : chunks) {
    first_rows.push_back(batch.num_tokens());
    append_tokens(chunk, block_size, ring, batch);
    batch.query_start_loc.push_back(batch.num_tokens());
    const int seq_len = chunk.sequence->num_resident + chunk.num_tokens;
    batch.seq_lens.push_back(seq_len);
    batch.max_seq_len = std::max(batch.max_seq_len, seq_len);
    if (chunk.num_tokens == 1) {
      ++batch.num_decodes;
    } else {
      batch.max_query_len = std::max(batch.max_query_len, chunk.num_tokens);
    }
    const size_t row_begin = batch.block_table.size();
    for (BlockId block : chunk.sequence->blocks) batch.block_table.push_back(block.value());
    batch.block_table.resize(row_begin + static_cast<size_t>(batch.max_blocks_per_seq), 0);
    if (chunk.samples) batch.logit_rows.push_back(batch.num_tokens() - 1);
  }
  batch.num_sampled = static_cast<int>(batch.logit_rows.size());
  for (size_t i = 0; i < chunks.size(); ++i) append_scored_rows(chunks[i], first_rows[i], batch);
  batch.chunks = std::move(chunks);
  return batch;
}

}  // namespace zipage
