// When a call is better off without the pool: on a machine whose cores others want, too.
#pragma once

#include <algorithm>
#include <chrono>

namespace tierup {

// A worker that loses its core in the middle of a piece keeps the whole call waiting until it gets one back, some
// milliseconds later. Such a wait is a debt. It is paid by running alone until that has lost as much, or if waits follow
// soon upon each other twice as much, four times, and so on: a machine that stays crowded is asked once in a while only.
class Crowding {
 public:
  using Clock = std::chrono::steady_clock;

  bool is_expected() const { return owed_ > Clock::duration::zero(); }

  // A job went on from `began` to `parked` on the caller's thread, which then waited for others until now.
  void waited(Clock::time_point began, Clock::time_point parked, Clock::time_point now) {
    const auto lost = now - parked;
    if (lost < kLeast || lost < (parked - began) / 2) return;  // somebody's piece is always the last one
    factor_ = now - paid_ > kCalm ? 1 : std::min(2 * factor_, kMostFactor);
    owed_ = factor_ * std::min<Clock::duration>(lost, kMost);
  }

  // A job went on from `began` until now without the others, of `threads` in all.
  void ran_alone(Clock::time_point began, Clock::time_point now, int threads) {
    owed_ -= (now - began) - (now - began) / threads;
    if (!is_expected()) paid_ = now;
  }

 private:
  static constexpr std::chrono::microseconds kLeast{300};
  static constexpr std::chrono::milliseconds kMost{20};
  static constexpr std::chrono::milliseconds kCalm{100};
  static constexpr int kMostFactor = 32;

  Clock::duration owed_{0};
  Clock::time_point paid_{};
  int factor_ = 1;
};

}  // namespace tierup
