// Weights of a linear layer on the CPU: one packed copy that serves any number of rows.
//
// Thread-safety: immutable after make.
#pragma once

#include <memory>
#include <span>

#include "ops/cpu/kernels.h"
#include "ops/cpu/memory.h"
#include "ops/cpu/thread_pool.h"

namespace zipage::cpu {

// Panels of 64 output columns, bf16 [ceil(out / 64)][ceil(in / 2)][64][2]; columns and elements past the end are 0.
class CpuLinear final : public Linear {
 public:
  // REQUIRES: parts are not empty and have the same number of columns.
  CpuLinear(std::span<const HostTensor> parts, ThreadPool& pool);

  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }
  size_t bytes() const override { return memory_->bytes(); }

  int64_t num_panels() const { return (out_features_ + kPanelColumns - 1) / kPanelColumns; }
  int64_t panel_elements() const { return (in_features_ + 1) / 2 * 2 * kPanelColumns; }
  const Bf16* panel(int64_t index) const { return memory_->as<const Bf16>() + index * panel_elements(); }
  // Row `index` of the [out, in] matrix, widened.
  void read_row(int64_t index, float* out) const;

 private:
  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
  std::unique_ptr<CpuBuffer> memory_;
};

}  // namespace zipage::cpu
