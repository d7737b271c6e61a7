#include "load/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "load/lfs_pointer.h"
#include "load/printable.h"

namespace zipage {
namespace {

enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kDefaultAlignment = 32, kMaxAlignment = uint64_t{1} << 20;
constexpr uint64_t kMaxNameBytes = 65535;
constexpr uint32_t kMaxDims = 4;

// Bytes of a value of fixed size; 0 for strings, arrays and unknown types.
size_t value_bytes(uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool:
      return 1;
    case kUint16:
    case kInt16:
      return 2;
    case kUint32:
    case kInt32:
    case kFloat32:
      return 4;
    case kUint64:
    case kInt64:
    case kFloat64:
      return 8;
    default:
      return 0;
  }
}

bool is_integer(uint32_t type) {
  return type <= kInt32 || type == kUint64 || type == kInt64;
}

template <typename T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

// REQUIRES: is_integer(type). Nothing for a u64 beyond int64.
std::optional<int64_t> load_integer(uint32_t type, const std::byte* data) {
  switch (type) {
    case kUint8:
      return load<uint8_t>(data);
    case kInt8:
      return load<int8_t>(data);
    case kUint16:
      return load<uint16_t>(data);
    case kInt16:
      return load<int16_t>(data);
    case kUint32:
      return load<uint32_t>(data);
    case kInt32:
      return load<int32_t>(data);
    case kInt64:
      return load<int64_t>(data);
    default: {
      const uint64_t value = load<uint64_t>(data);
      if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(value);
    }
  }
}

std::string_view load_string(const std::byte* data) {
  return {reinterpret_cast<const char*>(data) + sizeof(uint64_t), static_cast<size_t>(load<uint64_t>(data))};
}

struct TensorType {
  uint32_t id;
  std::string_view name;
  std::optional<DType> dtype;  // none: known, and not supported
};

constexpr TensorType kTensorTypes[] = {
    {0, "F32", DType::kF32},    {1, "F16", DType::kF16},   {2, "Q4_0", DType::kQ4_0},  {3, "Q4_1", DType::kQ4_1},
    {6, "Q5_0", DType::kQ5_0},  {7, "Q5_1", DType::kQ5_1}, {8, "Q8_0", DType::kQ8_0},  {9, "Q8_1", {}},
    {10, "Q2_K", {}},           {11, "Q3_K", {}},          {12, "Q4_K", DType::kQ4_K}, {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K}, {15, "Q8_K", {}},          {16, "IQ2_XXS", {}},        {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},        {19, "IQ1_S", {}},         {20, "IQ4_NL", {}},         {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},          {23, "IQ4_XS", {}},        {24, "I8", DType::kI8},     {25, "I16", DType::kI16},
    {26, "I32", DType::kI32},   {27, "I64", DType::kI64},  {28, "F64", DType::kF64},   {29, "IQ1_M", {}},
    {30, "BF16", DType::kBF16}, {34, "TQ1_0", {}},         {35, "TQ2_0", {}},          {39, "MXFP4", {}},
    {40, "NVFP4", {}},
};

}  // namespace

