#include "ops/cpu/pack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "tensor/f16.h"
#include "tensor/nibble_groups.h"

namespace zipage::cpu {
namespace {

// Round to nearest, ties to even; REQUIRES |value| <= 65504.
uint16_t f32_to_f16(float value) {
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 16 & 0x8000U;
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-14F) {
    // Subnormal halves are multiples of 2^-24; adding 0.5 leaves the sum's last bits at that place.
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(magnitude + 0.5F) - std::bit_cast<uint32_t>(0.5F)));
  }
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude) - (112U << 23);
  return static_cast<uint16_t>(sign | ((bits + 0xfffU + (bits >> 13 & 1U)) >> 13));
}

bool is_quantised(DType dtype) {
  return traits(dtype).block_elements > 1;
}

struct GroupPlace {
  std::byte* values;
  uint16_t* scale;
  uint16_t* minimum;
};

GroupPlace group_place(std::byte* panel, PanelKind kind, int64_t group, int column) {
  const int64_t bytes = kind == PanelKind::kNibbles ? kNibbleGroupBytes : kByteGroupBytes;
  std::byte* start = panel + group * bytes;
  auto* scales = reinterpret_cast<uint16_t*>(start + bytes - kGroupScaleBytes);
  return {start, scales + column, scales + kPanelColumns + column};
}

void pack_bf16(const HostTensor& tensor, int64_t row, int column, std::byte* panel) {
  const int64_t n = tensor.cols();
  Bf16* target = reinterpret_cast<Bf16*>(panel) + 2 * column;
  const auto place = [target](int64_t k) -> Bf16& { return target[k / 2 * 2 * kPanelColumns + k % 2]; };
  if (tensor.dtype == DType::kBF16) {
    const std::byte* source = tensor.data.data() + row * n * static_cast<int64_t>(sizeof(Bf16));
    for (int64_t k = 0; k < n; ++k)
      std::memcpy(&place(k), source + k * static_cast<int64_t>(sizeof(Bf16)), sizeof(Bf16));
    return;
  }
  std::vector<float> wide(static_cast<size_t>(n));
  dequantize(tensor, row * n, n, wide.data());
  for (int64_t k = 0; k < n; ++k) place(k) = Bf16(wide[static_cast<size_t>(k)]);
}

struct NibbleRow {
  NibbleRow(const HostTensor& tensor, int64_t row)
      : q(static_cast<size_t>(tensor.cols())), scales(q.size() / kQuantGroup), minima(scales.size()) {
    read_nibble_groups(tensor, row * tensor.cols(), tensor.cols(), q.data(), scales.data(), minima.data());
  }
  std::vector<uint8_t> q;
  std::vector<float> scales, minima;
};

void pack_nibbles(const HostTensor& tensor, int64_t row, int column, std::byte* panel) {
  const NibbleRow source(tensor, row);
  for (size_t group = 0; group < source.scales.size(); ++group) {
    const GroupPlace place = group_place(panel, PanelKind::kNibbles, static_cast<int64_t>(group), column);
    auto* words = reinterpret_cast<uint32_t*>(place.values) + column;
    for (size_t k = 0; k < kQuantGroup; ++k) {
      words[k / 8 * kPanelColumns] |= static_cast<uint32_t>(source.q[group * kQuantGroup + k]) << (4 * (k % 8));
    }
    *place.scale = f32_to_f16(source.scales[group]);
    *place.minimum = f32_to_f16(source.minima[group]);
  }
}

