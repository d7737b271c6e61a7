#include "interrupt.h"

#include <unistd.h>

#include <csignal>

#include "exit_code.h"

namespace zipage::apps {
namespace {

volatile std::sig_atomic_t g_interrupts = 0;

void on_signal(int /*signal*/) {
  if (g_interrupts > 0) _exit(kExitInterrupted);
  g_interrupts = 1;
}

void install(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  // No SA_RESTART: a read that waits for the user comes back.
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  g_interrupts = 0;
  install(on_signal);
}
InterruptGuard::~InterruptGuard() {
  install(SIG_DFL);
}

bool InterruptGuard::interrupted() {
  return g_interrupts > 0;
}
void InterruptGuard::clear() {
  g_interrupts = 0;
}

}  // namespace zipage::apps
