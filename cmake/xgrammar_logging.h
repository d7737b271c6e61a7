// Stands in for XGrammar's support/logging.h, which it is included before: its warnings go to a
// function of src/grammar/xgrammar_log.cpp, and nothing throws out of a destructor but what is meant to.
#ifndef XGRAMMAR_SUPPORT_LOGGING_H_
#define XGRAMMAR_SUPPORT_LOGGING_H_

#include <iomanip>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace xgrammar {

class LogFatalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void log_warning(const std::string& message);

class LogFatal {
 public:
  [[noreturn]] ~LogFatal() noexcept(false) { throw LogFatalError(stream_.str()); }
  std::ostringstream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

class LogMessage {
 public:
  explicit LogMessage(bool is_warning) : is_warning_(is_warning) {}
  ~LogMessage() {
    if (!is_warning_) return;
    try {
      log_warning(stream_.str());
    } catch (...) {
    }
  }
  std::ostringstream& stream() { return stream_; }

 private:
  bool is_warning_;
  std::ostringstream stream_;
};

}  // namespace xgrammar

#define XGRAMMAR_LOG_INFO LogMessage(false).stream()
#define XGRAMMAR_LOG_DEBUG LogMessage(false).stream()
#define XGRAMMAR_LOG_WARNING LogMessage(true).stream()
#define XGRAMMAR_LOG_FATAL LogFatal().stream()
#define XGRAMMAR_LOG(level) XGRAMMAR_LOG_##level
#define XGRAMMAR_CHECK(x) \
  if (!(x)) LogFatal().stream() << ""
#define XGRAMMAR_ICHECK(x) \
  if (!(x)) LogFatal().stream() << "internal check failed: " #x " "
#define XGRAMMAR_DCHECK(x) \
  while (false) XGRAMMAR_ICHECK(x)

#endif
