// zipage COMMAND [FLAGS]: finds the command, lets it declare its flags, reads them and runs it.
#include <fmt/format.h>

#include <exception>

#include "base/nearest.h"
#include "command.h"
#include "exit_code.h"
#include "version.h"

namespace zipage::apps {

std::span<const CommandInfo> commands() {
  static const CommandInfo kCommands[] = {serve_command(),
                                          generate_command(),
                                          chat_command(),
                                          inspect_command(),
                                          demo_command(),
                                          eval_command(),
                                          bench_throughput_command(),
                                          bench_serve_command(),
                                          bench_latency_command(),
                                          run_batch_command(),
                                          completion_command()};
  return kCommands;
}

namespace {

void print_overview(FILE* to) {
  fmt::print(to, "usage: zipage COMMAND [FLAGS]\n\nServes reasoning models in little KV memory.\n\nCommands:\n");
  for (const CommandInfo& command : commands()) fmt::print(to, "  {:<16} {}\n", command.name, command.about);
  fmt::print(to,
             "\n  zipage COMMAND --help    the command's flags\n"
             "  zipage --version\n\n"
             "Exit status: 0 done, 1 some requests failed, 2 wrong usage, 3 the model or the\n"
             "machine cannot do it, 130 interrupted (what was done so far is written).\n");
}

int unknown_command(std::string_view name) {
  std::vector<std::string_view> names;
  for (const CommandInfo& command : commands()) names.push_back(command.name);
  const std::string_view nearest = nearest_word(name, names);
  return fail(invalid_argument(
      fmt::format("unknown command '{}'{}", name,
                  nearest.empty() ? "; zipage --help lists all" : fmt::format(", did you mean '{}'?", nearest))));
}

int run(const CommandInfo& info, const std::vector<std::string>& words) {
  const std::unique_ptr<Command> command = info.make();
  Options options(info.synopsis, info.about);
  command->declare(options);
  const Result<Options::Outcome> outcome = options.parse(words);
  if (!outcome.ok()) return fail(outcome.status());
  if (*outcome == Options::Outcome::kHelp) {
    fmt::print("{}", options.help());
    return kExitOk;
  }
  return command->run(options);
}

int dispatch(const std::vector<std::string>& words) {
  if (words.empty()) {
    print_overview(stderr);
    return kExitUsage;
  }
  const std::string& name = words.front();
  if (name == "--help" || name == "-h" || name == "help") {
    print_overview(stdout);
    return kExitOk;
  }
  if (name == "--version" || name == "version") {
    fmt::print("zipage {}\n", kVersion);
    return kExitOk;
  }
  // "bench throughput" is the command bench-throughput.
  if (name == "bench" && words.size() > 1 && !words[1].starts_with('-')) {
    std::vector<std::string> joined(words.begin() + 1, words.end());
    joined.front().insert(0, "bench-");
    return dispatch(joined);
  }
  for (const CommandInfo& info : commands()) {
    if (info.name == name) return run(info, {words.begin() + 1, words.end()});
  }
  return unknown_command(name);
}

}  // namespace
}  // namespace zipage::apps

int main(int argc, char** argv) {
  // A device or I/O failure that nobody else had to catch.
  try {
    return zipage::apps::dispatch({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    return zipage::apps::fail(zipage::Status(zipage::StatusCode::kInternal, error.what()));
  }
}
