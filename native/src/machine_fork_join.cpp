// Fork-join latency on the run time's own pool.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "machine.hpp"
#include "pool.hpp"

namespace tierup {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTries = 5;  // each with new threads: the kernel may have put two on one core, and leaves them there
constexpr int kWarmUp = 256;  // loops; the kernel takes some milliseconds to give each new thread a core of its own
constexpr int kSamples = 15;
constexpr int kLoopsSpinning = 32;                 // a single loop takes less than a clock can tell
constexpr std::chrono::milliseconds kIdle{4};      // longer than workers ever spin before they park
constexpr std::chrono::microseconds kPolite{100};  // whoever is not here by then may need this very core
constexpr std::chrono::milliseconds kGiveUp{200};  // a worker that takes longer was not started at all

// A loop in which every thread of the pool takes one piece and holds it until the last one has come. In an empty loop
// the caller would take most pieces itself before any worker had woken up.
class Roll {
 public:
  explicit Roll(int threads) : pool_(threads) {}
  ~Roll() { pool_.shutdown(); }

  void call() {
    arrived_.store(0);
    pool_.parallel_for(pool_.threads(), 1, [this](int64_t, int64_t, int) { arrive(); });
  }

  bool complete() const { return complete_.load(); }

  // Threads that waited longer than a spinning worker could ever make them: one of the others had no core.
  int late() const { return late_.load(); }

 private:
  void arrive() {
    arrived_.fetch_add(1);
    for (int i = 0; i < 1000; ++i) {  // the clock costs as much as the whole loop does
      if (all_here()) return;
    }
    const auto begin = Clock::now();
    bool late = false;
    while (!all_here()) {
      const auto waited = Clock::now() - begin;
      if (!complete() || waited > kGiveUp) return complete_.store(false);  // one is missing: nobody waits any more
      if (waited <= kPolite) continue;
      if (!std::exchange(late, true)) late_.fetch_add(1);
      std::this_thread::yield();
    }
  }

  bool all_here() const { return arrived_.load() >= pool_.threads(); }

  Pool pool_;  // not the process's: a call may hold that one
  std::atomic<int> arrived_{0}, late_{0};
  std::atomic<bool> complete_{true};
};

// A quarter of the samples are faster. The median would tell of our neighbours as soon as they use half of the time.
template <class Sample>
double quartile_us(const Sample& sample) {
  std::vector<double> samples(kSamples);
  std::generate(samples.begin(), samples.end(), sample);
  std::nth_element(samples.begin(), samples.begin() + kSamples / 4, samples.end());
  return samples[kSamples / 4];
}

double loops_us(Roll& roll, int loops) {
  const auto begin = Clock::now();
  for (int i = 0; i < loops; ++i) roll.call();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / loops;
}

// With new threads; zeros if some could not be started.
ForkJoin try_fork_join(int threads) {
  Roll roll(threads);
  loops_us(roll, 1);  // starts the workers
  if (!roll.complete()) return {};
  loops_us(roll, kWarmUp);
  ForkJoin result;
  const int late_before = roll.late();
  result.spinning_us = quartile_us([&] { return loops_us(roll, kLoopsSpinning); });
  result.quiet_share = std::max(0.0, 1 - (roll.late() - late_before) / double{kSamples * kLoopsSpinning});
  result.parked_us = quartile_us([&] {
    std::this_thread::sleep_for(kIdle);
    return loops_us(roll, 1);
  });
  return roll.complete() ? result : ForkJoin{};
}

}  // namespace

ForkJoin measure_fork_join(int threads) {
  if (threads < 2) return {};
  ForkJoin best = try_fork_join(threads);
  for (int i = 1; i < kTries && best.spinning_us > 0; ++i) {
    const ForkJoin next = try_fork_join(threads);
    if (next.spinning_us == 0) continue;
    best.spinning_us = std::min(best.spinning_us, next.spinning_us);
    best.parked_us = std::min(best.parked_us, next.parked_us);
    best.quiet_share = std::max(best.quiet_share, next.quiet_share);
  }
  return best;
}

}  // namespace tierup
