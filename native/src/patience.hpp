// How long a thread of the pool may spin before it sleeps.
//
// Who sleeps gives the core away, and in a virtual machine that is the host's to give: beside other guests, it came back
// late, or as the second thread of a core that was busy. Calls of bert_base then took 1.5 to 1.9 times as long, for a
// second or two. But who spins takes a core that others may want. So a thread may spin for an eighth of the time that it
// worked, wherever that falls: its waits end within that where they end soon at all, and nobody loses more than an
// eighth of what the work itself takes.
#pragma once

#include <algorithm>
#include <chrono>

#include "fp_control.hpp"

namespace tierup {

template <typename Clock>
class PatienceOf {
 public:
  using Duration = std::chrono::nanoseconds;

  // A fork-join costs about 0.13 µs while workers spin and 4.7 µs when they have parked: each wait has this for free. The
  // gaps between the kernels of one call are shorter, the gaps between requests mostly longer.
  static constexpr Duration kLeast = std::chrono::microseconds{50};
  // Of bert_base's waits above the least, 95 in 100 end within this. Longer ones are for threads that lost their core.
  static constexpr Duration kMost = std::chrono::milliseconds{2};
  static constexpr int kShare = 8;

  // From now on the thread works: what came before counts for nothing.
  void begin_work() { since_ = Clock::now(); }

  // Spins until `ready()`, until it is `hopeless()` or for as long as it may, which is no longer than what is free where
  // others want the cores (`crowded`). What passed since the last wait was work.
  template <typename Ready, typename Hopeless>
  bool spin_until(Ready ready, Hopeless hopeless, bool crowded) {
    const auto began = Clock::now();
    earned_ = std::min<Duration>(earned_ + (began - since_) / kShare, kMost);
    const auto end = began + (crowded ? kLeast : std::max(earned_, kLeast));
    since_ = began;
    bool found = false;
    while (!(found = pause_until(ready)) && !hopeless() && (since_ = Clock::now()) < end) {
    }
    earned_ -= std::min<Duration>(since_ - began, earned_);
    return found;
  }

 private:
  // For about as long as the clock takes to be read some times; what is shorter than that counts as work.
  template <typename Ready>
  static bool pause_until(Ready ready) {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      cpu_pause();
    }
    return false;
  }

  typename Clock::time_point since_{};  // when it last looked at the clock
  Duration earned_{0};
};

using Patience = PatienceOf<std::chrono::steady_clock>;

}  // namespace tierup
