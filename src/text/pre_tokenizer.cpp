#include "text/pre_tokenizer.h"

#include <algorithm>

#include "text/byte_level.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace zipage {
namespace {

using pre_tokenizers::Behavior;

struct Piece {
  ByteRange range;
  bool match = false;
};

// The matches and what lies between them.
std::vector<Piece> with_gaps(const std::vector<ByteRange>& matches, size_t size) {
  std::vector<Piece> pieces;
  pieces.reserve(matches.size() * 2 + 1);
  size_t done = 0;
  for (const ByteRange& match : matches) {
    if (done < match.begin) pieces.push_back({{done, match.begin}, false});
    pieces.push_back({match, true});
    done = match.end;
  }
  if (done < size) pieces.push_back({{done, size}, false});
  return pieces;
}

template <typename Predicate>
std::vector<ByteRange> chars_that(std::string_view text, Predicate predicate) {
  std::vector<ByteRange> found;
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = next_utf8_unit(text.substr(at));
    if (predicate(unit.code_point)) found.push_back({at, at + unit.size});
    at += unit.size;
  }
  return found;
}

// Pieces of one word, after `behavior`, shifted by `base`.
void emit(std::vector<Piece> pieces, Behavior behavior, size_t base, std::vector<ByteRange>& out) {
  const auto put = [&](ByteRange range) {
    if (range.size() > 0) out.push_back({base + range.begin, base + range.end});
  };
  if (behavior == Behavior::kIsolated || behavior == Behavior::kRemoved) {
    for (const Piece& piece : pieces) {
      if (!piece.match || behavior == Behavior::kIsolated) put(piece.range);
    }
    return;
  }
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) std::reverse(pieces.begin(), pieces.end());
  std::vector<ByteRange> merged;
  bool previous_match = false;
  for (const Piece& piece : pieces) {
    const bool join =
        behavior == Behavior::kContiguous ? piece.match == previous_match : piece.match && !previous_match;
    if (join && !merged.empty()) {
      merged.back() = {std::min(merged.back().begin, piece.range.begin), std::max(merged.back().end, piece.range.end)};
    } else {
      merged.push_back(piece.range);
    }
    previous_match = piece.match;
  }
  if (backwards) std::reverse(merged.begin(), merged.end());
  for (const ByteRange& range : merged) put(range);
}

std::vector<ByteRange> words_and_others(std::string_view text) {
  std::vector<ByteRange> found;
  int previous = 0;  // 1 a word's character, 2 another one, 0 white space
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = next_utf8_unit(text.substr(at));
    const int kind = is_word_char(unit.code_point) ? 1 : is_white_space(unit.code_point) ? 0 : 2;
    if (kind != 0 && kind == previous) {
      found.back().end = at + unit.size;
    } else if (kind != 0) {
      found.push_back({at, at + unit.size});
    }
    previous = kind;
    at += unit.size;
  }
  return found;
}

struct Splitter {
  std::string_view text;  // one word
  size_t base;            // where it begins
  std::vector<ByteRange>& out;

  void operator()(const pre_tokenizers::Split& step) const {
    std::vector<ByteRange> matches;
    step.pattern->find_all(text, matches);
    std::vector<Piece> pieces = with_gaps(matches, text.size());
    if (step.invert) {
      for (Piece& piece : pieces) piece.match = !piece.match;
    }
    emit(std::move(pieces), step.behavior, base, out);
  }
  void operator()(const pre_tokenizers::Digits& step) const {
    emit(with_gaps(chars_that(text, is_numeric), text.size()),
         step.individual ? Behavior::kIsolated : Behavior::kContiguous, base, out);
  }
  void operator()(const pre_tokenizers::Punctuation& step) const {
    emit(with_gaps(chars_that(text, is_punctuation), text.size()), step.behavior, base, out);
  }
  void operator()(const pre_tokenizers::Whitespace&) const {
    for (const ByteRange& word : words_and_others(text)) out.push_back({base + word.begin, base + word.end});
  }
  void operator()(const pre_tokenizers::WhitespaceSplit&) const {
    emit(with_gaps(chars_that(text, is_white_space), text.size()), Behavior::kRemoved, base, out);
  }
  void operator()(const pre_tokenizers::ByteLevel& step) const {
    if (step.pattern == nullptr) {
      emit({{{0, text.size()}, false}}, Behavior::kIsolated, base, out);
    } else {
      (*this)(pre_tokenizers::Split{step.pattern});
    }
  }
  void operator()(const pre_tokenizers::Metaspace& step) const {
    if (!step.split) {
      emit({{{0, text.size()}, false}}, Behavior::kIsolated, base, out);
    } else {
      (*this)(pre_tokenizers::Split{Regex::literal(step.replacement), Behavior::kMergedWithNext});
    }
  }
};

