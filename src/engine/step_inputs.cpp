#include "engine/step_inputs.h"

#include <algorithm>

namespace zipage {

size_t StepInputs::bytes(int max_tokens, int max_seqs, int max_blocks_per_seq) {
  const size_t seqs = static_cast<size_t>(max_seqs) + 1;
  const size_t alignment = 7 * 64;
  return (static_cast<size_t>(max_tokens) * 4 + seqs * (2 + static_cast<size_t>(max_blocks_per_seq))) *
             sizeof(int32_t) +
         alignment;
}

StepInputs::StepInputs(Backend& backend, int max_tokens, int max_seqs, int max_blocks_per_seq)
    : arena_(backend, bytes(max_tokens, max_seqs, max_blocks_per_seq), "step inputs"),
      max_tokens_(max_tokens),
      max_seqs_(max_seqs),
      max_blocks_per_seq_(max_blocks_per_seq) {}

StepInputs::Arrays StepInputs::begin(BatchView& view) {
  arena_.reset();
  const auto tokens = static_cast<size_t>(max_tokens_), seqs = static_cast<size_t>(max_seqs_);
  view.max_blocks_per_seq = max_blocks_per_seq_;
  // Braces evaluate from left to right: this is the order in memory, and the tables must come last.
  return {arena_.reserve<int32_t>(tokens, &view.token_ids),
          arena_.reserve<int32_t>(tokens, &view.positions),
          arena_.reserve<int32_t>(tokens, &view.slot_mapping),
          arena_.reserve<int32_t>(tokens, &view.query_ring_rows),
          arena_.reserve<int32_t>(seqs + 1, &view.query_start_loc),
          arena_.reserve<int32_t>(seqs, &view.seq_lens),
          arena_.reserve<int32_t>(seqs * static_cast<size_t>(max_blocks_per_seq_), &view.block_table)};
}

void StepInputs::pad(const Arrays& arrays, int first, int end) {
  std::fill(arrays.token_ids + first, arrays.token_ids + end, 0);
  std::fill(arrays.positions + first, arrays.positions + end, 0);
  std::fill(arrays.slot_mapping + first, arrays.slot_mapping + end, -1);
  std::fill(arrays.query_ring_rows + first, arrays.query_ring_rows + end, -1);
}

BatchView StepInputs::upload(Queue& queue, const StepBatch& batch, int padded_seqs) {
  BatchView view{.num_tokens = batch.num_tokens(),
                 .num_seqs = static_cast<int>(batch.chunks.size()),
                 .num_decodes = batch.num_decodes,
                 .max_query_len = batch.max_query_len,
                 .max_seq_len = batch.max_seq_len};
  ZIPAGE_CHECK(
      view.num_tokens <= max_tokens_ && view.num_seqs <= max_seqs_ && batch.max_blocks_per_seq <= max_blocks_per_seq_,
      "{} tokens of {} sequences with up to {} blocks, room is for {}, {} and {}", view.num_tokens, view.num_seqs,
      batch.max_blocks_per_seq, max_tokens_, max_seqs_, max_blocks_per_seq_);
  const int num_seqs = view.num_seqs;
  const Arrays arrays = begin(view);
  std::ranges::copy(batch.token_ids, arrays.token_ids);
  std::ranges::copy(batch.positions, arrays.positions);
  std::ranges::copy(batch.slot_mapping, arrays.slot_mapping);
  std::ranges::copy(batch.query_ring_rows, arrays.query_ring_rows);
  std::ranges::copy(batch.query_start_loc, arrays.query_start_loc);
  std::ranges::copy(batch.seq_lens, arrays.seq_lens);
  for (int i = 0; i < num_seqs; ++i) {
    std::copy_n(batch.block_table.begin() + int64_t{i} * batch.max_blocks_per_seq, batch.max_blocks_per_seq,
                arrays.block_table + int64_t{i} * max_blocks_per_seq_);
  }
  if (padded_seqs > 0) {
    ZIPAGE_CHECK(batch.num_decodes == num_seqs && padded_seqs >= num_seqs && padded_seqs <= max_seqs_,
                 "{} decodes of {} sequences padded to {}", batch.num_decodes, num_seqs, padded_seqs);
    pad(arrays, num_seqs, padded_seqs);
    for (int i = num_seqs; i < padded_seqs; ++i) arrays.query_start_loc[i + 1] = i + 1;
    std::fill(arrays.seq_lens + num_seqs, arrays.seq_lens + padded_seqs, 0);
    view.num_tokens = view.num_seqs = view.num_decodes = padded_seqs;
  }
  arena_.upload(queue, {.device = view.block_table,
                        .host = arrays.block_table,
                        .stride = static_cast<size_t>(max_blocks_per_seq_) * sizeof(int32_t),
                        .row_bytes = static_cast<size_t>(batch.max_blocks_per_seq) * sizeof(int32_t),
                        .count = static_cast<size_t>(num_seqs)});
  return view;
}

BatchView StepInputs::upload_padding(Queue& queue, int num_tokens, bool as_decodes) {
  BatchView view{.num_tokens = num_tokens};
  if (as_decodes) view.num_seqs = view.num_decodes = num_tokens;
  const Arrays arrays = begin(view);
  pad(arrays, 0, num_tokens);
  for (int i = 0; i <= view.num_seqs; ++i) arrays.query_start_loc[i] = i;
  std::fill(arrays.seq_lens, arrays.seq_lens + view.num_seqs, 0);
  arena_.upload(queue, {.device = view.block_table, .host = arrays.block_table});
  return view;
}

}  // namespace zipage
