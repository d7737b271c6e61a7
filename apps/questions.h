// Questions with known answers, as JSONL: {"messages": [...]} or {"question": "..."}, "answer", and optionally "task"
// (else the file's name) and "level".
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "zipage/status.h"

namespace zipage::apps {

struct Question {
  std::string task, level;
  std::string messages;  // JSON list
  std::string answer;
};

struct QuestionFilter {
  std::vector<std::string> tasks;  // empty = all
  std::string level;               // empty = all
  int limit = 0;                   // the first so many of each task; 0 = all
};

// In the files' order. Errors name file and line; a task or level that no question has is one, and names what there is.
Result<std::vector<Question>> read_questions(std::span<const std::filesystem::path> files,
                                             const QuestionFilter& filter);

}  // namespace zipage::apps
