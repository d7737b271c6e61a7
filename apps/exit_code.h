// How the process ends. Documented in --help and docs/cli.md.
#pragma once

#include "zipage/status.h"

namespace zipage::apps {

enum ExitCode : int {
  kExitOk = 0,
  kExitSomeFailed = 1,     // the command ran, but some of its requests failed
  kExitUsage = 2,          // a flag, key or file of requests is wrong
  kExitCannotRun = 3,      // the model or the machine cannot do it
  kExitInterrupted = 130,  // Ctrl-C; what was done so far is written
};

// Prints the status as one line on stderr and returns the code that it means.
int fail(const Status& status);

}  // namespace zipage::apps
