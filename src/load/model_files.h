// A model on disk, whatever its format: configuration, weights by name, tokenizer sources.
//
// Thread-safety: all methods may be called from any thread. Tensors are views into mapped files that this object owns.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/host_tensor.h"
#include "zipage/config.h"
#include "zipage/status.h"

namespace zipage {

class GgufFile;

class ModelFiles {
 public:
  // `path`: a directory in Hugging Face's layout, a .gguf file (any of several splits), a directory with one GGUF model
  // and no config.json, or (dummy) any of these or a config.json, whose weights need not be there.
  // Errors are one sentence that names file, tensor, expected and found.
  static Result<std::unique_ptr<ModelFiles>> open(const std::string& path, LoadFormat format);
  virtual ~ModelFiles() = default;

  // Hugging Face's config.json as text; for GGUF one made from the metadata with the same keys.
  virtual const std::string& config_json() const = 0;
  // Hugging Face's tensor names ("model.layers.0.self_attn.q_proj.weight") for every format, in Hugging Face's layout.
  // Null when missing. The dtype may be one that nobody computes with: see is_weight_dtype(). A tensor that the file
  // holds in another layout (q and k of a GGUF file of architecture llama, whose rows are interleaved; data that isn't
  // aligned) is copied at the first find(), so ask for what you need and release() it.
  virtual const HostTensor* find(std::string_view name) const = 0;
  virtual std::vector<std::string> names() const = 0;
  // Bytes of all tensors, as stored.
  virtual int64_t weight_bytes() const = 0;
  // A found tensor's bytes are not needed any more: gives their memory back. Call find() again before reading them.
  virtual void release(const HostTensor& tensor) const = 0;

  virtual bool dummy() const = 0;                    // no weights: make them up
  virtual const std::string& directory() const = 0;  // of the files
  virtual const GgufFile* gguf() const = 0;          // null for other formats
  // A side file's content ("tokenizer.json", "generation_config.json", "chat_template.jinja"), if it is there.
  // None for GGUF: such a file brings its own.
  virtual std::optional<std::string> side_file(std::string_view name) const = 0;
};

// The path to open for what a user calls a model: an existing path as it is, else "org/name" looked up in local Hugging
// Face caches (folders that hold models--org--name), first one that has it. Nothing is downloaded. kNotFound says what
// was looked for and where.
Result<std::string> resolve_model_path(const std::string& name, std::span<const std::string> hub_cache_dirs);

}  // namespace zipage
