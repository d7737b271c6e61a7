#include <fmt/format.h>

#include <vector>

#include "text/regex.h"

namespace zipage {
namespace {

// PCRE2's own \s lacks U+0085 and has U+180E; its \w lacks marks and has all numbers. Oniguruma's \w has the numbers of
// Latin-1 and circled letters.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kWord = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}\x{24B6}-\x{24E9})"
                                   R"(\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
constexpr std::string_view kHex = "0-9A-Fa-f";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (at_ < in_.size()) {
      ZIPAGE_RETURN_IF_ERROR(next());
    }
    return std::move(out_);
  }

 private:
  Status refuse(std::string_view what) const {
    return {StatusCode::kUnimplemented, fmt::format("the regular expression '{}' uses {}", in_, what)};
  }
  bool rest_starts(std::string_view prefix) const { return in_.substr(at_).starts_with(prefix); }

  Status next() {
    const char c = in_[at_];
    if (c == '\\') return escape();
    if (c == '[') return char_class();
    if (c == '(') return open_group();
    if (c == ')') {
      ++at_;
      atom_ = groups_.empty() ? out_.size() : groups_.back();
      if (!groups_.empty()) groups_.pop_back();
      out_ += ')';
      return {};
    }
    if (c == '{') return interval();
    if (c != '*' && c != '+' && c != '?') atom_ = out_.size();
    // A whole character, so that atom_ never points into one.
    do {
      out_ += in_[at_++];
    } while (at_ < in_.size() && (static_cast<unsigned char>(in_[at_]) & 0xC0) == 0x80);
    return {};
  }

  Status open_group() {
    if (rest_starts("(*")) return refuse("a verb '(*'");
    groups_.push_back(out_.size());
    out_ += in_[at_++];
    if (!rest_starts("?")) return {};
    // Options up to ':' or ')'. Ruby's m is "dot matches newline".
    size_t end = at_ + 1;
    while (end < in_.size() && (std::isalpha(static_cast<unsigned char>(in_[end])) || in_[end] == '-')) ++end;
    if (end < in_.size() && (in_[end] == ':' || in_[end] == ')')) {
      for (; at_ < end; ++at_) out_ += in_[at_] == 'm' ? 's' : in_[at_];
    }
    return {};
  }

  // {n,m}+ repeats the repetition in Ruby's syntax; PCRE2 would take it as possessive.
  Status interval() {
    size_t end = at_ + 1;
    while (end < in_.size() && (std::isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == ',')) ++end;
    if (end == in_.size() || in_[end] != '}' || end == at_ + 1) {
      atom_ = out_.size();
      out_ += "\\{";
      ++at_;
      return {};
    }
    std::string range(in_.substr(at_, end + 1 - at_));
    if (range == "{,}") return refuse("the interval '{,}'");
    if (range[1] == ',') range = fmt::format("{{0{}", range.substr(1));
    out_ += range;
    at_ = end + 1;
    if (rest_starts("+")) {
      out_ = fmt::format("{}(?:{})", out_.substr(0, atom_), out_.substr(atom_));
    }
    return {};
  }

  Status escape() {
    if (at_ + 1 == in_.size()) return refuse("a lone backslash at its end");
    atom_ = out_.size();
    const char c = in_[at_ + 1];
    at_ += 2;
    switch (c) {
      case 's':
        out_ += fmt::format("[{}]", kSpace);
        return {};
      case 'S':
        out_ += fmt::format("[^{}]", kSpace);
        return {};
      case 'w':
        out_ += fmt::format("[{}]", kWord);
        return {};
      case 'W':
        out_ += fmt::format("[^{}]", kWord);
        return {};
      case 'h':
        out_ += fmt::format("[{}]", kHex);
        return {};
      case 'H':
        out_ += fmt::format("[^{}]", kHex);
        return {};
      case 'd':
        out_ += R"(\p{Nd})";
        return {};
      case 'D':
        out_ += R"(\P{Nd})";
        return {};
      default:
        return plain_escape(c);
    }
  }

  Status plain_escape(char c) {
    switch (c) {
      case 'v':
        out_ += R"(\x{B})";
        return {};
      case 'u':
        if (at_ + 4 > in_.size()) return refuse("an unfinished \\u");
        out_ += fmt::format("\\x{{{}}}", in_.substr(at_, 4));
        at_ += 4;
        return {};
      case 'p':
      case 'P': {
        const size_t end = in_.find('}', at_);
        if (!rest_starts("{") || end == std::string_view::npos) return refuse("an unfinished \\p");
        out_ += '\\';
        out_ += c;
        out_ += in_.substr(at_, end + 1 - at_);
        at_ = end + 1;
        return {};
      }
      case 'Q':
        return refuse("\\Q");
      default:
        out_ += '\\';
        out_ += c;
        return {};
    }
  }

  // [^...] and [...]. A \S inside has no spelling as a part of a PCRE2 class, so the class is taken apart.
  Status char_class() {
    ++at_;
    const bool negated = rest_starts("^");
    if (negated) ++at_;
    const size_t start = out_.size();
    bool has_not_space = false;
    for (bool first = true;; first = false) {
      if (at_ >= in_.size()) return refuse("an unfinished character class");
      if (in_[at_] == ']' && !first) break;
      ZIPAGE_RETURN_IF_ERROR(class_member(has_not_space));
    }
    ++at_;
    const std::string body = out_.substr(start);
    out_.resize(start);
    atom_ = start;
    if (!has_not_space) {
      out_ += fmt::format("[{}{}]", negated ? "^" : "", body);
    } else if (negated) {
      out_ += body.empty() ? fmt::format("[{}]", kSpace) : fmt::format("(?:(?![{}])[{}])", body, kSpace);
    } else {
      out_ += body.empty() ? fmt::format("[^{}]", kSpace) : fmt::format("(?:[{}]|[^{}])", body, kSpace);
    }
    return {};
  }

  Status class_member(bool& has_not_space) {
    if (rest_starts("&&")) return refuse("'&&' inside a character class");
    if (rest_starts("[:")) {
      const size_t end = in_.find(":]", at_);
      if (end == std::string_view::npos) return refuse("an unfinished '[:' inside a character class");
      out_ += in_.substr(at_, end + 2 - at_);
      at_ = end + 2;
      return {};
    }
    if (in_[at_] == '[') return refuse("a class inside a character class");
    if (in_[at_] == ']') {
      out_ += "\\]";
      ++at_;
      return {};
    }
    if (in_[at_] != '\\') {
      out_ += in_[at_++];
      return {};
    }
    if (at_ + 1 == in_.size()) return refuse("a lone backslash at its end");
    const char c = in_[at_ + 1];
    at_ += 2;
    switch (c) {
      case 's':
        out_ += kSpace;
        return {};
      case 'S':
        has_not_space = true;
        return {};
      case 'w':
        out_ += kWord;
        return {};
      case 'h':
        out_ += kHex;
        return {};
      case 'd':
        out_ += R"(\p{Nd})";
        return {};
      case 'D':
        out_ += R"(\P{Nd})";
        return {};
      case 'W':
      case 'H':
        return refuse(fmt::format("\\{} inside a character class", c));
      default:
        return plain_escape(c);
    }
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;             // where the last atom begins in out_
  std::vector<size_t> groups_;  // where the open groups begin
};

}  // namespace

Result<std::string> translate_oniguruma(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace zipage
