// One logger for the process, to stderr. Formatting happens only for lines that are shown.
//
// Thread-safety: all functions may be called from any thread.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace zipage {

enum class LogLevel : int { kDebug = 1, kInfo = 2, kWarning = 3, kError = 4, kOff = 6 };

void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view line);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kDebug)) log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kInfo)) log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kWarning)) log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kError)) log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace zipage
