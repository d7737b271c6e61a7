// Where a compression writes: a sequence's block table -> targets, the table after it, and the blocks it gives up.
// Pure: no device, no pool, no clock.
//
// Let s be the number of leading blocks that someone else can see (another sequence uses them, or the prefix cache
// indexes them), k = budget / b, r the retained blocks and f = min(s, k - r) the fresh ones that the caller allocates.
//
//   before  table     |---- shared, s ----|------------- own, n - s - r -------------|- own, r -|
//   after   targets   |- fresh, f -|- own, k - r - f -|                              |retained, r|  in this order
//           kept empty                                |- own, <= slack / b -|                       at the table's end
//           released  |---- shared, s ----|                                 |- rest -|
//
// Retained are full own blocks at the end, all of whose slots are among the newest that stay in any case
// (CompressionParams::newest_kept()): they are kept whole and in order, so they move in the table and not in memory.
//
// The caller drops one reference of each released block: a shared one lives on with its other users, an own one is free
// once the compaction is done with it (C7). When own blocks are fewer than slack / b none is allocated to make them up:
// the sequence gets its slots one block at a time, as ever.
//
// C1  own targets in front of the retained ones sit in the table at or before the place they are written for: slot i of
//     the result lies at or before every slot it can come from, so walking front to back a write never passes the read
//     position.
// C2  a target is a fresh or an own block, never one of the first s.
// C3  after: k full blocks and at most slack / b empty own ones.
// C4 and C5 are the selection's (ops/compress_ops.h).
//
// Thread-safety: values.
#pragma once

#include <span>
#include <vector>

#include "base/ids.h"
#include "zipage/compression.h"

namespace zipage {

struct CompressionPlan {
  std::vector<BlockId> targets;     // [budget / b] blocks that hold the kept slots, in sequence order
  std::vector<BlockId> kept_empty;  // own blocks for the next tokens
  std::vector<BlockId> released;    // one reference of each goes back
  int num_retained = 0;             // last targets, of which no K and no V moves
  int num_source_blocks = 0;        // leading blocks of the old table that hold resident slots

  // The table after the compression: targets, then kept_empty.
  std::vector<BlockId> table_after() const;
};

// How many blocks the plan retains, and how many fresh ones it needs. shared: leading blocks of the table that someone
// else can see.
int retained_blocks(int shared, int num_slots, const CompressionParams& params, int block_size);
int fresh_blocks_needed(int shared, int num_slots, const CompressionParams& params, int block_size);

// REQUIRES: params valid and enabled; num_slots > budget; the table covers num_slots; shared <= table.size();
// fresh.size() == fresh_blocks_needed(...), none of them in the table. The table may hold blocks beyond num_slots.
CompressionPlan plan_compression(std::span<const BlockId> table, int shared, std::span<const BlockId> fresh,
                                 int num_slots, const CompressionParams& params, int block_size);

}  // namespace zipage
