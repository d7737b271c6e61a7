#include "base/thread_role.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <string>
#include <thread>

namespace zipage {
namespace {

TEST(ThreadRole, ConcernsTheCallingThreadAlone) {
  const int before = sched_getscheduler(0);
  std::array<char, 16> name{};
  int policy = -1;
  std::thread([&] {
    name_thread("zipage-test");
    wake_without_preempting();
    pthread_getname_np(pthread_self(), name.data(), name.size());
    policy = sched_getscheduler(0);
  }).join();
  EXPECT_EQ(std::string(name.data()), "zipage-test");
  EXPECT_EQ(policy, SCHED_BATCH);
  EXPECT_EQ(sched_getscheduler(0), before);
}

}  // namespace
}  // namespace zipage
