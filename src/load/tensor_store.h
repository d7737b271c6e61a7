// Tensors by name over mapped files. Those that a file holds in another layout than their users expect are copied at
// the first find().
//
// Thread-safety: find(), release() and names() may be called from any thread once all tensors are added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "load/mapped_file.h"
#include "tensor/host_tensor.h"

namespace zipage {

struct StoredTensor {
  HostTensor tensor;  // named as users ask for it; data as the file holds it, maybe unaligned
  std::shared_ptr<const MappedFile> file;
  // Not 0: rows of each head of this many are interleaved (row 2i and 2i+1 of a head are rows i and i + head_dim/2 of
  // the layout that users expect).
  int64_t interleaved_head_dim = 0;
};

class TensorStore {
 public:
  // Returns false, and adds nothing, when the name is there already.
  bool add(StoredTensor stored);
  size_t size() const { return entries_.size(); }
  std::vector<std::string> names() const;
  int64_t bytes() const { return bytes_; }

  const HostTensor* find(std::string_view name) const;
  void release(const HostTensor& tensor) const;

 private:
  struct Entry {
    StoredTensor stored;
    HostTensor view;                    // what find() returns
    std::unique_ptr<std::byte[]> copy;  // the view's bytes when not the file's
  };

  std::vector<std::string> order_;
  mutable std::unordered_map<std::string, Entry> entries_;  // entries are stable; views change under the mutex
  mutable std::mutex mutex_;
  int64_t bytes_ = 0;
};

}  // namespace zipage
