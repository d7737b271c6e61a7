// A safetensors file: whatever the bytes, an error or tensors that lie inside them.
#include "load/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const auto tensors = zipage::parse_safetensors(bytes, "fuzz");
  if (!tensors.ok()) {
    if (tensors.status().message().size() > 4096) std::abort();
    return 0;
  }
  for (const zipage::HostTensor& tensor : *tensors) {
    const zipage::DTypeTraits& type = zipage::traits(tensor.dtype);
    const auto elements = static_cast<uint64_t>(tensor.rows() * tensor.cols());
    if (tensor.data.data() < bytes.data() || tensor.data.data() + tensor.data.size() > bytes.data() + size)
      std::abort();
    if (elements / type.block_elements * type.block_bytes != tensor.data.size()) std::abort();
  }
  return 0;
}
