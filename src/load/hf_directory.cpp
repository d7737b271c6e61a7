#include "load/hf_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "load/lfs_pointer.h"
#include "load/safetensors.h"
#include "load/shard_name.h"

namespace zipage {
namespace {

namespace fs = std::filesystem;

std::string path_in(const std::string& directory, std::string_view file) {
  return (fs::path(directory) / file).string();
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// "a, b, c and 7 more": names in an error, not thousands of them.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  const std::span<const std::string> shown = std::span(names).first(std::min(names.size(), kShown));
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

struct Shard {
  std::shared_ptr<const MappedFile> file;
  std::vector<HostTensor> tensors;
};

Result<Shard> open_shard(const std::string& path) {
  Shard shard;
  ZIPAGE_ASSIGN_OR_RETURN(shard.file, MappedFile::open(path));
  ZIPAGE_ASSIGN_OR_RETURN(shard.tensors, parse_safetensors(shard.file->bytes(), path));
  return shard;
}

// Adds all tensors of files that have no index.
Status add_files(const std::string& directory, const std::vector<std::string>& names, TensorStore& store) {
  for (const std::string& name : names) {
    ZIPAGE_ASSIGN_OR_RETURN(Shard shard, open_shard(path_in(directory, name)));
    for (HostTensor& tensor : shard.tensors) {
      const std::string tensor_name = tensor.name;
      if (!store.add({.tensor = std::move(tensor), .file = shard.file})) {
        return {StatusCode::kDataLoss,
                fmt::format("{}: tensor \"{}\" is in another shard too", shard.file->path(), tensor_name)};
      }
    }
  }
  return {};
}

// Tensor name → shard name, in the index's order of names.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  const auto wrong = [&](const std::string& reason) {
    return Status(StatusCode::kDataLoss, fmt::format("{}: {}", path, reason));
  };
  ZIPAGE_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  if (is_lfs_pointer(file->bytes())) return Status(StatusCode::kDataLoss, lfs_pointer_message(path, file->bytes()));
  const char* begin = reinterpret_cast<const char*>(file->bytes().data());
  const nlohmann::json index = nlohmann::json::parse(begin, begin + file->bytes().size(), nullptr, false);
  if (index.is_discarded()) return wrong("not valid JSON");
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return wrong("has no object \"weight_map\"");
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string()) return wrong(fmt::format("weight_map of \"{}\" is no file name", tensor));
    const std::string& name = shard.get_ref<const std::string&>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
      return wrong(fmt::format("weight_map of \"{}\" is \"{}\", expected the name of a file in the same directory",
                               tensor, name));
    }
    shards.emplace(tensor, name);
  }
  return shards;
}

Status add_indexed(const std::string& directory, const std::string& index_path, TensorStore& store) {
  ZIPAGE_ASSIGN_OR_RETURN(const auto shard_of, read_index(index_path));
  std::set<std::string> names;
  for (const auto& [tensor, shard] : shard_of) names.insert(shard);

  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (!is_file(path_in(directory, name))) missing.push_back(name);
  }
  if (!missing.empty()) {
    return {StatusCode::kNotFound,
            fmt::format("{}: {} of the {} shards that {} lists are missing: {}", directory, missing.size(),
                        names.size(), fs::path(index_path).filename().string(), listed(missing))};
  }
  std::unordered_map<std::string, std::pair<HostTensor, std::shared_ptr<const MappedFile>>> found;
  for (const std::string& name : names) {
    ZIPAGE_ASSIGN_OR_RETURN(Shard shard, open_shard(path_in(directory, name)));
    for (HostTensor& tensor : shard.tensors) {
      const auto at = shard_of.find(tensor.name);
      if (at != shard_of.end() && at->second == name)
        found.emplace(at->first, std::pair(std::move(tensor), shard.file));
    }
  }
  for (const auto& [tensor, shard] : shard_of) {
    const auto at = found.find(tensor);
    if (at == found.end()) {
      missing.push_back(fmt::format("{} ({})", tensor, shard));
      continue;
    }
    store.add({.tensor = std::move(at->second.first), .file = std::move(at->second.second)});
  }
  if (!missing.empty()) {
    return {StatusCode::kDataLoss, fmt::format("{}: {} tensors are not in the shards that the index names: {}",
                                               index_path, missing.size(), listed(missing))};
  }
  return {};
}

// Files to load when there is neither model.safetensors nor an index.
Result<std::vector<std::string>> files_without_index(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  if (names.empty()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: holds no weights (model.safetensors, model.safetensors.index.json or another "
                              ".safetensors file); weights of other formats are not read",
                              directory));
  }
  if (names.size() == 1 && !parse_shard_name(names.front())) return names;
  const std::optional<ShardName> first = parse_shard_name(names.front());
  if (!first) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{}: holds {} safetensors files and no index, so it's unclear which make up the model: {}",
                    directory, names.size(), listed(names)));
  }
  return complete_shards(directory, *first);
}

}  // namespace

Status add_safetensors(const std::string& directory, TensorStore& store) {
  if (is_file(path_in(directory, "model.safetensors"))) return add_files(directory, {"model.safetensors"}, store);
  const std::string index = path_in(directory, "model.safetensors.index.json");
  if (is_file(index)) return add_indexed(directory, index, store);
  ZIPAGE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_without_index(directory));
  return add_files(directory, names, store);
}

Result<std::optional<std::string>> read_optional_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::optional<std::string>();
  ZIPAGE_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  if (is_lfs_pointer(file->bytes())) return Status(StatusCode::kDataLoss, lfs_pointer_message(path, file->bytes()));
  return std::optional(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()));
}

}  // namespace zipage
