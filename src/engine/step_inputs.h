// A batch's arrays on the device, at the same addresses in every step, so that recorded graphs find them.
//
//   token_ids positions slot_mapping query_ring_rows [max_tokens] | query_start_loc seq_lens [max_seqs] |
//   block_table [max_seqs, max_blocks_per_seq]
//
// Thread-safety: one thread.
#pragma once

#include "engine/batch.h"
#include "engine/staging.h"

namespace zipage {

class StepInputs {
 public:
  StepInputs(Backend& backend, int max_tokens, int max_seqs, int max_blocks_per_seq);
  static size_t bytes(int max_tokens, int max_seqs, int max_blocks_per_seq);

  // Uploads the batch. `padded_seqs`: 0, or for a batch of decodes alone how many rows its view has; those past the
  // batch store nothing, attend to nothing and are nobody's (cases 45 and 46).
  BatchView upload(Queue& queue, const StepBatch& batch, int padded_seqs = 0);
  // The view of a batch of padding alone, uploaded too.
  BatchView upload_padding(Queue& queue, int num_tokens, bool as_decodes);

  int max_seqs() const { return max_seqs_; }

 private:
  struct Arrays {
    int32_t *token_ids, *positions, *slot_mapping, *query_ring_rows, *query_start_loc, *seq_lens, *block_table;
  };
  Arrays begin(BatchView& view);
  static void pad(const Arrays& arrays, int first, int end);

  StagingArena arena_;
  int max_tokens_, max_seqs_, max_blocks_per_seq_;
};

}  // namespace zipage
