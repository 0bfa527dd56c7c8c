// Calls that wait for something far better, which is nearly there. They look for its end themselves, and at the clock:
// nobody has to wake them, and a forked child, in which nobody could, goes on in time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace tierup {

class Hold {
 public:
  using Clock = std::chrono::steady_clock;

  // From now on calls wait, but no longer than this in all.
  void begin(std::chrono::nanoseconds longest) { until_.store((Clock::now() + longest).time_since_epoch().count()); }
  void end() { until_.store(kNobody); }
  bool holds() const { return until_.load(std::memory_order_relaxed) != kNobody; }

  // Sleeps until the end, but only so long; whether there is still something to wait for.
  bool sleep(std::chrono::nanoseconds longest) const {
    const Clock::time_point back = Clock::now() + longest;
    for (;;) {
      const Clock::rep until = until_.load();
      const Clock::time_point now = Clock::now();
      if (until == kNobody || now.time_since_epoch().count() >= until) return false;
      if (now >= back) return true;
      std::this_thread::sleep_for(kLook);
    }
  }

 private:
  static constexpr Clock::rep kNobody = 0;
  static constexpr std::chrono::microseconds kLook{200};
  std::atomic<Clock::rep> until_{kNobody};
};

}  // namespace tierup
