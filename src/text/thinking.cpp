#include "text/thinking.h"

#include <algorithm>

namespace zipage {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>";

// Length of the longest end of `text` that `tag` begins with.
size_t overlap(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length) {
    if (text.ends_with(tag.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

ThinkingSplitter::Piece ThinkingSplitter::push(std::string_view text) {
  Piece piece;
  held_ += text;
  while (true) {
    const std::string_view tag = inside_ ? kClose : kOpen;
    std::string& side = inside_ ? piece.reasoning : piece.content;
    // After a thought has ended an opening tag is text like any other.
    if (closed_ && !inside_) {
      side += held_;
      held_.clear();
      return piece;
    }
    const size_t at = held_.find(tag);
    if (at == std::string::npos) {
      const size_t keep = overlap(held_, tag);
      side.append(held_, 0, held_.size() - keep);
      held_.erase(0, held_.size() - keep);
      return piece;
    }
    side.append(held_, 0, at);
    held_.erase(0, at + tag.size());
    closed_ = inside_;
    inside_ = !inside_;
  }
}

ThinkingSplitter::Piece ThinkingSplitter::finish() {
  Piece piece;
  (inside_ ? piece.reasoning : piece.content) = std::move(held_);
  held_.clear();
  return piece;
}

ThinkingSplitter::Piece split_thinking(std::string_view text, bool starts_inside) {
  ThinkingSplitter splitter(starts_inside);
  ThinkingSplitter::Piece piece = splitter.push(text);
  const ThinkingSplitter::Piece rest = splitter.finish();
  piece.reasoning += rest.reasoning;
  piece.content += rest.content;
  return piece;
}

}  // namespace zipage
