// Invariants. A false condition is a bug of ours: the process ends with a sentence and the values.
#pragma once

#include <fmt/format.h>

#include <string>

namespace zipage {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace zipage

// ZIPAGE_CHECK(a == b, "sentence with {} values", a, b): always on.
#define ZIPAGE_CHECK(condition, ...)                                                      \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      ::zipage::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
    }                                                                                     \
  } while (false)

// The same, in builds with ZIPAGE_DEBUG_CHECKS only: for checks that cost more than a comparison.
#ifdef ZIPAGE_DEBUG_CHECKS
#define ZIPAGE_DCHECK(condition, ...) ZIPAGE_CHECK(condition, __VA_ARGS__)
#else
#define ZIPAGE_DCHECK(condition, ...) \
  do {                                \
  } while (false)
#endif
