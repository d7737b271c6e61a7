#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace zipage {
namespace {

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("zipage", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made.set_pattern("%H:%M:%S.%e %^%L%$ %v");
    return made;
  }();
  return instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  logger().set_level(static_cast<spdlog::level::level_enum>(level));
}

bool log_enabled(LogLevel level) {
  return logger().should_log(static_cast<spdlog::level::level_enum>(level));
}

void log_line(LogLevel level, std::string_view line) {
  logger().log(static_cast<spdlog::level::level_enum>(level), "{}", line);
}

}  // namespace zipage
