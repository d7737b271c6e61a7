// A step's tokens, flattened over sequences: what the plan's chunks become before the forward pass.
//
// Thread-safety: values; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace zipage {

struct ScheduledChunk {
  Sequence* sequence;  // not to be looked at any more once a later step may have ended it
  int num_tokens;
  bool records_queries;
  bool samples;
};

struct StepBatch {
  std::vector<ScheduledChunk> chunks;  // decodes (one token) first, then the others, each in plan order
  int num_decodes = 0;
  // [num_tokens]; a token that is being sampled is -1 - its row among those sampled by the batch before
  std::vector<int32_t> token_ids, positions, slot_mapping, query_ring_rows;
  std::vector<int32_t> query_start_loc;  // [num_seqs + 1]
  std::vector<int32_t> seq_lens;         // [num_seqs]
  std::vector<int32_t> block_table;      // [num_seqs, max_blocks_per_seq]
  int max_blocks_per_seq = 0, max_query_len = 0, max_seq_len = 0;

  // Rows of the batch whose logits are needed: for each sampling chunk its last token, then the tokens whose
  // log-probabilities somebody asked for.
  std::vector<int32_t> logit_rows;
  int num_sampled = 0;  // the first rows; in the order of the sampling chunks
  struct ScoredToken {  // logit_rows[num_sampled + i] predicts tokens[index] of the sequence
    Sequence* sequence;
    int index;
  };
  std::vector<ScoredToken> scored;

  int num_tokens() const { return static_cast<int>(token_ids.size()); }
};

// REQUIRES: every chunk's sequence owns the blocks for its tokens (num_resident is still what it was before the chunk).
StepBatch flatten(std::vector<ScheduledChunk> chunks, int block_size, const CompressionParams& compression);

}  // namespace zipage