void pack_bytes(const HostTensor& tensor, int64_t row, int column, std::byte* panel) {
  const int64_t n = tensor.cols();
  const auto write = [&](int64_t group, const auto& value_of, float scale, float minimum) {
    const GroupPlace place = group_place(panel, PanelKind::kBytes, group, column);
    auto* values = reinterpret_cast<int8_t*>(place.values) + column;
    for (int k = 0; k < kQuantGroup; ++k) values[k * kPanelColumns] = static_cast<int8_t>(value_of(k));
    *place.scale = f32_to_f16(scale);
    *place.minimum = f32_to_f16(minimum);
  };
  if (has_nibble_groups(tensor.dtype)) {
    const NibbleRow source(tensor, row);
    for (size_t group = 0; group < source.scales.size(); ++group) {
      const uint8_t* q = source.q.data() + group * kQuantGroup;
      write(
          static_cast<int64_t>(group), [q](int k) { return q[k]; }, source.scales[group], source.minima[group]);
    }
    return;
  }
  if (tensor.dtype == DType::kQ8_0) {
    // Its blocks, [scale f16][32 signed bytes], are our groups.
    const int64_t block_bytes = traits(tensor.dtype).block_bytes;
    const std::byte* block = tensor.data.data() + row * n / kQuantGroup * block_bytes;
    for (int64_t group = 0; group < n / kQuantGroup; ++group, block += block_bytes) {
      uint16_t scale;
      std::memcpy(&scale, block, sizeof(scale));
      const auto* q = reinterpret_cast<const int8_t*>(block + sizeof(scale));
      write(
          group, [q](int k) { return q[k]; }, f16_to_f32(scale), 0.0F);
    }
    return;
  }
  std::vector<float> wide(static_cast<size_t>(n));
  dequantize(tensor, row * n, n, wide.data());
  for (int64_t group = 0; group < n / kQuantGroup; ++group) {
    const float* x = wide.data() + group * kQuantGroup;
    float largest = 0;
    for (int k = 0; k < kQuantGroup; ++k) largest = std::max(largest, std::fabs(x[k]));
    const float scale = f16_to_f32(f32_to_f16(largest / 127.0F));
    const float factor = scale == 0.0F ? 0.0F : 1.0F / scale;
    write(
        group, [&](int k) { return std::clamp(std::nearbyint(x[k] * factor), -127.0F, 127.0F); }, scale, 0.0F);
  }
}

}  // namespace

PanelKind panel_kind(const HostTensor& tensor) {
  if (tensor.cols() % kQuantGroup != 0 || !is_quantised(tensor.dtype)) return PanelKind::kBf16;
  return has_nibble_groups(tensor.dtype) ? PanelKind::kNibbles : PanelKind::kBytes;
}

PanelKind common_kind(PanelKind a, PanelKind b) {
  if (a == b) return a;
  return a == PanelKind::kBf16 || b == PanelKind::kBf16 ? PanelKind::kBf16 : PanelKind::kBytes;
}

int64_t panel_bytes(PanelKind kind, int64_t in_features) {
  switch (kind) {
    case PanelKind::kNibbles:
      return in_features / kQuantGroup * kNibbleGroupBytes;
    case PanelKind::kBytes:
      return in_features / kQuantGroup * kByteGroupBytes;
    case PanelKind::kBf16:
      break;
  }
  return (in_features + 1) / 2 * 2 * kPanelColumns * static_cast<int64_t>(sizeof(Bf16));
}

void pack_row(const HostTensor& tensor, int64_t row, PanelKind kind, int column, std::byte* panel) {
  switch (kind) {
    case PanelKind::kBf16:
      return pack_bf16(tensor, row, column, panel);
    case PanelKind::kNibbles:
      return pack_nibbles(tensor, row, column, panel);
    case PanelKind::kBytes:
      return pack_bytes(tensor, row, column, panel);
  }
}

void unpack_row(const std::byte* panel, PanelKind kind, int column, int64_t in_features, float* out) {
  if (kind == PanelKind::kBf16) {
    const Bf16* source = reinterpret_cast<const Bf16*>(panel) + 2 * column;
    for (int64_t k = 0; k < in_features; ++k) out[k] = static_cast<float>(source[k / 2 * 2 * kPanelColumns + k % 2]);
    return;
  }
  for (int64_t group = 0; group < in_features / kQuantGroup; ++group, out += kQuantGroup) {
    const GroupPlace place = group_place(const_cast<std::byte*>(panel), kind, group, column);
    const float scale = f16_to_f32(*place.scale);
    const float minimum = f16_to_f32(*place.minimum);
    const auto* words = reinterpret_cast<const uint32_t*>(place.values) + column;
    const auto* bytes = reinterpret_cast<const int8_t*>(place.values) + column;
    for (int k = 0; k < kQuantGroup; ++k) {
      const int q = kind == PanelKind::kNibbles ? static_cast<int>(words[k / 8 * kPanelColumns] >> (4 * (k % 8)) & 15U)
                                                : bytes[k * kPanelColumns];
      out[k] = static_cast<float>(q) * scale + minimum;
    }
  }
}

}  // namespace zipage::cpu
