#include "base/thread_role.h"

#include <pthread.h>
#include <sched.h>

namespace zipage {

void name_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
}

void wake_without_preempting() {
  const sched_param parameters{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &parameters);
}

}  // namespace zipage
