#include "load/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "load/lfs_pointer.h"
#include "load/printable.h"

namespace zipage {
namespace {

static_assert(std::endian::native == std::endian::little, "the data of both formats is little-endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

std::optional<DType> dtype_from_name(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> kNames[] = {
      {"BF16", DType::kBF16},      {"F16", DType::kF16},        {"F32", DType::kF32},
      {"F64", DType::kF64},        {"C64", DType::kC64},        {"BOOL", DType::kBool},
      {"U8", DType::kU8},          {"I8", DType::kI8},          {"U16", DType::kU16},
      {"I16", DType::kI16},        {"U32", DType::kU32},        {"I32", DType::kI32},
      {"U64", DType::kU64},        {"I64", DType::kI64},        {"F8_E4M3", DType::kF8E4M3},
      {"F8_E5M2", DType::kF8E5M2}, {"F8_E8M0", DType::kF8E8M0}, {"F6_E2M3", DType::kF6E2M3},
      {"F6_E3M2", DType::kF6E3M2}, {"F4", DType::kF4},
  };
  for (const auto& [known, dtype] : kNames) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

// Reads the header as a stream of events: a DOM would take a hostile header's word for its size many times over and
// would hide duplicate keys.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry>& entries() { return entries_; }
  const std::string& error() const { return error_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return fail("{} is negative", value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets) return unexpected("a number");
    auto& list = state_ == State::kShape ? entries_.back().shape : entries_.back().offsets;
    list->push_back(value);
    return true;
  }
  bool number_float(number_float_t, const string_t& text) override {
    return fail("{} is no integer of 64 bits", std::string_view(text).substr(0, 40));
  }
  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kTensor || field_ != "dtype") return unexpected("a string");
    entries_.back().dtype = value;
    return true;
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTensorValue:
        state_ = State::kTensor;
        return true;
      case State::kMetadataValue:
        state_ = State::kMetadata;
        return true;
      default:
        return unexpected("an object");
    }
  }
  bool key(string_t& name) override {
    if (state_ == State::kTop) {
      if (!names_.insert(name).second) return fail("the key \"{}\" appears twice", printable(name));
      if (name == "__metadata__") {
        state_ = State::kMetadataValue;
      } else {
        entries_.push_back({.name = name, .dtype = {}, .shape = {}, .offsets = {}});
        state_ = State::kTensorValue;
      }
    } else if (state_ == State::kTensor) {
      const Entry& entry = entries_.back();
      field_ = name;
      if (name != "dtype" && name != "shape" && name != "data_offsets")
        return fail("unknown field \"{}\"", printable(name));
      if ((name == "dtype" && entry.dtype) || (name == "shape" && entry.shape) ||
          (name == "data_offsets" && entry.offsets)) {
        return fail("the field \"{}\" appears twice", name);
      }
    }
    return true;
  }
  bool end_object() override {
    if (state_ == State::kTensor) {
      const Entry& entry = entries_.back();
      if (!entry.dtype || !entry.shape || !entry.offsets) {
        return fail("the field \"{}\" is missing", !entry.dtype ? "dtype" : !entry.shape ? "shape" : "data_offsets");
      }
      state_ = State::kTop;
    } else {
      state_ = state_ == State::kMetadata ? State::kTop : State::kDone;
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || (field_ != "shape" && field_ != "data_offsets")) return unexpected("a list");
    Entry& entry = entries_.back();
    (field_ == "shape" ? entry.shape : entry.offsets).emplace();
    state_ = field_ == "shape" ? State::kShape : State::kOffsets;
    return true;
  }
  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& exception) override {
    // Says "parse error at line 1, column N: ... invalid string: ill-formed UTF-8 byte".
    const std::string_view reason = exception.what();
    const size_t colon = reason.find(": ");
    error_ = fmt::format("the header is not valid JSON at byte {}: {}", 8 + position,
                         colon == std::string_view::npos ? reason : reason.substr(colon + 2));
    return false;
  }

 private:
  enum class State { kStart, kTop, kTensorValue, kTensor, kShape, kOffsets, kMetadataValue, kMetadata, kDone };

  template <typename... Args>
  bool fail(fmt::format_string<Args...> format, Args&&... args) {
    const std::string reason = fmt::format(format, std::forward<Args>(args)...);
    const bool in_tensor = state_ == State::kTensor || state_ == State::kTensorValue || state_ == State::kShape ||
                           state_ == State::kOffsets;
    error_ = in_tensor ? fmt::format("tensor \"{}\": {}", printable(entries_.back().name), reason)
                       : fmt::format("the header is wrong: {}", reason);
    return false;
  }
  bool unexpected(std::string_view what) {
    static constexpr std::string_view kExpected[] = {
        "an object", "a key",      "an object with dtype, shape and data_offsets",
        "",          "an integer", "an integer",
        "an object", "a string",   "nothing"};
    if (state_ == State::kTensor) {
      return fail("{} found where the field \"{}\" needs a {}", what, field_, field_ == "dtype" ? "string" : "list");
    }
    return fail("{} found where {} belongs", what, kExpected[static_cast<size_t>(state_)]);
  }

  State state_ = State::kStart;
  std::vector<Entry> entries_;
  std::unordered_set<std::string> names_;
  std::string field_;
  std::string error_;
};

