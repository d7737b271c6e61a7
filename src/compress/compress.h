// Compressed PagedAttention: one compression of one sequence, all layers and KV heads, stage by stage.
//
// Thread-safety: a workspace and a queue are used by one thread at a time. On the CPU compress() returns when the work
// is done; on a GPU it is enqueued, and the workspace, the job's query slot and every block of the job belong to the
// queue until an event recorded after it is done (C7).
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "compress/plan.h"
#include "compress/workspace.h"
#include "ops/compress_ops.h"

namespace zipage {

// What the stages need to know about the model.
struct CompressionModel {
  int num_heads = 0;               // query heads
  float scale = 0;                 // of q.k
  const float* cos_sin = nullptr;  // device [max_position, rotary_dim], see QkvRopeAppendParams
  int rotary_dim = 0;
};

struct CompressionJob {
  CompressionParams params;
  KvPool kv;
  QueryRing ring;
  int query_slot = 0;                // holds the window's queries; unused when params.attention is off
  std::span<const BlockId> table;    // host; the sequence's table before the compression
  std::span<const BlockId> targets;  // host; CompressionPlan::targets
  int num_retained = 0;              // CompressionPlan::num_retained
  int num_slots = 0;                 // resident slots (T)
  int num_scored = 0;                // of them kept by an earlier compression
  int logical_len = 0;               // tokens whose K and V are in the pool or were evicted
  int prompt_len = 0;
};

// Keeps params.budget slots per layer and KV head, in the target blocks. Afterwards the sequence has
// num_slots = num_scored = params.budget, and its next token's position is still logical_len.
void compress(Backend& backend, Queue& queue, const CompressionModel& model, const CompressionJob& job,
              CompressionWorkspace& workspace);

}  // namespace zipage
