// The ring of call times, and the draws that choose who answers.
#include "call_times.hpp"

#include "check.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

TEST(the_last_calls_are_kept_in_order) {
  CallTimes times;
  CHECK(times.size() == 0);
  for (uint64_t i = 0; i < 3 * CallTimes::kKept + 5; ++i) times.note({i, 0, i});
  CHECK(times.size() == CallTimes::kKept);
  CHECK(times.written() == 3 * CallTimes::kKept + 5);
  CHECK(times.at(0).signature == 2 * CallTimes::kKept + 5);
  CHECK(times.at(CallTimes::kKept - 1).signature == 3 * CallTimes::kKept + 4);
}

TEST(of_short_calls_few_are_timed) {
  CallTimes times;
  const auto timed_of_64 = [&](uint64_t nanoseconds) {
    times.note({0, 0, nanoseconds});
    int timed = 0;
    for (int i = 0; i < 64; ++i) {
      if (!times.due(false)) continue;
      times.note({0, 0, nanoseconds});
      ++timed;
    }
    return timed;
  };
  CHECK(timed_of_64(1'000'000) == 64);
  CHECK(timed_of_64(10'000) == 16);
  CHECK(timed_of_64(2'000) == 2);
  CHECK(times.due(true));
}

TEST(draws_follow_the_seed_and_the_share) {
  Draw one(7), same(7), other(8);
  int drawn = 0, differ = 0;
  for (int i = 0; i < 10'000; ++i) {
    const bool is = one(0.25);
    CHECK(is == same(0.25));
    differ += is != other(0.25);
    drawn += is;
  }
  CHECK(drawn > 2300 && drawn < 2700);  // 4.6 standard deviations
  CHECK(differ > 0);
  CHECK(!one(0.0) && one(1.0));
}

}  // namespace
}  // namespace tierup::test
