// The reasoner that ships with the project: what commands use when no model is named.
#pragma once

#include <filesystem>
#include <string>

#include "zipage/status.h"

namespace zipage::apps {

// The folder with model/ and questions/: models/reasoner in a folder above the executable (a build in the source
// tree), or ../share/zipage/models/reasoner beside it (an installation).
Result<std::filesystem::path> shipped_reasoner();

// `model` becomes the reasoner's when it is empty.
Status default_model(std::string& model);

}  // namespace zipage::apps
