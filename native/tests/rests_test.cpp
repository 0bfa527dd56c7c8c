// A thread that rests now and then, and one that need not.
#include "rests.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <thread>

#include "check.hpp"

namespace tierup::test {
namespace {

// How often a thread sleeps while it uses 40 ms of a core.
long sleeps_in_a_job() {
  rusage before{}, after{};
  getrusage(RUSAGE_THREAD, &before);
  timespec began{}, now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &began);
  do {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  } while ((now.tv_sec - began.tv_sec) * 1'000'000'000 + now.tv_nsec - began.tv_nsec < 40'000'000);
  getrusage(RUSAGE_THREAD, &after);
  return after.ru_nvcsw - before.ru_nvcsw;
}

TEST(a_thread_rests_while_it_works) {
  begin_rests(0.0);
  CHECK(sleeps_in_a_job() >= 4);
  end_rests();
  CHECK(sleeps_in_a_job() < 4);
}

TEST(a_thread_that_got_less_than_its_share_does_not_rest) {
  begin_rests(2.0);  // of cores: more than one thread can have
  CHECK(sleeps_in_a_job() < 4);
  end_rests();
}

TEST(turns_are_short_where_another_wants_the_core) {
  cpu_set_t before, here;
  sched_getaffinity(0, sizeof before, &before);
  CPU_ZERO(&here);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &here);
  sched_setaffinity(0, sizeof here, &here);  // and whom it starts
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load(std::memory_order_relaxed)) {
    }
  });
  begin_rests(0.0);
  CHECK(sleeps_in_a_job() > 25);  // 20 turns of 2 ms, 80 of 0.5 ms
  end_rests();
  stop = true;
  other.join();
  sched_setaffinity(0, sizeof before, &before);
}

TEST(beginning_and_ending_twice_is_as_good_as_once) {
  begin_rests(0.0);
  begin_rests(0.0);
  end_rests();
  end_rests();
  CHECK(sleeps_in_a_job() < 4);
}

}  // namespace
}  // namespace tierup::test
