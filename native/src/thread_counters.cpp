#include "thread_counters.hpp"

#include <unistd.h>

namespace tierup {
namespace {

// Into hardware_counters(): cycles, instructions, cache misses, branch misses. Four fit the counters of most processors.
constexpr size_t kWanted[kRegionCounters] = {0, 1, 3, 6};

}  // namespace

RegionCounters& RegionCounters::instance() {
  static RegionCounters counters;
  return counters;
}

void RegionCounters::prepare() {
  std::call_once(tried_, [this] {
    size_t count = 0;
    for (const size_t wanted : kWanted) {
      const Counter& counter = hardware_counters()[wanted];
      if (probe_counters({&counter, 1}, system)[0].error == 0) usable_[count++] = counter;
    }
    count_.store(count, std::memory_order_release);
  });
}

std::span<const Counter> RegionCounters::usable() const {
  return {usable_.data(), count_.load(std::memory_order_acquire)};
}

ThreadCounters& ThreadCounters::of_this_thread(RegionCounters& counters) {
  thread_local ThreadCounters own(counters);
  return own;
}

bool ThreadCounters::open() {
  const pid_t process = ::getpid();
  if (process_ == process) return opened_ != 0;
  group_.close();
  opened_ = 0;
  const std::span<const Counter> usable = counters_.usable();
  if (usable.empty()) return false;  // perhaps later
  process_ = process;  // a refusal holds for the process: no descriptors left, or rights taken away
  if (group_.open(usable) == 0) opened_ = usable.size();
  return opened_ != 0;
}

bool ThreadCounters::start() { return open() && group_.start() == 0; }

}  // namespace tierup
