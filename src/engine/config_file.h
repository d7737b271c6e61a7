// A configuration file: YAML, one key per flag, so that a long command line can be kept.
//
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "zipage/status.h"

namespace zipage {

struct Setting {
  std::string key;    // as written
  std::string value;  // as set_knob takes it: lists with commas, "true" and "false"
  int line = 0;       // 1-based
};

// The file's settings in its order. Keys whose value is null or ~ are left out. Errors name file and line: not YAML,
// not a map of plain values and lists, a key that comes twice. Whether a key exists is for the caller to say.
Result<std::vector<Setting>> read_settings_file(const std::string& path);
Result<std::vector<Setting>> parse_settings(std::string_view yaml, std::string_view origin);

}  // namespace zipage
