// The commands of the one binary. Each lives in a file of its own: flags -> config -> call.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "options.h"

namespace zipage::apps {

class Command {
 public:
  virtual ~Command() = default;
  virtual void declare(Options& options) = 0;
  // Runs with the flags that `options` has read. Returns the exit code.
  virtual int run(const Options& options) = 0;
};

struct CommandInfo {
  std::string_view name;
  std::string_view synopsis;  // "zipage generate [MODEL] [FLAGS]"
  std::string_view about;
  std::unique_ptr<Command> (*make)();
};

std::span<const CommandInfo> commands();

CommandInfo serve_command();
CommandInfo generate_command();
CommandInfo inspect_command();
CommandInfo demo_command();
CommandInfo chat_command();
CommandInfo eval_command();
CommandInfo bench_throughput_command();
CommandInfo bench_serve_command();
CommandInfo bench_latency_command();
CommandInfo run_batch_command();
CommandInfo completion_command();

}  // namespace zipage::apps
