// What the pictures share: a frame that is readable on white and on black.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace zipage::pictures {

inline std::string svg_begin(int width, int height, std::string_view title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n"
      "<title>{2}</title>\n<style>text{{font:12px sans-serif;fill:#222}}.mono{{font:11px "
      "monospace}}.grid{{stroke:#8886}}"
      "@media(prefers-color-scheme:dark){{text{{fill:#ddd}}}}</style>\n",
      width, height, title);
}

inline std::string svg_text(double x, double y, std::string_view anchor, std::string_view text,
                            std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more, text);
}

inline std::string xml_escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace zipage::pictures
