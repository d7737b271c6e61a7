#include "grammar/xgrammar_log.h"

namespace zipage {
namespace {

thread_local XgrammarWarnings* recorder = nullptr;

}  // namespace

XgrammarWarnings::XgrammarWarnings() {
  recorder = this;
}
XgrammarWarnings::~XgrammarWarnings() {
  recorder = nullptr;
}

}  // namespace zipage

// As cmake/xgrammar_logging.h declares.
namespace xgrammar {

void log_warning(const std::string& message) {
  if (zipage::recorder != nullptr) zipage::recorder->add(message);
}

}  // namespace xgrammar