// Bytes that shape and dtype ask for; nothing when that number doesn't fit 63 bits or no whole number of bytes.
std::optional<uint64_t> bytes_of(const std::vector<uint64_t>& shape, DType dtype) {
  uint64_t elements = 1;
  for (uint64_t dim : shape) {
    if (__builtin_mul_overflow(elements, dim, &elements)) return std::nullopt;
  }
  const DTypeTraits& type = traits(dtype);
  uint64_t bytes = 0;
  if (elements % static_cast<uint64_t>(type.block_elements) != 0 ||
      __builtin_mul_overflow(elements / static_cast<uint64_t>(type.block_elements),
                             static_cast<uint64_t>(type.block_bytes), &bytes) ||
      elements > INT64_MAX || bytes > INT64_MAX) {
    return std::nullopt;
  }
  return bytes;
}

// The tensor of an entry, checked alone; how entries lie beside each other is checked later.
Result<HostTensor> to_tensor(const Entry& entry, std::span<const std::byte> data, const std::string& origin) {
  const auto wrong = [&](const std::string& reason) {
    return Status(StatusCode::kDataLoss, fmt::format("{}: tensor \"{}\": {}", origin, printable(entry.name), reason));
  };
  const std::optional<DType> dtype = dtype_from_name(*entry.dtype);
  if (!dtype) return wrong(fmt::format("unknown dtype \"{}\"", printable(*entry.dtype)));
  const std::vector<uint64_t>& shape = *entry.shape;
  const std::string shape_text =
      fmt::format("[{}]", fmt::join(std::span(shape).first(std::min<size_t>(shape.size(), 16)), ", "));
  if (std::find(shape.begin(), shape.end(), 0U) != shape.end()) {
    return wrong(fmt::format("shape {} has a dimension of zero", shape_text));
  }
  if (entry.offsets->size() != 2) {
    return wrong(fmt::format("data_offsets has {} numbers, expected 2", entry.offsets->size()));
  }
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  if (end < begin) return wrong(fmt::format("data_offsets [{}, {}] run backwards", begin, end));
  const std::optional<uint64_t> expected = bytes_of(shape, *dtype);
  if (!expected) return wrong(fmt::format("shape {} of {} has no valid size in bytes", shape_text, *entry.dtype));
  if (*expected != end - begin) {
    return wrong(fmt::format("shape {} of {} needs {} bytes, data_offsets [{}, {}] give {}", shape_text, *entry.dtype,
                             *expected, begin, end, end - begin));
  }
  if (end > data.size()) {
    return Status(
        StatusCode::kDataLoss,
        fmt::format("{}: tensor \"{}\": its data ends at byte {} of the data, but only {} are there; the file "
                    "is truncated",
                    origin, printable(entry.name), end, data.size()));
  }
  HostTensor tensor;
  tensor.name = entry.name;
  tensor.dtype = *dtype;
  tensor.shape.assign(shape.begin(), shape.end());
  tensor.data = data.subspan(begin, end - begin);
  return tensor;
}

Status check_layout(const std::vector<HostTensor>& tensors, std::span<const std::byte> data,
                    const std::string& origin) {
  const std::byte* position = data.data();
  for (const HostTensor& tensor : tensors) {
    const ptrdiff_t distance = tensor.data.data() - position;
    if (distance != 0) {
      return {StatusCode::kDataLoss,
              fmt::format("{}: tensor \"{}\": its data begins at byte {} of the data, expected {}: {}", origin,
                          printable(tensor.name), tensor.data.data() - data.data(), position - data.data(),
                          distance < 0 ? "it overlaps another tensor's" : "there is a gap before it")};
    }
    position += tensor.data.size();
  }
  if (position != data.data() + data.size()) {
    return {StatusCode::kDataLoss, fmt::format("{}: the tensors take {} bytes of data, but the file has {}", origin,
                                               position - data.data(), data.size())};
  }
  return {};
}

}  // namespace

Result<std::vector<HostTensor>> parse_safetensors(std::span<const std::byte> bytes, const std::string& origin) {
  const auto wrong = [&](const std::string& reason) {
    return Status(StatusCode::kDataLoss, fmt::format("{}: {}", origin, reason));
  };
  if (bytes.empty()) return wrong("the file is empty (0 bytes), expected a safetensors file");
  if (is_lfs_pointer(bytes)) return Status(StatusCode::kDataLoss, lfs_pointer_message(origin, bytes));
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    return wrong(fmt::format("the file has {} bytes, expected at least the 8 of the header's length; it is truncated",
                             bytes.size()));
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  bytes = bytes.subspan(sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes) {
    return wrong(
        fmt::format("its first 8 bytes ask for a header of {} bytes, more than the {} that the format allows; "
                    "this is no safetensors file",
                    header_bytes, kMaxHeaderBytes));
  }
  if (header_bytes > bytes.size()) {
    return wrong(fmt::format("the file has {} bytes, expected at least {} with its header; it is truncated",
                             bytes.size() + sizeof(header_bytes), header_bytes + sizeof(header_bytes)));
  }
  const char* header = reinterpret_cast<const char*>(bytes.data());
  if (header_bytes == 0 || header[0] != '{') return wrong("its header does not begin with \"{\"");

  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header, header + header_bytes, &reader)) return wrong(reader.error());
  const std::span<const std::byte> data = bytes.subspan(header_bytes);
  std::vector<HostTensor> tensors;
  tensors.reserve(reader.entries().size());
  for (const Entry& entry : reader.entries()) {
    ZIPAGE_ASSIGN_OR_RETURN(HostTensor tensor, to_tensor(entry, data, origin));
    tensors.push_back(std::move(tensor));
  }
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const HostTensor& a, const HostTensor& b) { return a.data.data() < b.data.data(); });
  ZIPAGE_RETURN_IF_ERROR(check_layout(tensors, data, origin));
  return tensors;
}

}  // namespace zipage
