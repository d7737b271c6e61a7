#include "text/normalizer.h"

#include "text/utf8.h"

namespace zipage {
namespace {

std::string run(const normalizers::Form& step, std::string text) {
  return normalize(text, step.form);
}
std::string run(const normalizers::Lowercase&, std::string text) {
  return lowercase(text);
}

std::string run(const normalizers::StripAccents&, std::string text) {
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    const Utf8Unit unit = next_utf8_unit(rest);
    if (!is_mark(unit.code_point)) out.append(rest.substr(0, unit.size));
    rest.remove_prefix(unit.size);
  }
  return out;
}

std::string run(const normalizers::Strip& step, std::string text) {
  std::string_view rest = text;
  while (step.left && !rest.empty()) {
    const Utf8Unit unit = next_utf8_unit(rest);
    if (!is_white_space(unit.code_point)) break;
    rest.remove_prefix(unit.size);
  }
  size_t end = step.right ? 0 : rest.size();
  for (size_t at = 0; step.right && at < rest.size();) {
    const Utf8Unit unit = next_utf8_unit(rest.substr(at));
    at += unit.size;
    if (!is_white_space(unit.code_point)) end = at;
  }
  return std::string(rest.substr(0, end));
}

std::string run(const normalizers::Prepend& step, std::string text) {
  if (!text.empty()) text.insert(0, step.text);
  return text;
}

std::string run(const normalizers::Replace& step, std::string text) {
  std::vector<ByteRange> matches;
  step.pattern->find_all(text, matches);
  if (matches.empty()) return text;
  std::string out;
  size_t done = 0;
  for (const ByteRange& match : matches) {
    out.append(text, done, match.begin - done);
    out.append(step.content);
    done = match.end;
  }
  out.append(text, done, std::string::npos);
  return out;
}

}  // namespace

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const normalizers::Step& step : steps_) {
    out = std::visit([&](const auto& s) { return run(s, std::move(out)); }, step);
  }
  return out;
}

}  // namespace zipage
