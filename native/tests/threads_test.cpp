// Threads beside those of the host.
#include "threads.hpp"

#include <sys/resource.h>

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

TEST(a_thread_steps_back_alone) {
  const int before = niceness();
  int inside = 0;
  start_thread([&] {
    step_back();
    inside = niceness();
  }).join();
  CHECK(inside == 19);
  CHECK(niceness() == before);
}

}  // namespace
}  // namespace tierup::test
