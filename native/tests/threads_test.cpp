// Threads beside those of the host.
#include "threads.hpp"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>

#include "check.hpp"

namespace tierup::test {
namespace {

int niceness() { return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid))); }

TEST(a_thread_takes_no_signals_and_the_one_that_starts_it_still_does) {
  sigset_t inside, outside;
  sigemptyset(&inside);
  start_thread([&] { pthread_sigmask(SIG_BLOCK, nullptr, &inside); }).join();
  pthread_sigmask(SIG_BLOCK, nullptr, &outside);
  CHECK(sigismember(&inside, SIGINT) == 1 && sigismember(&inside, SIGUSR1) == 1);
  CHECK(sigismember(&outside, SIGINT) == 0 && sigismember(&outside, SIGUSR1) == 0);
}

TEST(a_thread_steps_back_alone_and_stays_in_turn) {
  const int before = niceness();
  int inside = 0, twice = 0, policy = -1;
  start_thread([&] {
    step_back();
    inside = niceness();
    step_back();
    twice = niceness();
    policy = sched_getscheduler(0);
  }).join();
  CHECK(inside == std::min(before + 10, 19) && twice == std::min(before + 20, 19));
  CHECK(policy == sched_getscheduler(0));
  CHECK(niceness() == before);
}

}  // namespace
}  // namespace tierup::test
