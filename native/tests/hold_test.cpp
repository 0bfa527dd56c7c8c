// Calls that wait: until they are let go, or until the time is over.
#include "hold.hpp"

#include "check.hpp"

namespace tierup::test {
namespace {

using namespace std::chrono_literals;

TEST(nobody_waits_for_nothing) {
  const Hold hold;
  CHECK(!hold.holds());
  CHECK(!hold.sleep(1h));
}

TEST(whoever_waits_comes_back_now_and_then) {
  Hold hold;
  hold.begin(1h);
  CHECK(hold.holds());
  CHECK(hold.sleep(1ms));
  CHECK(hold.sleep(0ms));
}

TEST(it_ends_when_the_time_is_over) {
  Hold hold;
  hold.begin(5ms);
  const auto began = Hold::Clock::now();
  CHECK(!hold.sleep(1h));
  CHECK(Hold::Clock::now() - began >= 4ms);
}

TEST(it_ends_when_it_is_ended) {
  Hold hold;
  hold.begin(1h);
  std::thread other([&] {
    std::this_thread::sleep_for(5ms);
    hold.end();
  });
  CHECK(!hold.sleep(1h));
  CHECK(!hold.holds());
  other.join();
}

}  // namespace
}  // namespace tierup::test
