#include "questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/nearest.h"
#include "base/parse_value.h"
#include "text/json_fields.h"

namespace zipage::apps {
namespace {

using nlohmann::json;

Result<Question> parse_question(const std::string& line, std::string file_task) {
  ZIPAGE_ASSIGN_OR_RETURN(const json object, parse_json_object(line));
  Question question;
  question.task = std::move(file_task);
  JsonFields fields(object);
  fields.read("task", question.task);
  fields.read("level", question.level);
  std::string asked;
  fields.read("question", asked);
  fields.read_list("messages", question.messages);
  if (const json* answer = fields.find("answer"); answer != nullptr) {
    question.answer = answer->is_string() ? answer->get<std::string>() : to_json_text(*answer);
  } else {
    fields.fail("answer", "answer is missing");
  }
  if (asked.empty() == question.messages.empty()) fields.fail("messages", "give messages or question, one of them");
  ZIPAGE_RETURN_IF_ERROR(fields.status());
  if (question.messages.empty()) {
    question.messages = to_json_text(json::array({{{"role", "user"}, {"content", asked}}}));
  }
  return question;
}

Status check_known(std::string_view flag, const std::string& wanted, const std::set<std::string>& known) {
  if (known.contains(wanted)) return {};
  const std::vector<std::string_view> words(known.begin(), known.end());
  const std::string_view nearest = nearest_word(wanted, words);
  return invalid_argument(fmt::format("--{}: no question has '{}', there are {}{}", flag, wanted,
                                      fmt::join(words, ", "),
                                      nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)))
      .with_param(std::string(flag));
}

}  // namespace

Result<std::vector<Question>> read_questions(std::span<const std::filesystem::path> files,
                                             const QuestionFilter& filter) {
  std::vector<Question> questions;
  std::set<std::string> tasks, levels;
  std::map<std::string, int> taken;
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return invalid_argument(fmt::format("{}: cannot be read", path.string())).with_param("questions");
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      if (trim(line).empty()) continue;
      Result<Question> question = parse_question(line, path.stem().string());
      if (!question.ok()) {
        return invalid_argument(fmt::format("{}:{}: {}", path.string(), number, question.status().message()))
            .with_param("questions");
      }
      tasks.insert(question->task);
      levels.insert(question->level);
      const bool wanted = filter.tasks.empty() ||
                          std::find(filter.tasks.begin(), filter.tasks.end(), question->task) != filter.tasks.end();
      if (!wanted || (!filter.level.empty() && question->level != filter.level)) continue;
      if (int& count = taken[question->task]; filter.limit == 0 || count < filter.limit) {
        ++count;
        questions.push_back(*std::move(question));
      }
    }
  }
  for (const std::string& task : filter.tasks) ZIPAGE_RETURN_IF_ERROR(check_known("task", task, tasks));
  if (!filter.level.empty()) ZIPAGE_RETURN_IF_ERROR(check_known("level", filter.level, levels));
  if (questions.empty()) return invalid_argument("no questions are left to ask").with_param("questions");
  return questions;
}

}  // namespace zipage::apps