// Steps that change the text itself put the words into a new one.
void rewrite(const pre_tokenizers::Step& step, bool at_start, std::string& text, std::vector<ByteRange>& words) {
  const auto* byte_level = std::get_if<pre_tokenizers::ByteLevel>(&step);
  const auto* metaspace = std::get_if<pre_tokenizers::Metaspace>(&step);
  if ((byte_level == nullptr || !byte_level->add_prefix_space) && metaspace == nullptr) return;
  std::string changed;
  changed.reserve(text.size() * 2);
  for (ByteRange& range : words) {
    const std::string_view word = std::string_view(text).substr(range.begin, range.size());
    const size_t begin = changed.size();
    if (byte_level != nullptr) {
      if (!word.starts_with(' ')) changed += ' ';
      changed += word;
    } else {
      const bool prepend =
          metaspace->prepend == pre_tokenizers::Metaspace::Prepend::kAlways ||
          (metaspace->prepend == pre_tokenizers::Metaspace::Prepend::kFirst && at_start && range.begin == 0);
      if (prepend && !word.starts_with(' ') && !word.starts_with(metaspace->replacement)) {
        changed += metaspace->replacement;
      }
      for (const char c : word) {
        if (c == ' ') {
          changed += metaspace->replacement;
        } else {
          changed += c;
        }
      }
    }
    range = {begin, changed.size()};
  }
  text = std::move(changed);
}

// A step behind ByteLevel sees each byte as a character of its own.
void split_mapped(const pre_tokenizers::Step& step, std::string_view word, size_t base, std::vector<ByteRange>& out) {
  const std::string mapped = to_byte_level(word);
  std::vector<ByteRange> parts;
  std::visit(Splitter{mapped, 0, parts}, step);
  std::vector<size_t> byte_of(mapped.size() + 1);  // offset in `mapped` to offset in `word`
  size_t at = 0;
  for (size_t i = 0; i < mapped.size(); ++i) {
    byte_of[i] = at;
    if (i + 1 == mapped.size() || (static_cast<unsigned char>(mapped[i + 1]) & 0xC0) != 0x80) ++at;
  }
  byte_of[mapped.size()] = word.size();
  for (const ByteRange& part : parts) out.push_back({base + byte_of[part.begin], base + byte_of[part.end]});
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<pre_tokenizers::Step> steps)
    : steps_(std::move(steps)),
      byte_level_(std::any_of(steps_.begin(), steps_.end(), [](const pre_tokenizers::Step& step) {
        return std::holds_alternative<pre_tokenizers::ByteLevel>(step);
      })) {}

void PreTokenizer::split(std::string& text, bool at_start, std::vector<ByteRange>& words) const {
  words.clear();
  if (text.empty()) return;
  words.push_back({0, text.size()});
  bool mapped = false;
  std::vector<ByteRange> finer;
  for (const pre_tokenizers::Step& step : steps_) {
    if (!mapped) rewrite(step, at_start, text, words);
    finer.clear();
    for (const ByteRange& word : words) {
      const std::string_view view = std::string_view(text).substr(word.begin, word.size());
      if (mapped) {
        split_mapped(step, view, word.begin, finer);
      } else {
        std::visit(Splitter{view, word.begin, finer}, step);
      }
    }
    words.swap(finer);
    mapped = mapped || std::holds_alternative<pre_tokenizers::ByteLevel>(step);
  }
}

}  // namespace zipage
