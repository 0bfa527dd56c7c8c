// A thread that rests now and then, and one that need not.
#include "rests.hpp"

#include <sys/resource.h>
#include <time.h>

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

TEST(beginning_and_ending_twice_is_as_good_as_once) {
  begin_rests(0.0);
  begin_rests(0.0);
  end_rests();
  end_rests();
  CHECK(sleeps_in_a_job() < 4);
}

}  // namespace
}  // namespace tierup::test
