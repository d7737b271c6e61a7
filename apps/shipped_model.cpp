#include "shipped_model.h"

namespace zipage::apps {

Result<std::filesystem::path> shipped_reasoner() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  const auto complete = [](const fs::path& folder) {
    std::error_code ignored;
    return fs::exists(folder / "model" / "config.json", ignored);
  };
  if (!error) {
    const fs::path installed = executable.parent_path().parent_path() / "share/zipage/models/reasoner";
    if (complete(installed)) return installed;
    for (fs::path folder = executable.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
      if (complete(folder / "models/reasoner")) return folder / "models/reasoner";
    }
  }
  return Status(StatusCode::kNotFound,
                "no model is named, and the reasoner that ships with zipage is not beside the program");
}

Status default_model(std::string& model) {
  if (!model.empty()) return {};
  ZIPAGE_ASSIGN_OR_RETURN(const std::filesystem::path reasoner, shipped_reasoner());
  model = (reasoner / "model").string();
  return {};
}

}  // namespace zipage::apps
