// The time-stamp counter: the cheapest clock there is, some nanoseconds a look. Its rate is found by comparison.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace tierup {

inline uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t now;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// How long a tick is. Found once, from when this was first asked for until at least 2 ms later: two looks at the other
// clock are off by some 50 ns, 0.003% of that. `start_ticks()` earlier saves the wait.
class TickRate {
 public:
  static TickRate& instance() {
    static TickRate rate;
    return rate;
  }

  double ns_per_tick() {
    static const double rate = measure();
    return rate;
  }

 private:
  using Clock = std::chrono::steady_clock;

  double measure() const {
    const auto ripe = began_ + std::chrono::milliseconds(2);
    std::this_thread::sleep_until(ripe);
    const auto now = Clock::now();
    const uint64_t passed = ticks() - began_ticks_;
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(now - began_).count();
    return passed == 0 ? 1.0 : static_cast<double>(nanoseconds) / static_cast<double>(passed);
  }

  const Clock::time_point began_ = Clock::now();
  const uint64_t began_ticks_ = ticks();
};

inline void start_ticks() { TickRate::instance(); }
inline double ns_per_tick() { return TickRate::instance().ns_per_tick(); }

}  // namespace tierup
