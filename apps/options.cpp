#include "options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/nearest.h"
#include "base/parse_value.h"
#include "engine/config_file.h"

namespace zipage::apps {
namespace {

constexpr std::string_view kOwnGroup = "";  // the command's own flags come first, without a heading of a group
constexpr size_t kWidth = 80, kHelpColumn = 30;

bool is_list(KnobType type) {
  return type == KnobType::kStringList || type == KnobType::kIntList;
}

// The text of an option's last use; a list's words joined with commas.
std::string value_text(const CLI::Option& option, const Flag& flag) {
  const auto& results = option.results();
  return is_list(flag.knob.type) ? fmt::format("{}", fmt::join(results, ",")) : results.back();
}

// --kv_budget is --kv-budget, as in vLLM. Only the name of a flag is touched.
std::string with_dashes(const std::string& word) {
  if (!word.starts_with("--")) return word;
  std::string result = word;
  std::replace(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size())), '_',
               '-');
  return result;
}

// `text` broken at spaces into lines of at most `width` columns.
std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines(1);
  for (std::string_view word : split_list(text, ' ')) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    lines.back() += word;
  }
  return lines;
}

std::string help_line(const Flag& flag) {
  std::string left = flag.letter != 0 ? fmt::format("  -{}, --", flag.letter) : "  --";
  if (flag.knob.type == KnobType::kBool && flag.in_file) left += "[no-]";
  left += flag.knob.key;
  if (!flag.knob.metavar.empty()) left += fmt::format(" {}", flag.knob.metavar);
  std::string right(flag.knob.help);
  if (!flag.default_text.empty()) right += fmt::format(" [{}]", flag.default_text);

  std::string result;
  if (left.size() + 2 > kHelpColumn) {
    result += left + '\n';
    left.clear();
  }
  for (const std::string& line : wrap(right, kWidth - kHelpColumn)) {
    result += fmt::format("{:<{}}{}\n", left, kHelpColumn, line);
    left.clear();
  }
  return result;
}

Status out_of_range(std::string_view key, std::string_view value, int least) {
  return invalid_argument(fmt::format("--{} must be a whole number of at least {}, not '{}'", key, least, value))
      .with_param(std::string(key));
}

std::optional<int> whole_int(std::string_view text, int least) {
  const std::optional<int64_t> value = parse_whole_number(text);
  if (!value || *value < least || *value > std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(*value);
}

}  // namespace

Options::Options(std::string_view synopsis, std::string_view about) : synopsis_(synopsis), about_(about) {
  Flag help{{"help", KnobType::kBool, kOwnGroup, "", "this text"}, 'h', "", false, {}};
  flags_.push_back(std::move(help));
}

void Options::add_engine(EngineConfig* config) {
  first_word("model");
  Flag file{
      {"config", KnobType::kString, kOwnGroup, "FILE", "YAML with these flags as keys; flags win"}, 0, "", false, {}};
  flags_.push_back(std::move(file));
  for (const Knob& knob : knobs()) {
    // A flag of the command's own may carry the name of an engine's knob; the command's wins.
    if (find(knob.key) != nullptr) continue;
    std::string default_text = knob_value(*config, knob.key);
    if (knob.type == KnobType::kBool) default_text = default_text == "true" ? "on" : "off";
    flags_.push_back({knob, 0, std::move(default_text), true,
                      [config, key = knob.key](std::string_view value) { return set_knob(*config, key, value); }});
  }
}

void Options::add(Flag flag) {
  flags_.push_back(std::move(flag));
}

void Options::add(std::string_view key, std::string_view metavar, std::string_view help, std::string* target,
                  char letter) {
  add({{key, KnobType::kString, kOwnGroup, metavar, help}, letter, *target, true, [target](std::string_view value) {
         *target = std::string(value);
         return Status();
       }});
}

void Options::add(std::string_view key, std::string_view metavar, std::string_view help, int* target, int least) {
  add({{key, KnobType::kInt, kOwnGroup, metavar, help},
       0,
       fmt::format("{}", *target),
       true,
       [target, key, least](std::string_view value) {
         const std::optional<int> number = whole_int(value, least);
         if (!number) return out_of_range(key, value, least);
         *target = *number;
         return Status();
       }});
}

void Options::add(std::string_view key, std::string_view metavar, std::string_view help, std::optional<int>* target,
                  int least) {
  add({{key, KnobType::kInt, kOwnGroup, metavar, help}, 0, "", true, [target, key, least](std::string_view value) {
         *target = whole_int(value, least);
         return *target ? Status() : out_of_range(key, value, least);
       }});
}

void Options::add(std::string_view key, std::string_view help, bool* target, char letter) {
  add({{key, KnobType::kBool, kOwnGroup, "", help}, letter, "", true, [target, key](std::string_view value) {
         const std::optional<bool> parsed = parse_bool(value);
         if (!parsed) {
           return invalid_argument(fmt::format("--{} must be true or false, not '{}'", key, value))
               .with_param(std::string(key));
         }
         *target = *parsed;
         return Status();
       }});
}

void Options::add(std::string_view key, std::string_view metavar, std::string_view help,
                  std::vector<std::string>* target) {
  add({{key, KnobType::kStringList, kOwnGroup, metavar, help}, 0, "", true, [target](std::string_view value) {
         const auto words = split_list(value);
         target->assign(words.begin(), words.end());
         return Status();
       }});
}

