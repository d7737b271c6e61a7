// Ctrl-C as a flag. The first one asks the command to end cleanly, a second one ends the process at once.
#pragma once

namespace zipage::apps {

// While it lives SIGINT and SIGTERM set the flag instead of ending the process. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
  // The next interrupt is a first one again (a chat goes on after a stopped answer).
  static void clear();
};

}  // namespace zipage::apps
