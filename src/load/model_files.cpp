#include "load/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "load/gguf_model.h"
#include "load/hf_directory.h"
#include "load/shard_name.h"
#include "load/tensor_store.h"

namespace zipage {
namespace {

namespace fs = std::filesystem;

class OpenedModel final : public ModelFiles {
 public:
  const std::string& config_json() const override { return config_json_; }
  const HostTensor* find(std::string_view name) const override { return store_.find(name); }
  std::vector<std::string> names() const override { return store_.names(); }
  int64_t weight_bytes() const override { return store_.bytes(); }
  void release(const HostTensor& tensor) const override { store_.release(tensor); }
  bool dummy() const override { return dummy_; }
  const std::string& directory() const override { return directory_; }
  const GgufFile* gguf() const override { return gguf_.empty() ? nullptr : gguf_.front().get(); }

  std::optional<std::string> side_file(std::string_view name) const override {
    if (!gguf_.empty() || name.empty() || name.find('/') != std::string_view::npos) return std::nullopt;
    const auto content = read_optional_file((fs::path(directory_) / name).string());
    return content.ok() ? *content : std::nullopt;
  }

  // A directory in Hugging Face's layout; `config` is the file's path.
  Status open_directory(const std::string& directory, const std::string& config, bool dummy) {
    directory_ = directory;
    dummy_ = dummy;
    ZIPAGE_ASSIGN_OR_RETURN(std::optional<std::string> content, read_optional_file(config));
    if (!content)
      return {StatusCode::kNotFound, fmt::format("{}: no such file; a model's directory needs one", config)};
    config_json_ = std::move(*content);
    return dummy ? Status() : add_safetensors(directory, store_);
  }

  Status open_gguf(const std::string& path, bool dummy) {
    const std::string parent = fs::path(path).parent_path().string();
    directory_ = parent.empty() ? "." : parent;
    dummy_ = dummy;
    ZIPAGE_ASSIGN_OR_RETURN(gguf_, open_gguf_splits(path));
    ZIPAGE_ASSIGN_OR_RETURN(config_json_, gguf_config_json(gguf_));
    return dummy ? Status() : add_gguf_tensors(gguf_, store_);
  }

 private:
  std::string config_json_;
  std::string directory_;
  bool dummy_ = false;
  std::vector<std::unique_ptr<GgufFile>> gguf_;  // the model's splits; empty for other formats
  TensorStore store_;
};

// The GGUF file of a directory without config.json: the only one, or the first split of the only model.
Result<std::string> gguf_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    const std::optional<ShardName> shard = parse_shard_name(name);
    if (entry.path().extension() == ".gguf" && (!shard || shard->number == 1)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  if (names.size() == 1) return (fs::path(directory) / names.front()).string();
  if (names.empty()) {
    return Status(StatusCode::kNotFound, fmt::format("{}: holds neither a config.json nor a .gguf file", directory));
  }
  return Status(StatusCode::kInvalidArgument, fmt::format("{}: holds {} GGUF models, name one of them: {}", directory,
                                                          names.size(), fmt::join(names, ", ")));
}

}  // namespace

Result<std::unique_ptr<ModelFiles>> ModelFiles::open(const std::string& path, LoadFormat format) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return Status(StatusCode::kNotFound, fmt::format("{}: no such file or directory", path));
  const bool dummy = format == LoadFormat::kDummy;
  const std::string extension = fs::path(path).extension().string();
  auto model = std::make_unique<OpenedModel>();
  if (fs::is_directory(status)) {
    const std::string config = (fs::path(path) / "config.json").string();
    if (format == LoadFormat::kGguf || (format != LoadFormat::kSafetensors && !fs::exists(config, error))) {
      ZIPAGE_ASSIGN_OR_RETURN(const std::string file, gguf_in(path));
      ZIPAGE_RETURN_IF_ERROR(model->open_gguf(file, dummy));
    } else {
      ZIPAGE_RETURN_IF_ERROR(model->open_directory(path, config, dummy));
    }
  } else if (extension == ".json" && format != LoadFormat::kGguf) {
    const std::string directory = fs::path(path).parent_path().string();
    ZIPAGE_RETURN_IF_ERROR(model->open_directory(directory.empty() ? "." : directory, path, dummy));
  } else if ((extension == ".gguf" && format != LoadFormat::kSafetensors) || format == LoadFormat::kGguf) {
    ZIPAGE_RETURN_IF_ERROR(model->open_gguf(path, dummy));
  } else {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: a model is a directory with config.json{}", path,
                              format == LoadFormat::kSafetensors ? " and safetensors files (load format safetensors)"
                                                                 : ", a .gguf file or a config.json"));
  }
  return std::unique_ptr<ModelFiles>(std::move(model));
}

}  // namespace zipage
