#include "load/tensor_store.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace zipage {
namespace {

// Block formats begin with fp16 scales at even offsets, so two bytes are enough for them.
size_t scalar_alignment(DType dtype) {
  const DTypeTraits& type = traits(dtype);
  if (type.block_elements == 1) return dtype == DType::kC64 ? 4 : static_cast<size_t>(type.block_bytes);
  return is_weight_dtype(dtype) ? 2 : 1;
}

bool needs_copy(const StoredTensor& stored) {
  return stored.interleaved_head_dim != 0 ||
         reinterpret_cast<uintptr_t>(stored.tensor.data.data()) % scalar_alignment(stored.tensor.dtype) != 0;
}

std::unique_ptr<std::byte[]> copy_rows(const StoredTensor& stored) {
  const std::span<const std::byte> data = stored.tensor.data;
  std::unique_ptr<std::byte[]> copy(new std::byte[data.size()]);
  const int64_t head_dim = stored.interleaved_head_dim;
  if (head_dim == 0) {
    std::memcpy(copy.get(), data.data(), data.size());
    return copy;
  }
  const int64_t rows = stored.tensor.rows();
  const size_t row_bytes = data.size() / static_cast<size_t>(rows);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row / head_dim, within = row % head_dim, half = head_dim / 2;
    const int64_t source = head * head_dim + (within < half ? 2 * within : 2 * (within - half) + 1);
    std::memcpy(copy.get() + static_cast<size_t>(row) * row_bytes,
                data.data() + static_cast<size_t>(source) * row_bytes, row_bytes);
  }
  return copy;
}

}  // namespace

bool TensorStore::add(StoredTensor stored) {
  const auto [at, inserted] = entries_.try_emplace(stored.tensor.name);
  if (!inserted) return false;
  order_.push_back(stored.tensor.name);
  bytes_ += static_cast<int64_t>(stored.tensor.data.size());
  at->second.view = stored.tensor;
  at->second.stored = std::move(stored);
  return true;
}

std::vector<std::string> TensorStore::names() const {
  return order_;
}

const HostTensor* TensorStore::find(std::string_view name) const {
  const auto at = entries_.find(std::string(name));
  if (at == entries_.end()) return nullptr;
  Entry& entry = at->second;
  if (needs_copy(entry.stored)) {
    const std::lock_guard lock(mutex_);
    if (entry.copy == nullptr) {
      entry.copy = copy_rows(entry.stored);
      entry.view.data = {entry.copy.get(), entry.stored.tensor.data.size()};
      entry.stored.file->release(entry.stored.tensor.data);
    }
  }
  return &entry.view;
}

void TensorStore::release(const HostTensor& tensor) const {
  const auto at = entries_.find(tensor.name);
  ZIPAGE_CHECK(at != entries_.end() && &at->second.view == &tensor, "tensor \"{}\" is not from this model",
               tensor.name);
  Entry& entry = at->second;
  const std::lock_guard lock(mutex_);
  if (entry.copy != nullptr) {
    entry.view.data = entry.stored.tensor.data;
    entry.copy.reset();
  } else {
    entry.stored.file->release(entry.stored.tensor.data);
  }
}

}  // namespace zipage
