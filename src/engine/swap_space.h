// Host memory for the KV of compressed requests that gave way, and the way there and back.
//
// A device with memory of its own gathers a request's blocks into staging memory in the order of its batches, which
// takes as long as reading them; the host's copy of it is made by a queue of its own, beside the batches that follow.
// Back again the staging memory is filled beside the batch before, and scattered into blocks in order. A backend that
// computes in host memory copies at once.
//
// Thread-safety: one thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace zipage {

struct SwapShape {
  int64_t num_blocks = 0;      // of host memory
  int num_rings = 0;           // query slots' rows in host memory
  int64_t staging_blocks = 0;  // of device memory; requests with more go in parts

  // Of a pool of this geometry; `blocks_per_request`: that a compressed request holds at most.
  static SwapShape of(const Backend& backend, const KvGeometry& kv, int64_t host_bytes, int blocks_per_request,
                      int num_rings);
};

class SwapSpace {
 public:
  // `batches`, borrowed: the queue whose order counts.
  SwapSpace(Backend& backend, Queue& batches, const KvPool& kv, const QueryRing& ring, int64_t row_elements,
            const SwapShape& shape);
  // The work that was enqueued is done.
  ~SwapSpace();
  SwapSpace(const SwapSpace&) = delete;
  SwapSpace& operator=(const SwapSpace&) = delete;

  // Blocks of the pool to or from as many of the host's; takes effect between what the batches' queue got before and
  // what it gets after.
  void move_blocks(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host);
  void move_ring(int query_slot, int host_ring, bool to_host);

 private:
  void stage(std::span<const int32_t> blocks, std::span<const int32_t> host_blocks, bool to_host);

  Backend& backend_;
  Queue& batches_;
  KvPool kv_;
  QueryRing ring_;
  int64_t row_elements_;
  size_t block_bytes_, ring_bytes_;
  std::unique_ptr<Buffer> blocks_, rings_;  // pinned host memory
  std::unique_ptr<Buffer> staging_;         // null: the host's memory is the device's
  std::vector<int32_t> staging_ids_;        // 0, 1, ...
  std::unique_ptr<Queue> transfers_;
  std::unique_ptr<Event> staging_free_;  // null: never used
};

}  // namespace zipage
