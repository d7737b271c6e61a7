#include "zipage/request.h"

#include "base/check.h"

namespace zipage {

std::string_view name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  ZIPAGE_CHECK(false, "no finish reason has the number {}", static_cast<int>(reason));
}

}  // namespace zipage