// Reads front to back. Every read checks the bytes that are left first, so a count or a length from the file can ask
// for nothing that isn't there.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, GgufFile& file) : bytes_(bytes), file_(file) {}

  Status run() {
    uint64_t num_tensors = 0, num_keys = 0;
    ZIPAGE_RETURN_IF_ERROR(read_header(num_tensors, num_keys));
    for (uint64_t i = 0; i < num_keys; ++i) ZIPAGE_RETURN_IF_ERROR(read_pair());
    ZIPAGE_RETURN_IF_ERROR(read_alignment());
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < num_tensors; ++i) ZIPAGE_RETURN_IF_ERROR(read_tensor(offsets));
    return place_tensors(offsets);
  }

 private:
  Status error_at(uint64_t offset, const std::string& reason, StatusCode code = StatusCode::kDataLoss) const {
    return {code, fmt::format("{}: {} (at byte {})", file_.path_, reason, offset)};
  }
  uint64_t left() const { return bytes_.size() - position_; }

  template <typename T>
  Status read(T& value, std::string_view what) {
    if (left() < sizeof(T)) {
      return error_at(position_,
                      fmt::format("{} needs {} bytes, the file has {} more; it is truncated", what, sizeof(T), left()));
    }
    value = load<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return {};
  }

  Status read_text(std::string_view& text, std::string_view what, uint64_t max_bytes) {
    const uint64_t start = position_;
    uint64_t length = 0;
    ZIPAGE_RETURN_IF_ERROR(read(length, what));
    if (length > max_bytes)
      return error_at(start, fmt::format("{} has a length of {}, at most {} is allowed", what, length, max_bytes));
    if (length > left())
      return error_at(start, fmt::format("{} has a length of {}, the file has {} more bytes", what, length, left()));
    text = {reinterpret_cast<const char*>(bytes_.data() + position_), static_cast<size_t>(length)};
    position_ += length;
    return {};
  }

  Status read_header(uint64_t& num_tensors, uint64_t& num_keys) {
    if (bytes_.empty()) return error_at(0, "the file is empty (0 bytes), expected a GGUF file");
    if (is_lfs_pointer(bytes_)) return {StatusCode::kDataLoss, lfs_pointer_message(file_.path_, bytes_)};
    if (bytes_.size() < kMagic.size() || std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) != 0) {
      return error_at(
          0,
          fmt::format("not a GGUF file: it begins with \"{}\"",
                      printable({reinterpret_cast<const char*>(bytes_.data()), std::min<size_t>(bytes_.size(), 4)})));
    }
    position_ = kMagic.size();
    uint32_t version = 0;
    ZIPAGE_RETURN_IF_ERROR(read(version, "the version"));
    if (version != 2 && version != 3) {
      const std::string reason = version != 0 && (version & 0xffffU) == 0 ? std::string("the file is big-endian")
                                                                          : fmt::format("version {}", version);
      return error_at(4, fmt::format("{}, supported are little-endian versions 2 and 3", reason),
                      StatusCode::kUnimplemented);
    }
    ZIPAGE_RETURN_IF_ERROR(read(num_tensors, "the number of tensors"));
    ZIPAGE_RETURN_IF_ERROR(read(num_keys, "the number of keys"));
    // The least that a key and a tensor's entry take; saves reading on for ever, and says what's wrong at once.
    constexpr uint64_t kMinKeyBytes = 13, kMinTensorBytes = 32;
    if (num_keys > left() / kMinKeyBytes) {
      return error_at(16, fmt::format("{} metadata keys don't fit the {} bytes that are left", num_keys, left()));
    }
    if (num_tensors > left() / kMinTensorBytes) {
      return error_at(8, fmt::format("{} tensors don't fit the {} bytes that are left", num_tensors, left()));
    }
    return {};
  }

  Status read_pair() {
    const uint64_t start = position_;
    std::string_view key;
    ZIPAGE_RETURN_IF_ERROR(read_text(key, "a metadata key", kMaxNameBytes));
    if (key.empty()) return error_at(start, "a metadata key is empty");
    if (file_.metadata_.contains(key))
      return error_at(start, fmt::format("the key \"{}\" appears twice", printable(key)));
    const std::string what = fmt::format("the value of \"{}\"", printable(key));
    GgufFile::Value value;
    ZIPAGE_RETURN_IF_ERROR(read(value.type, what));
    if (value.type == kArray) {
      value.is_array = true;
      ZIPAGE_RETURN_IF_ERROR(read(value.type, what));
      ZIPAGE_RETURN_IF_ERROR(read(value.count, what));
      if (value.type == kArray) {
        return error_at(start, fmt::format("{} is an array of arrays, which is not supported", what),
                        StatusCode::kUnimplemented);
      }
    }
    ZIPAGE_RETURN_IF_ERROR(read_elements(value, what, start));
    file_.keys_.push_back(key);
    file_.metadata_.emplace(key, value);
    return {};
  }

  // Moves past the elements of a value.
  Status read_elements(GgufFile::Value& value, const std::string& what, uint64_t start) {
    value.data = bytes_.data() + position_;
    const uint64_t least = value.type == kString ? sizeof(uint64_t) : value_bytes(value.type);
    if (least == 0) return error_at(start, fmt::format("{} has the unknown type {}", what, value.type));
    if (value.count > left() / least) {
      return error_at(start, fmt::format("{} has {} elements of at least {} bytes, the file has {} more bytes", what,
                                         value.count, least, left()));
    }
    if (value.type != kString) {
      position_ += value.count * least;
      return {};
    }
    for (uint64_t i = 0; i < value.count; ++i) {
      std::string_view ignored;
      ZIPAGE_RETURN_IF_ERROR(read_text(ignored, what, UINT64_MAX));
    }
    return {};
  }

  Status read_alignment() {
    const auto at = file_.metadata_.find("general.alignment");
    if (at == file_.metadata_.end()) return {};
    const GgufFile::Value& value = at->second;
    const uint64_t offset = static_cast<uint64_t>(value.data - bytes_.data());
    if (value.is_array || value.type != kUint32) return error_at(offset, "general.alignment is no uint32");
    alignment_ = load<uint32_t>(value.data);
    if (alignment_ == 0 || (alignment_ & (alignment_ - 1)) != 0 || alignment_ > kMaxAlignment) {
      return error_at(
          offset, fmt::format("general.alignment is {}, expected a power of two up to {}", alignment_, kMaxAlignment));
    }
    return {};
  }

  Status read_tensor(std::vector<uint64_t>& offsets) {
    const uint64_t start = position_;
    std::string_view name;
    ZIPAGE_RETURN_IF_ERROR(read_text(name, "a tensor's name", kMaxNameBytes));
    const std::string what = fmt::format("tensor \"{}\"", printable(name));
    if (name.empty()) return error_at(start, "a tensor's name is empty");
    if (!file_.tensor_index_.emplace(name, offsets.size()).second)
      return error_at(start, fmt::format("{} appears twice", what));

    HostTensor tensor;
    tensor.name = name;
    uint32_t num_dims = 0;
    ZIPAGE_RETURN_IF_ERROR(read(num_dims, what));
    if (num_dims < 1 || num_dims > kMaxDims)
      return error_at(start, fmt::format("{} has {} dimensions, expected 1 to {}", what, num_dims, kMaxDims));
    uint64_t elements = 1;
    for (uint32_t i = 0; i < num_dims; ++i) {
      uint64_t dim = 0;
      ZIPAGE_RETURN_IF_ERROR(read(dim, what));
      const uint64_t before = elements;
      if (dim == 0 || dim > static_cast<uint64_t>(INT64_MAX) || __builtin_mul_overflow(elements, dim, &elements) ||
          elements > static_cast<uint64_t>(INT64_MAX)) {
        return error_at(
            start, fmt::format("{} has a dimension of {} and {} elements before it: no valid size", what, dim, before));
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
    }
    uint32_t type = 0;
    ZIPAGE_RETURN_IF_ERROR(read(type, what));
    ZIPAGE_RETURN_IF_ERROR(read(offsets.emplace_back(), what));
    return size_tensor(std::move(tensor), type, elements, offsets.back(), start);
  }

  // Checks a tensor against the file; its data is placed when the data's beginning is known.
  Status size_tensor(HostTensor tensor, uint32_t type_id, uint64_t elements, uint64_t offset, uint64_t start) {
    const std::string what = fmt::format("tensor \"{}\"", printable(tensor.name));
    const auto* type = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                    [&](const TensorType& t) { return t.id == type_id; });
    if (type == std::end(kTensorTypes))
      return error_at(start, fmt::format("{} has the unknown type {}", what, type_id));
    if (!type->dtype)
      return error_at(start, fmt::format("{} is of type {}, which is not supported", what, type->name),
                      StatusCode::kUnimplemented);
    tensor.dtype = *type->dtype;
    const DTypeTraits& dtype = traits(tensor.dtype);
    const uint64_t block_elements = static_cast<uint64_t>(dtype.block_elements);
    if (static_cast<uint64_t>(tensor.shape.back()) % block_elements != 0) {
      return error_at(start, fmt::format("{} of type {} has rows of {} elements, expected a multiple of {}", what,
                                         type->name, tensor.shape.back(), block_elements));
    }
    if (offset % alignment_ != 0)
      return error_at(start,
                      fmt::format("{} begins at offset {}, no multiple of the alignment {}", what, offset, alignment_));
    uint64_t size = 0, end = 0;
    if (__builtin_mul_overflow(elements / block_elements, static_cast<uint64_t>(dtype.block_bytes), &size) ||
        __builtin_add_overflow(offset, size, &end) || end > bytes_.size()) {
      return error_at(start, fmt::format("{} of {} elements of type {} at offset {} ends beyond the file's {} bytes",
                                         what, elements, type->name, offset, bytes_.size()));
    }
    tensor.data = bytes_.first(size);
    file_.tensors_.push_back(std::move(tensor));
    return {};
  }

  Status place_tensors(const std::vector<uint64_t>& offsets) {
    const uint64_t data_begin = (position_ + alignment_ - 1) / alignment_ * alignment_;
    const uint64_t data_bytes = data_begin <= bytes_.size() ? bytes_.size() - data_begin : 0;
    std::vector<std::pair<uint64_t, size_t>> by_offset;
    for (size_t i = 0; i < offsets.size(); ++i) {
      HostTensor& tensor = file_.tensors_[i];
      const uint64_t size = tensor.data.size();
      if (offsets[i] + size > data_bytes) {
        return error_at(data_begin,
                        fmt::format("tensor \"{}\" takes bytes {} to {} of the data, the file has {}; it is truncated",
                                    printable(tensor.name), offsets[i], offsets[i] + size, data_bytes));
      }
      tensor.data = bytes_.subspan(data_begin + offsets[i], size);
      by_offset.emplace_back(offsets[i], i);
    }
    std::sort(by_offset.begin(), by_offset.end());
    for (size_t i = 1; i < by_offset.size(); ++i) {
      const HostTensor& before = file_.tensors_[by_offset[i - 1].second];
      if (by_offset[i - 1].first + before.data.size() > by_offset[i].first) {
        return error_at(data_begin + by_offset[i].first,
                        fmt::format("tensors \"{}\" and \"{}\" overlap", printable(before.name),
                                    printable(file_.tensors_[by_offset[i].second].name)));
      }
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  GgufFile& file_;
  uint64_t position_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
};

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::string& path) {
  ZIPAGE_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  ZIPAGE_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> parsed, parse(file->bytes(), path));
  parsed->file_ = file;
  return parsed;
}

