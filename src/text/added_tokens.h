// Finds added tokens (control tokens and the like) in a text before anything else happens to it.
//
// Thread-safety: immutable once built.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace zipage {

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() : nodes_(1) { roots_.fill(-1); }

  // `pattern`: the token's text as it appears in the searched text (normalized, for normalized tokens). Empty patterns
  // match nothing.
  void add(const AddedToken& token, std::string pattern);
  bool empty() const { return tokens_.empty(); }

  // A piece of a text: a token (id >= 0), or text between tokens.
  struct Piece {
    size_t begin = 0, end = 0;
    int32_t id = -1;
  };
  // At each place the longest token wins. Special tokens are not found where they touch a range of `literal` (in order,
  // apart). Pieces in order, none empty.
  std::vector<Piece> split(std::string_view text, std::span<const ByteRange> literal) const;

 private:
  struct Node {
    int32_t token = -1;  // index into tokens_
    int32_t child = -1;  // first child
    int32_t sibling = -1;
    char byte = 0;
  };
  int32_t child(int32_t node, char byte) const;
  // The longest token that begins at `at` (index into tokens_, or -1) and where it ends.
  int32_t longest_at(std::string_view text, size_t at, size_t& stop) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;         // [0] is the root
  std::array<int32_t, 256> roots_;  // children of nodes_[0] by their byte
};

}  // namespace zipage
