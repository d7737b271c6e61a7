// A GGUF file: whatever the bytes, an error, or metadata that can be read and weights that can be expanded.
#include "load/gguf.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "load/gguf_model.h"
#include "model/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto parsed = zipage::GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!parsed.ok()) return 0;
  std::vector<std::unique_ptr<zipage::GgufFile>> files;
  files.push_back(std::move(*parsed));
  const zipage::GgufFile& file = *files.front();
  for (const std::string_view key : file.keys()) {
    file.get_string(key);
    file.get_int(key);
    file.get_float(key);
    file.get_bool(key);
    file.strings(key);
    file.ints(key);
    file.floats(key);
  }
  for (const zipage::HostTensor& tensor : file.tensors()) {
    if (!zipage::is_weight_dtype(tensor.dtype)) continue;
    const int64_t count = tensor.rows() * tensor.cols();
    std::vector<float> values(static_cast<size_t>(std::min<int64_t>(count, 256)));
    const int64_t block = zipage::traits(tensor.dtype).block_elements;
    zipage::dequantize(tensor, 0, static_cast<int64_t>(values.size()) / block * block, values.data());
  }
  if (const auto config = zipage::gguf_config_json(files); config.ok()) {
    static_cast<void>(zipage::parse_model_config(*config, "fuzz"));
  }
  zipage::TensorStore store;
  static_cast<void>(zipage::add_gguf_tensors(files, store));
  return 0;
}
