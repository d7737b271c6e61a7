#include "text/json_text.h"

#include <cstddef>

namespace zipage {
namespace {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  void skip_space() {
    while (!at_end() && (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n')) ++at_;
  }
  bool take(char wanted) {
    skip_space();
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  std::string_view value() {
    skip_space();
    const size_t begin = at_;
    int depth = 0;
    while (!at_end()) {
      const char c = peek();
      if (c == '"') {
        string();
        if (depth == 0) break;
        continue;
      }
      if (depth == 0 && (c == ',' || c == ']' || c == '}')) break;
      ++at_;
      if (c == '{' || c == '[') ++depth;
      if ((c == '}' || c == ']') && --depth == 0) break;
    }
    std::string_view found = text_.substr(begin, at_ - begin);
    const size_t last = found.find_last_not_of(" \t\r\n");
    return found.substr(0, last == std::string_view::npos ? 0 : last + 1);
  }

 private:
  void string() {
    for (++at_; !at_end() && peek() != '"'; ++at_) {
      if (peek() == '\\') ++at_;
    }
    ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::string_view json_member(std::string_view object, std::string_view name) {
  std::string_view found;
  Scanner scanner(object);
  if (!scanner.take('{')) return found;
  do {
    const std::string_view key = scanner.value();
    if (!scanner.take(':')) break;
    const std::string_view value = scanner.value();
    if (key.size() == name.size() + 2 && key.substr(1, name.size()) == name) found = value;
  } while (scanner.take(','));
  return found;
}

std::vector<std::string_view> json_items(std::string_view list) {
  std::vector<std::string_view> items;
  Scanner scanner(list);
  if (!scanner.take('[')) return items;
  do {
    const std::string_view item = scanner.value();
    if (!item.empty()) items.push_back(item);
  } while (scanner.take(','));
  return items;
}

}  // namespace zipage
