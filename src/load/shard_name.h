// Names of numbered shards: "model-00002-of-00005.safetensors", "model-00001-of-00003.gguf".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zipage/status.h"

namespace zipage {

struct ShardName {
  std::string stem;  // "model"
  int number = 0;    // 1 .. count
  int count = 0;
  std::string extension;  // ".gguf"

  std::string file(int of_number) const;  // the name of another shard of the set
};

// Nothing when the name is not of that form.
std::optional<ShardName> parse_shard_name(std::string_view file);

// All names of the set that a shard belongs to, in order. kNotFound lists those that are not in the directory.
Result<std::vector<std::string>> complete_shards(const std::string& directory, const ShardName& shard);

}  // namespace zipage
