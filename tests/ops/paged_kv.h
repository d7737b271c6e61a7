// A paged KV pool on a device for tests: every byte NaN until it is written, blocks in random order, and a dense copy
// of what each sequence wrote for the oracle.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/device.h"
#include "ops/random.h"

namespace zipage::test {

// What one sequence brings to a step. A padding row has context = -1 and num_tokens = 1.
struct TestSequence {
  int context = 0;     // slots that lie in the pool before the step
  int num_tokens = 1;  // of this step
  bool padding() const { return context < 0; }
  int seq_len() const { return padding() ? 0 : context + num_tokens; }
};

// The device arrays behind a BatchView. Sequences with one token must come first.
class TestBatch {
 public:
  TestBatch(Device& device, const std::vector<TestSequence>& sequences, const std::vector<std::vector<int32_t>>& tables,
            int block_size);
  const BatchView& view() const { return view_; }
  BatchView& view() { return view_; }
  int first_token(size_t sequence) const { return starts_[sequence]; }
  const std::vector<int32_t>& slots() const { return slots_; }

 private:
  std::vector<int32_t> starts_, slots_;
  std::vector<DeviceArray<int32_t>> arrays_;
  BatchView view_;
};

class PagedKv {
 public:
  PagedKv(Device& device, const KvGeometry& geometry, bool with_scores = false);

  const KvPool& pool() const { return pool_; }
  // Block tables of distinct random blocks, long enough for each length. REQUIRES: the pool is large enough.
  std::vector<std::vector<int32_t>> make_tables(const std::vector<int>& lengths, Random& random) const;
  // Stores k and v [slots, num_kv_heads, head_dim] of `layer` at the slots [first, ...) of a table, unrotated.
  void write(int layer, const std::vector<int32_t>& table, int first, const std::vector<float>& k,
             const std::vector<float>& v);
  // k and v [slots, head_dim] of a layer and KV head.
  void read(int layer, int kv_head, const std::vector<int32_t>& slots, std::vector<float>& k, std::vector<float>& v);
  std::vector<std::byte> bytes() const;

 private:
  Device* device_;
  KvPool pool_;
  std::unique_ptr<Buffer> data_;
  std::unique_ptr<Buffer> scores_;
  std::unique_ptr<Buffer> positions_;
  std::unique_ptr<Buffer> scales_;  // fp8: of K, then of V
};

// bf16's neighbour of each value: what the pool holds of it.
std::vector<float> rounded_to_bf16(std::vector<float> values);

}  // namespace zipage::test
