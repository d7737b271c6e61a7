// Device memory of one compression, reserved at start and used again by every compression of one lane.
//
// Thread-safety: one compression at a time; an asynchronous lane has a workspace of its own.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "base/ids.h"
#include "ops/ops.h"

namespace zipage {

// The largest compression that a workspace has to hold.
struct CompressionShape {
  KvGeometry kv;
  int num_heads = 0;  // query heads
  int window = 0;
  int max_slots = 0;   // resident slots of one sequence: a long prompt's, or N_max blocks
  int max_budget = 0;  // kept slots
};

class CompressionWorkspace {
 public:
  CompressionWorkspace(Backend& backend, const CompressionShape& shape);

  // Device bytes that the constructor reserves, for the memory plan.
  static size_t bytes(const Backend& backend, const CompressionShape& shape);

  const CompressionShape& shape() const { return shape_; }

  float* scores() const { return scores_; }          // A, then S before pooling [num_layers, num_kv_heads, max_slots]
  float* pooled() const { return pooled_; }          // S after pooling, same shape
  float* redundancy() const { return redundancy_; }  // R', same shape
  float* final_scores() const { return final_; }     // F, same shape
  int32_t* kept() const { return kept_; }            // [num_layers, num_kv_heads, max_budget]
  std::byte* scratch() const { return scratch_; }    // stages 1 and 4; null when the backend asks for none

  // Block ids of the job, on the device.
  int32_t* source_blocks() const { return blocks_->as<int32_t>(); }                       // [max source blocks]
  int32_t* target_blocks() const { return blocks_->as<int32_t>() + max_source_blocks_; }  // [max_budget / b]
  // Uploads them. The host's copies take turns; this waits while all of them are on their way.
  void upload_blocks(Backend& backend, Queue& queue, std::span<const BlockId> sources,
                     std::span<const BlockId> targets);

 private:
  CompressionShape shape_;
  int max_source_blocks_ = 0;
  struct Turn {
    std::unique_ptr<Buffer> host;
    std::unique_ptr<Event> uploaded;
  };
  std::unique_ptr<Buffer> memory_, blocks_;
  std::array<Turn, 16> turns_;
  size_t now_ = 0;
  float *scores_ = nullptr, *pooled_ = nullptr, *redundancy_ = nullptr, *final_ = nullptr;
  int32_t* kept_ = nullptr;
  std::byte* scratch_ = nullptr;
};

}  // namespace zipage
