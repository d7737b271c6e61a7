// Parts of a JSON text as they were written: the order of an object's members is lost once it is parsed.
//
// Thread-safety: pure functions. REQUIRES of every text: valid JSON, or "".
#pragma once

#include <string_view>
#include <vector>

namespace zipage {

// The white space between a JSON text's tokens.
constexpr bool is_json_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// The text of the value of an object's last member with this name, spelled without escapes. "" when there is none.
std::string_view json_member(std::string_view object, std::string_view name);
// The texts of a list's items.
std::vector<std::string_view> json_items(std::string_view list);

}  // namespace zipage
