// The flags of a command: the engine's knobs and its own. One description of a flag serves the command line, the
// --config file, --help and the shells' completions.
//
// Thread-safety: one thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zipage/config.h"
#include "zipage/status.h"

namespace zipage::apps {

struct Flag {
  Knob knob;
  char letter = 0;           // -p beside --prompt; 0 = none
  std::string default_text;  // shown in --help; empty = nothing to show
  bool in_file = true;       // may stand in a --config file
  std::function<Status(std::string_view)> set;
};

class Options {
 public:
  // synopsis: "zipage generate [MODEL] [FLAGS]"; about: a sentence or two. Both outlive the object.
  Options(std::string_view synopsis, std::string_view about);

  // Every knob of the engine and --config; the first word that is no flag is the model.
  void add_engine(EngineConfig* config);
  // The first word that is no flag is this flag's value.
  void first_word(std::string_view key) { first_word_ = key; }

  void add(std::string_view key, std::string_view metavar, std::string_view help, std::string* target, char letter = 0);
  void add(std::string_view key, std::string_view metavar, std::string_view help, int* target, int least);
  void add(std::string_view key, std::string_view metavar, std::string_view help, std::optional<int>* target,
           int least);
  void add(std::string_view key, std::string_view help, bool* target, char letter = 0);
  void add(std::string_view key, std::string_view metavar, std::string_view help, std::vector<std::string>* target);
  // A flag whose text goes to `set`.
  void add(Flag flag);

  enum class Outcome { kRun, kHelp };
  // Reads the words after the command's name, the --config file among them; flags win over the file. kHelp: --help
  // was asked for. Errors are sentences for the user.
  Result<Outcome> parse(const std::vector<std::string>& words);

  std::string help() const;  // grouped, 80 columns
  const std::vector<Flag>& flags() const { return flags_; }
  bool given(std::string_view key) const;  // by flag or file

 private:
  Status apply_file(const std::string& path);
  Status apply(std::string_view key, std::string_view value, std::string_view origin);
  Status unknown_flag(std::string_view word) const;
  const Flag* find(std::string_view key) const;

  std::string_view synopsis_, about_;
  std::vector<Flag> flags_;
  std::vector<std::string> given_;
  std::string_view first_word_;
};

}  // namespace zipage::apps
