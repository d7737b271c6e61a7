// Text out of a file, fit for a sentence.
#pragma once

#include <string>
#include <string_view>

namespace zipage {

// At most 120 bytes of `text`; bytes that are not printable ASCII as \xNN.
std::string printable(std::string_view text);

}  // namespace zipage
