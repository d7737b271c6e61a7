// Weights of a linear layer on the CPU: one packed copy that serves any number of rows, as small as the file has them.
//
// Thread-safety: immutable after make.
#pragma once

#include <span>
#include <vector>

#include "ops/cpu/kernels.h"
#include "ops/cpu/memory.h"
#include "ops/cpu/thread_pool.h"

namespace zipage::cpu {

// Panels of 64 output columns (kernels.h has their layouts); columns and elements past the end are 0. A panel is of
// nibbles when all its rows come from 4-bit formats, of bytes when all are quantised, bf16 otherwise.
class CpuLinear final : public Linear {
 public:
  // REQUIRES: parts are not empty and have the same number of columns.
  CpuLinear(std::span<const HostTensor> parts, ThreadPool& pool, Arena& arena);

  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }
  size_t bytes() const override { return bytes_; }

  int64_t num_panels() const { return static_cast<int64_t>(panels_.size()); }
  PanelKind kind(int64_t panel) const { return panels_[static_cast<size_t>(panel)].kind; }
  const std::byte* data(int64_t panel) const { return memory_.data + panels_[static_cast<size_t>(panel)].offset; }
  bool quantised() const { return quantised_; }  // some panel is
  // Row `index` of the [out, in] matrix, widened.
  void read_row(int64_t index, float* out) const;

 private:
  struct Panel {
    PanelKind kind;
    int64_t offset;  // bytes
  };

  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
  bool quantised_ = false;
  std::vector<Panel> panels_;
  size_t bytes_ = 0;
  Arena::Piece memory_;
};

}  // namespace zipage::cpu
