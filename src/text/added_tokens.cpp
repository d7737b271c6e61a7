#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace zipage {
namespace {

// The last character of valid UTF-8.
char32_t last_char(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return next_utf8_unit(text.substr(at)).code_point;
}

size_t white_space_at_start(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = next_utf8_unit(text.substr(at));
    if (!is_white_space(unit.code_point)) break;
    at += unit.size;
  }
  return at;
}

// Where the white space at the end begins, not before `from`.
size_t white_space_at_end(std::string_view text, size_t from) {
  size_t end = text.size();
  while (end > from) {
    size_t at = end - 1;
    while (at > from && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!is_white_space(next_utf8_unit(text.substr(at)).code_point)) break;
    end = at;
  }
  return end;
}

}  // namespace

int32_t AddedTokenMatcher::child(int32_t node, char byte) const {
  int32_t at = nodes_[node].child;
  while (at >= 0 && nodes_[at].byte != byte) at = nodes_[at].sibling;
  return at;
}

void AddedTokenMatcher::add(const AddedToken& token, std::string pattern) {
  if (pattern.empty()) return;
  int32_t node = 0;
  for (const char byte : pattern) {
    int32_t next = node == 0 ? roots_[static_cast<uint8_t>(byte)] : child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({-1, -1, node == 0 ? -1 : nodes_[node].child, byte});
      if (node == 0) {
        roots_[static_cast<uint8_t>(byte)] = next;
      } else {
        nodes_[node].child = next;
      }
    }
    node = next;
  }
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

int32_t AddedTokenMatcher::longest_at(std::string_view text, size_t at, size_t& stop) const {
  int32_t found = -1;
  int32_t node = roots_[static_cast<uint8_t>(text[at])];
  for (size_t i = at + 1; node >= 0; ++i) {
    if (nodes_[node].token >= 0) {
      found = nodes_[node].token;
      stop = i;
    }
    node = i < text.size() ? child(node, text[i]) : -1;
  }
  return found;
}

std::vector<AddedTokenMatcher::Piece> AddedTokenMatcher::split(std::string_view text,
                                                               std::span<const ByteRange> literal) const {
  std::vector<Piece> pieces;
  size_t done = 0;  // text before this is in a piece
  for (size_t at = 0; at < text.size();) {
    size_t stop = at;
    const int32_t found = longest_at(text, at, stop);
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found];
    size_t start = at;
    while (!literal.empty() && literal.front().end <= start) literal = literal.subspan(1);
    if (token.special && !literal.empty() && literal.front().begin < stop) {
      // What a literal range holds is passed over whole; a token that only reaches into one may hide another.
      at = stop <= literal.front().end && start >= literal.front().begin ? stop : start + 1;
      continue;
    }
    at = stop;  // a token that is discarded here is not searched for shorter ones
    if (token.single_word && ((start > 0 && is_word_char(last_char(text.substr(0, start)))) ||
                              (stop < text.size() && is_word_char(next_utf8_unit(text.substr(stop)).code_point)))) {
      continue;
    }
    if (token.lstrip) start = std::max(done, white_space_at_end(text.substr(0, start), std::min(done, start)));
    if (token.rstrip) stop += white_space_at_start(text.substr(stop));
    if (done < start) pieces.push_back({done, start, -1});
    pieces.push_back({start, stop, token.id});
    done = stop;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), -1});
  return pieces;
}

}  // namespace zipage
