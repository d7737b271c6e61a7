#include "load/model_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "load/hf_directory.h"
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
  const GgufFile* gguf() const override { return nullptr; }

  std::optional<std::string> side_file(std::string_view name) const override {
    if (name.empty() || name.find('/') != std::string_view::npos) return std::nullopt;
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

 private:
  std::string config_json_;
  std::string directory_;
  bool dummy_ = false;
  TensorStore store_;
};

}  // namespace

Result<std::unique_ptr<ModelFiles>> ModelFiles::open(const std::string& path, LoadFormat format) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return Status(StatusCode::kNotFound, fmt::format("{}: no such file or directory", path));
  const bool dummy = format == LoadFormat::kDummy;
  auto model = std::make_unique<OpenedModel>();
  if (fs::is_directory(status)) {
    ZIPAGE_RETURN_IF_ERROR(model->open_directory(path, (fs::path(path) / "config.json").string(), dummy));
  } else if (fs::path(path).extension() == ".json") {
    const std::string directory = fs::path(path).parent_path().string();
    ZIPAGE_RETURN_IF_ERROR(model->open_directory(directory.empty() ? "." : directory, path, dummy));
  } else {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: neither a directory nor a .gguf file nor a config.json", path));
  }
  return std::unique_ptr<ModelFiles>(std::move(model));
}

}  // namespace zipage
