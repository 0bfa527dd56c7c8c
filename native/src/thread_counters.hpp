// Hardware counters of whichever thread asks, kept open between the calls that are watched.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <span>

#include "perf_counters.hpp"

namespace tierup {

constexpr size_t kRegionCounters = 4;

// Those of the four that we want which count here; found once, by `prepare`, which takes up to a millisecond.
class RegionCounters {
 public:
  // The process's own.
  static RegionCounters& instance();

  explicit RegionCounters(const PerfSystem& kernel = linux_perf()) : system(kernel) {}

  // Tries them, once. Until then none is counted, so that no call has to wait for it.
  void prepare();

  // What counts, in the order of their counts; empty before `prepare`, or where nothing counts.
  std::span<const Counter> usable() const;

  const PerfSystem& system;

 private:
  std::once_flag tried_;
  std::array<Counter, kRegionCounters> usable_{};
  std::atomic<size_t> count_{0};
};

// One thread's group. A forked child has its parent's descriptors, which count the parent: it opens its own.
class ThreadCounters {
 public:
  // The calling thread's.
  static ThreadCounters& of_this_thread(RegionCounters& counters);

  explicit ThreadCounters(RegionCounters& counters) : counters_(counters), group_(counters.system) {}

  // Begin to count; false if there is nothing that counts.
  bool start();
  void stop() { group_.stop(); }
  bool read(CounterSample& sample) const { return group_.read(sample) == 0; }
  size_t size() const { return opened_; }

 private:
  bool open();

  RegionCounters& counters_;
  CounterGroup group_;
  size_t opened_ = 0;
  pid_t process_ = 0;  // that the group was opened in
};

}  // namespace tierup
