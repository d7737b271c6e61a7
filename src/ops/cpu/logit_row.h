// A row of logits in working memory with the maximum of every 64, so that looking for the largest few skips most of it.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstdint>

#include "ops/cpu/kernels.h"

namespace zipage::cpu {

class LogitRow {
 public:
  static size_t workspace_bytes(int vocab);
  // `workspace` [workspace_bytes(vocab)]
  LogitRow(const Kernels& kernel, int vocab, std::byte* workspace);

  // Copies a row; NaN and infinities become -inf. Values may be changed until index() is called.
  void load(const float* logits);
  float* values() { return values_; }
  const float* values() const { return values_; }
  int size() const { return size_; }

  // Makes the maxima. The following REQUIRE it.
  void index();
  float largest() const { return largest_; }  // -inf: nothing is finite
  int first_largest() const;                  // the lowest id; -1 when nothing is finite
  // x = (x - largest) * factor
  void normalise(float factor);

  // The k-th largest value; -inf when fewer are finite. REQUIRES 1 <= k <= size().
  float kth_largest(int k);
  // The least value of the smallest set of largest values that hold `share` of the weight exp(x - largest) of all
  // values
  // >= least.
  float least_of_share(double share, float least);
  // Ids of all values >= least, ascending, in memory that the next call of these three reuses.
  int32_t* ids_from(float least, int& count);

  // argmax over values >= least of value + noise; -1 when there is none.
  int32_t draw(SampleNoiseKey key, float least) const;

 private:
  int num_blocks() const { return static_cast<int>((size_ + kLogitBlock - 1) / kLogitBlock); }
  int collect(float least);  // values >= least into work_

  const Kernels& kernel_;
  int size_;
  float* values_;  // [size]
  float* work_;    // [size]
  float* maxima_;  // [num_blocks]
  float largest_ = 0;
};

}  // namespace zipage::cpu