const Flag* Options::find(std::string_view key) const {
  for (const Flag& flag : flags_) {
    if (flag.knob.key == key) return &flag;
  }
  return nullptr;
}

bool Options::given(std::string_view key) const {
  return std::find(given_.begin(), given_.end(), key) != given_.end();
}

Status Options::unknown_flag(std::string_view word) const {
  const std::string name = with_dashes(std::string(word.substr(0, word.find('='))));
  std::vector<std::string> spelled;
  for (const Flag& flag : flags_) {
    spelled.push_back(fmt::format("--{}", flag.knob.key));
    if (flag.knob.type == KnobType::kBool && flag.in_file) spelled.push_back(fmt::format("--no-{}", flag.knob.key));
  }
  const std::vector<std::string_view> candidates(spelled.begin(), spelled.end());
  const std::string_view nearest = nearest_word(name, candidates);
  return invalid_argument(
             fmt::format("unknown flag {}{}", name,
                         nearest.empty() ? "; --help lists all" : fmt::format(", did you mean {}?", nearest)))
      .with_param(name);
}

Status Options::apply(std::string_view key, std::string_view value, std::string_view origin) {
  const Flag* flag = find(key);
  const Status status = flag->set(value);
  if (!status.ok())
    return Status(status.code(), fmt::format("{}{}", origin, status.message())).with_param(status.param());
  given_.emplace_back(key);
  return {};
}

Status Options::apply_file(const std::string& path) {
  ZIPAGE_ASSIGN_OR_RETURN(const std::vector<Setting> settings, read_settings_file(path));
  std::vector<std::string_view> known;
  for (const Flag& flag : flags_) {
    if (flag.in_file) known.push_back(flag.knob.key);
  }
  for (const Setting& setting : settings) {
    std::string key = setting.key;
    std::replace(key.begin(), key.end(), '_', '-');
    const std::string origin = fmt::format("{}:{}: ", path, setting.line);
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string_view nearest = nearest_word(key, known);
      return invalid_argument(fmt::format("{}unknown key '{}'{}", origin, setting.key,
                                          nearest.empty() ? "" : fmt::format(", did you mean '{}'?", nearest)))
          .with_param(setting.key);
    }
    ZIPAGE_RETURN_IF_ERROR(apply(key, setting.value, origin));
  }
  return {};
}

Result<Options::Outcome> Options::parse(const std::vector<std::string>& words) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::vector<CLI::Option*> parsed;
  for (const Flag& flag : flags_) {
    const std::string letter = flag.letter != 0 ? fmt::format("-{},", flag.letter) : "";
    if (flag.knob.type == KnobType::kBool) {
      const std::string negative = flag.in_file ? fmt::format(",--no-{}{{false}}", flag.knob.key) : "";
      parsed.push_back(app.add_flag(fmt::format("{}--{}{{true}}{}", letter, flag.knob.key, negative)));
      parsed.back()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    } else {
      parsed.push_back(app.add_option(fmt::format("{}--{}", letter, flag.knob.key)));
      if (is_list(flag.knob.type)) {
        parsed.back()->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(true);
      } else {
        parsed.back()->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      }
    }
  }
  try {
    std::vector<std::string> reversed(words.size());
    std::transform(words.rbegin(), words.rend(), reversed.begin(), with_dashes);
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return invalid_argument(error.what());
  }

  if (parsed[0]->count() > 0) return Outcome::kHelp;
  std::vector<std::string> loose = app.remaining();
  for (const std::string& word : loose) {
    if (word.size() > 1 && word[0] == '-' && word != "--") return unknown_flag(word);
  }
  std::erase(loose, "--");
  std::optional<std::string> first;
  if (!first_word_.empty() && !loose.empty()) {
    first = loose.front();
    loose.erase(loose.begin());
  }
  if (!loose.empty()) {
    return invalid_argument(fmt::format("unexpected word '{}' after the flags; usage: {}", loose.front(), synopsis_));
  }

  // The file first, so that flags win over it.
  const Flag* file = find("config");
  for (size_t i = 1; i < flags_.size(); ++i) {
    if (&flags_[i] == file && parsed[i]->count() > 0) ZIPAGE_RETURN_IF_ERROR(apply_file(parsed[i]->results().back()));
  }
  if (first) ZIPAGE_RETURN_IF_ERROR(apply(first_word_, *first, ""));
  for (size_t i = 1; i < flags_.size(); ++i) {
    if (&flags_[i] == file || parsed[i]->count() == 0) continue;
    ZIPAGE_RETURN_IF_ERROR(apply(flags_[i].knob.key, value_text(*parsed[i], flags_[i]), ""));
  }
  return Outcome::kRun;
}

std::string Options::help() const {
  std::string text = fmt::format("usage: {}\n\n", synopsis_);
  for (const std::string& line : wrap(about_, kWidth)) text += line + '\n';
  std::vector<std::string_view> groups;
  for (const Flag& flag : flags_) {
    if (std::find(groups.begin(), groups.end(), flag.knob.group) == groups.end()) groups.push_back(flag.knob.group);
  }
  for (std::string_view group : groups) {
    text += fmt::format("\n{}:\n", group.empty() ? "Flags" : group);
    for (const Flag& flag : flags_) {
      if (flag.knob.group == group) text += help_line(flag);
    }
  }
  text +=
      "\nExit status: 0 done, 1 some requests failed, 2 wrong usage, 3 the model or the\n"
      "machine cannot do it, 130 interrupted (what was done so far is written).\n";
  return text;
}

}  // namespace zipage::apps
