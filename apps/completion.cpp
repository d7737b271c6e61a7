// zipage completion SHELL: a completion script for bash, zsh or fish, made from the commands' own flags.
#include <fmt/format.h>

#include "base/parse_value.h"
#include "command.h"
#include "exit_code.h"

namespace zipage::apps {
namespace {

struct Word {
  std::string flag;  // --kv-policy
  std::string help;
  std::vector<std::string_view> choices;  // what may follow
  bool takes_value = false;
};

std::vector<Word> words_of(const CommandInfo& info) {
  const std::unique_ptr<Command> command = info.make();
  Options options(info.synopsis, info.about);
  command->declare(options);
  std::vector<Word> words;
  for (const Flag& flag : options.flags()) {
    const Knob& knob = flag.knob;
    Word word{fmt::format("--{}", knob.key), std::string(knob.help), {}, knob.type != KnobType::kBool};
    if (knob.metavar.starts_with('{')) word.choices = split_list(knob.metavar.substr(1, knob.metavar.size() - 2));
    words.push_back(word);
    if (knob.type == KnobType::kBool && flag.in_file) {
      word.flag = fmt::format("--no-{}", knob.key);
      word.help = fmt::format("off: {}", knob.help);
      words.push_back(word);
    }
  }
  return words;
}

// For single-quoted shell text.
std::string shell_quoted(std::string_view text) {
  std::string result;
  for (char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      result += c;
    }
  }
  return result;
}

std::string bash_script() {
  std::string flags, values, names;
  for (const CommandInfo& info : commands()) {
    names += fmt::format(" {}", info.name);
    std::string of_command;
    for (const Word& word : words_of(info)) {
      of_command += ' ' + word.flag;
      if (!word.choices.empty()) {
        values += fmt::format("    {}:{}) COMPREPLY=($(compgen -W '{}' -- \"$current\")); return ;;\n", info.name,
                              word.flag, fmt::join(word.choices, " "));
      } else if (word.takes_value) {
        values +=
            fmt::format("    {}:{}) COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n", info.name, word.flag);
      }
    }
    flags += fmt::format("    {}) words='{}' ;;\n", info.name, of_command.substr(1));
  }
  return fmt::format(R"(# bash completion of zipage: source <(zipage completion bash)
_zipage() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words=
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{} --help --version' -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}  esac
  case ${{COMP_WORDS[1]}}:$previous in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  case $current in
    -*) ;;
    *) COMPREPLY+=($(compgen -f -- "$current")) ;;
  esac
}}
complete -o filenames -F _zipage zipage
)",
                     names.substr(1), flags, values);
}

std::string zsh_script() {
  std::string names, cases;
  for (const CommandInfo& info : commands()) {
    names += fmt::format(" '{}:{}'", info.name, shell_quoted(info.about));
    cases += fmt::format("    {})\n      _arguments -s", info.name);
    for (const Word& word : words_of(info)) {
      std::string help;
      for (char c : shell_quoted(word.help)) {
        if (c == '[' || c == ']' || c == ':') help += '\\';
        help += c;
      }
      std::string value;
      if (!word.choices.empty()) {
        value = fmt::format(":value:({})", fmt::join(word.choices, " "));
      } else if (word.takes_value) {
        value = ":value:_files";
      }
      cases += fmt::format(" \\\n        '{}[{}]{}'", word.flag, help, value);
    }
    cases += " \\\n        '*:file:_files' ;;\n";
  }
  return fmt::format(R"(#compdef zipage
# zsh completion of zipage: zipage completion zsh > a folder of $fpath, named _zipage
_zipage() {{
  if (( CURRENT == 2 )); then
    local -a names=({})
    _describe command names
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{}  esac
}}
_zipage "$@"
)",
                     names.substr(1), cases);
}

std::string fish_script() {
  std::string script = "# fish completion of zipage: zipage completion fish | source\n";
  for (const CommandInfo& info : commands()) {
    script += fmt::format("complete -c zipage -n __fish_use_subcommand -f -a {} -d '{}'\n", info.name,
                          shell_quoted(info.about));
    for (const Word& word : words_of(info)) {
      std::string value;
      if (!word.choices.empty()) {
        value = fmt::format(" -x -a '{}'", fmt::join(word.choices, " "));
      } else if (word.takes_value) {
        value = " -r";
      }
      script += fmt::format("complete -c zipage -n '__fish_seen_subcommand_from {}' -l {} -d '{}'{}\n", info.name,
                            word.flag.substr(2), shell_quoted(word.help), value);
    }
  }
  return script;
}

class Completion : public Command {
 public:
  void declare(Options& options) override {
    options.add({{"shell", KnobType::kChoice, "", "{bash,zsh,fish}", "for which shell; also as the first word"},
                 0,
                 "",
                 false,
                 [this](std::string_view shell) {
                   shell_ = std::string(shell);
                   return Status();
                 }});
    options.first_word("shell");
  }

  int run(const Options& /*options*/) override {
    std::string script;
    if (shell_ == "bash") {
      script = bash_script();
    } else if (shell_ == "zsh") {
      script = zsh_script();
    } else if (shell_ == "fish") {
      script = fish_script();
    } else {
      return fail(invalid_argument(fmt::format("shell must be one of bash, zsh, fish, not '{}'", shell_)));
    }
    fmt::print("{}", script);
    return kExitOk;
  }

 private:
  std::string shell_;
};

}  // namespace

CommandInfo completion_command() {
  return {"completion", "zipage completion {bash,zsh,fish}", "Completions for a shell.",
          [] { return std::unique_ptr<Command>(std::make_unique<Completion>()); }};
}

}  // namespace zipage::apps
