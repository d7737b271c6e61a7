// What XGrammar says while it reads a grammar.
//
// Thread-safety: a recorder belongs to the thread that made it.
#pragma once

#include <string>
#include <vector>

namespace zipage {

// Collects the warnings of this thread while it lives. Without one they are dropped.
class XgrammarWarnings {
 public:
  XgrammarWarnings();
  ~XgrammarWarnings();
  XgrammarWarnings(const XgrammarWarnings&) = delete;
  XgrammarWarnings& operator=(const XgrammarWarnings&) = delete;

  const std::vector<std::string>& lines() const { return lines_; }
  void add(const std::string& line) { lines_.push_back(line); }

 private:
  std::vector<std::string> lines_;
};

}  // namespace zipage