Result<std::unique_ptr<GgufFile>> GgufFile::parse(std::span<const std::byte> bytes, const std::string& origin) {
  auto file = std::make_unique<GgufFile>();
  file->path_ = origin;
  ZIPAGE_RETURN_IF_ERROR(GgufParser(bytes, *file).run());
  return file;
}

const GgufFile::Value* GgufFile::value(std::string_view key) const {
  const auto at = metadata_.find(key);
  return at == metadata_.end() ? nullptr : &at->second;
}

std::optional<std::string_view> GgufFile::get_string(std::string_view key) const {
  const Value* found = value(key);
  if (found == nullptr || found->is_array || found->type != kString) return std::nullopt;
  return load_string(found->data);
}

std::optional<int64_t> GgufFile::get_int(std::string_view key) const {
  const Value* found = value(key);
  if (found == nullptr || found->is_array || !is_integer(found->type)) return std::nullopt;
  return load_integer(found->type, found->data);
}

std::optional<double> GgufFile::get_float(std::string_view key) const {
  const Value* found = value(key);
  if (found == nullptr || found->is_array) return std::nullopt;
  if (found->type == kFloat32) return load<float>(found->data);
  if (found->type == kFloat64) return load<double>(found->data);
  if (!is_integer(found->type)) return std::nullopt;
  const std::optional<int64_t> integer = load_integer(found->type, found->data);
  return integer ? std::optional<double>(static_cast<double>(*integer)) : std::nullopt;
}

