// Tells a thought from the answer: what stands between <think> and </think>, in a text that comes in pieces.
//
// Thread-safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>

namespace zipage {

class ThinkingSplitter {
 public:
  // starts_inside: the prompt already opened the thought.
  explicit ThinkingSplitter(bool starts_inside = false) : inside_(starts_inside) {}

  struct Piece {
    std::string reasoning;
    std::string content;
  };
  // Sorts the next piece of text. The tags belong to neither side. Holds back only what may still become a tag.
  Piece push(std::string_view text);
  // What was held back, at the end.
  Piece finish();

  bool inside() const { return inside_; }
  bool closed() const { return closed_; }  // a thought has ended

 private:
  bool inside_;
  bool closed_ = false;
  std::string held_;  // begins like the tag that is looked for
};

// A whole text at once.
ThinkingSplitter::Piece split_thinking(std::string_view text, bool starts_inside = false);

}  // namespace zipage
