// A model on disk, whatever its format: configuration, weights by name, tokenizer sources.
//
// Thread-safety: immutable after open(); tensors are views into mapped files that this object owns.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensor/host_tensor.h"
#include "zipage/config.h"
#include "zipage/status.h"

namespace zipage {

class GgufFile;

class ModelFiles {
 public:
  // `path`: a directory in Hugging Face's layout, a .gguf file, or (dummy) a directory or config.json without weights.
  // Errors are one sentence that names file, tensor, expected and found.
  static Result<std::unique_ptr<ModelFiles>> open(const std::string& path, LoadFormat format);
  virtual ~ModelFiles() = default;

  // Hugging Face's config.json as text; for GGUF one made from the metadata with the same keys.
  virtual const std::string& config_json() const = 0;
  // Hugging Face's tensor names ("model.layers.0.self_attn.q_proj.weight") for every format. Null when missing.
  virtual const HostTensor* find(std::string_view name) const = 0;
  virtual std::vector<std::string> names() const = 0;
  // The bytes of a tensor are not needed any more: gives their pages back (the mapping stays valid).
  virtual void release(const HostTensor& tensor) const = 0;

  virtual bool dummy() const = 0;                            // no weights: make them up
  virtual const std::string& directory() const = 0;          // of the files
  virtual const GgufFile* gguf() const = 0;                  // null for other formats
  // A side file's content ("tokenizer.json", "generation_config.json", "chat_template.jinja"), if it is there.
  virtual std::optional<std::string> side_file(std::string_view name) const = 0;
};

}  // namespace zipage
