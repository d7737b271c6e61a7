// The weights of a directory in Hugging Face's layout: model.safetensors, or shards with an index.
#pragma once

#include <optional>
#include <string>

#include "load/tensor_store.h"
#include "zipage/status.h"

namespace zipage {

// Maps every safetensors file of the directory's model and adds its tensors. model.safetensors is taken before
// model.safetensors.index.json, as Hugging Face does; without either, a complete set of numbered shards or a single
// .safetensors file. An index is binding: a tensor that it doesn't list is not there, one that it lists must be.
Status add_safetensors(const std::string& directory, TensorStore& store);

// The content of a whole file; nothing when there is none. Errors other than absence are errors.
Result<std::optional<std::string>> read_optional_file(const std::string& path);

}  // namespace zipage
