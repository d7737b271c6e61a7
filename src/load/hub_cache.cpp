#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "load/hf_directory.h"
#include "load/model_files.h"

namespace zipage {
namespace {

namespace fs = std::filesystem;

// "org/name" or "name" as Hugging Face allows it: letters, digits, "-", "_", ".", at most one slash.
bool is_repository_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '/';
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), allowed) &&
         std::count(name.begin(), name.end(), '/') <= 1 && name.front() != '/' && name.back() != '/' &&
         name.front() != '.';
}

// The snapshot that refs/main names, else the only one.
std::optional<std::string> snapshot_of(const fs::path& repository) {
  std::error_code ignored;
  const auto ref = read_optional_file((repository / "refs" / "main").string());
  if (ref.ok() && ref->has_value()) {
    std::string revision = **ref;
    while (!revision.empty() && (revision.back() == '\n' || revision.back() == ' ')) revision.pop_back();
    const fs::path snapshot = repository / "snapshots" / revision;
    if (!revision.empty() && revision.find('/') == std::string::npos && revision.front() != '.' &&
        fs::is_directory(snapshot, ignored)) {
      return snapshot.string();
    }
  }
  std::vector<std::string> snapshots;
  for (const fs::directory_entry& entry : fs::directory_iterator(repository / "snapshots", ignored)) {
    if (entry.is_directory(ignored)) snapshots.push_back(entry.path().string());
  }
  if (snapshots.size() == 1) return snapshots.front();
  return std::nullopt;
}

}  // namespace

Result<std::string> resolve_model_path(const std::string& name, std::span<const std::string> hub_cache_dirs) {
  std::error_code ignored;
  if (fs::exists(name, ignored)) return name;
  if (!is_repository_name(name)) {
    return Status(StatusCode::kNotFound, fmt::format("model \"{}\": no such file or directory", name));
  }
  std::string folder = "models--" + name;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  for (const std::string& directory : hub_cache_dirs) {
    if (auto snapshot = snapshot_of(fs::path(directory) / folder)) return *snapshot;
  }
  const std::string places = hub_cache_dirs.empty()
                                 ? "no Hugging Face cache to look in"
                                 : fmt::format("no snapshot of it ({}) in {}", folder, fmt::join(hub_cache_dirs, ", "));
  return Status(StatusCode::kNotFound, fmt::format("model \"{}\": no such file or directory, and {}", name, places));
}

}  // namespace zipage
