#include "exit_code.h"

#include <fmt/format.h>

namespace zipage::apps {

int fail(const Status& status) {
  fmt::print(stderr, "zipage: {}\n", status.message());
  switch (status.code()) {
    case StatusCode::kOk:
      return kExitOk;
    case StatusCode::kInvalidArgument:
      return kExitUsage;
    case StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitCannotRun;
  }
}

}  // namespace zipage::apps
