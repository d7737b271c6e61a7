// A GGUF file (versions 2 and 3): typed metadata and tensor views.
//
// Thread-safety: immutable after open(). Strings and tensors are views into the file's bytes and live as long as the
// object. Nothing is sized by a number from the file that the file's own length doesn't bear out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "load/mapped_file.h"
#include "tensor/host_tensor.h"
#include "zipage/status.h"

namespace zipage {

class GgufFile {
 public:
  // kDataLoss or kUnimplemented with one sentence that names file, key or tensor, and the byte offset.
  static Result<std::unique_ptr<GgufFile>> open(const std::string& path);
  // The same over bytes that outlive the object; `origin` names them in errors.
  static Result<std::unique_ptr<GgufFile>> parse(std::span<const std::byte> bytes, const std::string& origin);

  const std::string& path() const { return path_; }
  // Keys in the file's order.
  const std::vector<std::string_view>& keys() const { return keys_; }
  bool contains(std::string_view key) const { return metadata_.contains(key); }

  // The value, or nothing when the key is missing or of another kind. Integers of any width count as one kind (a u64
  // beyond int64 is nothing); get_float also takes integers.
  std::optional<std::string_view> get_string(std::string_view key) const;
  std::optional<int64_t> get_int(std::string_view key) const;
  std::optional<double> get_float(std::string_view key) const;
  std::optional<bool> get_bool(std::string_view key) const;
  std::optional<std::vector<std::string_view>> strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> ints(std::string_view key) const;
  std::optional<std::vector<float>> floats(std::string_view key) const;

  // ggml's names ("blk.0.attn_q.weight") in the file's order; shapes are row-major (ggml's reversed).
  const std::vector<HostTensor>& tensors() const { return tensors_; }
  const HostTensor* find_tensor(std::string_view name) const;
  const std::shared_ptr<const MappedFile>& file() const { return file_; }  // null after parse()

 private:
  friend class GgufParser;
  struct Value {
    uint32_t type = 0;  // GGUF value type; of the elements when is_array
    bool is_array = false;
    uint64_t count = 1;  // elements
    const std::byte* data = nullptr;
  };
  const Value* value(std::string_view key) const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  std::vector<std::string_view> keys_;
  std::unordered_map<std::string_view, Value> metadata_;
  std::vector<HostTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace zipage