std::optional<bool> GgufFile::get_bool(std::string_view key) const {
  const Value* found = value(key);
  if (found == nullptr || found->is_array || found->type != kBool) return std::nullopt;
  return load<uint8_t>(found->data) != 0;
}

std::optional<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  const Value* found = value(key);
  if (found == nullptr || !found->is_array || found->type != kString) return std::nullopt;
  std::vector<std::string_view> list;
  list.reserve(found->count);
  const std::byte* data = found->data;
  for (uint64_t i = 0; i < found->count; ++i) {
    list.push_back(load_string(data));
    data += sizeof(uint64_t) + list.back().size();
  }
  return list;
}

std::optional<std::vector<int64_t>> GgufFile::ints(std::string_view key) const {
  const Value* found = value(key);
  if (found == nullptr || !found->is_array || !is_integer(found->type)) return std::nullopt;
  std::vector<int64_t> list;
  list.reserve(found->count);
  for (uint64_t i = 0; i < found->count; ++i) {
    const std::optional<int64_t> integer = load_integer(found->type, found->data + i * value_bytes(found->type));
    if (!integer) return std::nullopt;
    list.push_back(*integer);
  }
  return list;
}

std::optional<std::vector<float>> GgufFile::floats(std::string_view key) const {
  const Value* found = value(key);
  if (found == nullptr || !found->is_array || (found->type != kFloat32 && found->type != kFloat64)) return std::nullopt;
  std::vector<float> list;
  list.reserve(found->count);
  for (uint64_t i = 0; i < found->count; ++i) {
    list.push_back(found->type == kFloat32 ? load<float>(found->data + i * sizeof(float))
                                           : static_cast<float>(load<double>(found->data + i * sizeof(double))));
  }
  return list;
}

const HostTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto at = tensor_index_.find(name);
  return at == tensor_index_.end() ? nullptr : &tensors_[at->second];
}

}  // namespace zipage
