// How long threads of the pool may spin, with a clock that a test turns.
#include "patience.hpp"

#include "check.hpp"

namespace tierup::test {
namespace {

using std::chrono::microseconds;

struct Turned {
  using time_point = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
  static inline time_point at{std::chrono::hours{1}};
  static inline microseconds step{0};  // that each look takes

  static time_point now() {
    at += step;
    return at;
  }
};

using TurnedPatience = PatienceOf<Turned>;

class Thread {
 public:
  Thread() { patience_.begin_work(); }

  // How long it spins for something that never comes, after so much work.
  microseconds spins(microseconds work, bool crowded = false) {
    Turned::at += work;
    const auto began = Turned::at;
    Turned::step = microseconds{1};
    CHECK(!patience_.spin_until([] { return false; }, [] { return false; }, crowded));
    Turned::step = microseconds{0};
    const auto spun = std::chrono::duration_cast<microseconds>(Turned::at - began);
    patience_.begin_work();
    return spun;
  }

  // Works, and then waits for so long for what does come. Whether that is seen while it spins.
  bool sees(microseconds work, microseconds until) {
    Turned::at += work;
    const auto comes = Turned::at + until;
    Turned::step = microseconds{1};
    const bool seen = patience_.spin_until([&] { return Turned::at >= comes; }, [] { return false; }, false);
    Turned::step = microseconds{0};
    return seen;
  }

  void begins_work() { patience_.begin_work(); }

  bool gives_up() {
    return !patience_.spin_until([] { return false; }, [] { return true; }, false);
  }

 private:
  TurnedPatience patience_;
};

bool about(microseconds found, microseconds wanted) {
  return found >= wanted && found <= wanted + microseconds{3};
}

TEST(every_wait_has_some_patience) {
  Thread thread;
  for (int i = 0; i < 3; ++i) CHECK(about(thread.spins(microseconds{0}), microseconds{50}));
}

TEST(an_eighth_of_the_work_may_be_spun) {
  Thread thread;
  CHECK(about(thread.spins(microseconds{8000}), microseconds{1000}));
  CHECK(about(thread.spins(microseconds{0}), microseconds{50}));  // it is used up
  CHECK(about(thread.spins(microseconds{4000}), microseconds{500}));
}

TEST(no_wait_has_more_than_the_most) {
  Thread thread;
  CHECK(about(thread.spins(std::chrono::seconds{10}), microseconds{2000}));
  CHECK(about(thread.spins(microseconds{0}), microseconds{50}));
}

TEST(what_was_waited_for_and_came_is_paid_for_too) {
  Thread thread;
  CHECK(thread.sees(microseconds{8000}, microseconds{600}));
  CHECK(about(thread.spins(microseconds{0}), microseconds{400}));
  CHECK(thread.sees(microseconds{8000}, microseconds{900}));
  CHECK(!thread.sees(microseconds{0}, microseconds{900}));
}

TEST(where_others_want_the_cores_there_is_no_more_than_what_is_free) {
  Thread thread;
  CHECK(about(thread.spins(microseconds{8000}, true), microseconds{50}));
  CHECK(about(thread.spins(microseconds{0}), microseconds{950}));  // the rest is kept
}

TEST(who_waits_in_vain_gives_up_at_once) {
  Thread thread;
  const auto began = Turned::at;
  CHECK(thread.gives_up());
  CHECK(Turned::at == began);
}

TEST(what_lies_before_the_work_earns_nothing) {
  Thread thread;
  Turned::at += std::chrono::seconds{1};  // between two calls
  thread.begins_work();
  CHECK(about(thread.spins(microseconds{0}), microseconds{50}));
}

}  // namespace
}  // namespace tierup::test
