// A config.json: whatever the bytes, an error or a configuration whose rotation frequencies are finite numbers.
#include "model/model_config.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = zipage::parse_model_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!config.ok()) {
    if (config.status().message().size() > 4096) std::abort();
    return 0;
  }
  if (config->num_heads % config->num_kv_heads != 0 || config->rope.rotary_dim > config->head_dim) std::abort();
  for (const int length : {1, zipage::max_context_len(*config)}) {
    const zipage::RopeFrequencies rope = zipage::rope_frequencies(*config, length);
    for (const double frequency : rope.inv_freq) {
      if (!std::isfinite(frequency)) std::abort();
    }
    if (!std::isfinite(rope.attention_scale)) std::abort();
  }
  return 0;
}
