// Weights on their way from files to the device.
//
// Thread-safety: one thread.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <vector>

#include "base/task_threads.h"
#include "tensor/host_tensor.h"

namespace zipage::cuda {

// Several threads read, convert and hand over pieces, each with pinned buffers that take turns: reading from the file,
// or the page cache, runs beside the copies, and one core's speed is no limit.
class WeightStaging {
 public:
  explicit WeightStaging(int device);
  ~WeightStaging();
  WeightStaging(const WeightStaging&) = delete;
  WeightStaging& operator=(const WeightStaging&) = delete;

  // As bf16 to device memory. The tensor is no longer needed when it returns; the copy is done after wait().
  void upload(const HostTensor& tensor, std::byte* to);
  void wait();

 private:
  struct Slot {
    void* data = nullptr;
    cudaEvent_t free = nullptr;
  };
  struct Reader {
    std::array<Slot, 2> slots;
    size_t next = 0;
    std::vector<float> expanded;
  };
  // Elements [first, first + count) of the tensor.
  void upload_piece(Reader& reader, const HostTensor& tensor, int64_t first, int64_t count, std::byte* to);

  int device_;
  cudaStream_t stream_ = nullptr;
  std::vector<Reader> readers_;  // the first is the caller's
  TaskThreads threads_;
};

}  // namespace zipage::cuda
