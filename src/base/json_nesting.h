// How deep arrays and objects nest in JSON text. Looks at bytes only, so that hostile text meets no recursion; of text
// that is no JSON the number means nothing.
#pragma once

#include <string_view>

namespace zipage {

int json_nesting(std::string_view text);

}  // namespace zipage
