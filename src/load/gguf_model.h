// A GGUF model in Hugging Face's terms: its configuration, tensor names and layout.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "load/gguf.h"
#include "load/tensor_store.h"
#include "zipage/status.h"

namespace zipage {

// `files` are the model's splits in order (one for most models); metadata comes from the first.
using GgufSplits = std::span<const std::unique_ptr<GgufFile>>;

// Opens a file and, when its metadata says that it is one of several splits, the others beside it.
Result<std::vector<std::unique_ptr<GgufFile>>> open_gguf_splits(const std::string& path);

// A config.json with Hugging Face's keys. kUnimplemented for an architecture other than llama, qwen2 and qwen3, and for
// what has no Hugging Face key.
Result<std::string> gguf_config_json(GgufSplits files);

// Adds all tensors under Hugging Face's names. A tensor without such a name is refused: the model would need it.
Status add_gguf_tensors(GgufSplits files, TensorStore& store);

}  // namespace zipage
