// Hardware counters of the calling thread, through perf_event.
// The border to the kernel is a table of functions in C++, not a Python callable, because regions read their counters
// on the hot path, where no Python runs: tests put their fake exactly where the real call is made.
#pragma once

#include <linux/perf_event.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tierup {

// Each answers like the system call: a value, or −1 with errno set.
struct PerfSystem {
  int (*open)(perf_event_attr* attr, pid_t pid, int cpu, int group_fd, unsigned long flags);
  int (*control)(int fd, unsigned long request, unsigned long argument);
  ssize_t (*read)(int fd, void* buffer, std::size_t bytes);
  int (*close)(int fd);
};
const PerfSystem& linux_perf();

struct Counter {
  const char* name;
  std::uint32_t type;    // PERF_TYPE_…
  std::uint64_t config;  // PERF_COUNT_…
  bool always_counts;    // zero after real work means that nobody counts
};
std::span<const Counter> hardware_counters();

constexpr std::size_t kMaxGroup = 8;

// What the kernel has counted since the group was opened. When there are more events than hardware counters, the
// kernel takes turns: the group then ran for running_ns out of enabled_ns.
struct CounterSample {
  std::uint64_t enabled_ns = 0;
  std::uint64_t running_ns = 0;
  std::array<std::uint64_t, kMaxGroup> counts{};
};

// The counts between two samples, scaled up to the whole time. False, and nothing written, if the group never ran in
// between: then there is no figure.
bool counts_between(const CounterSample& before, const CounterSample& after, std::span<double> counts);

// Counters that the kernel starts and stops together. They count the thread that opened them, in user space only (which
// needs the least rights); a pool opens one group a thread. After open, nothing allocates.
class CounterGroup {
 public:
  explicit CounterGroup(const PerfSystem& system = linux_perf()) : system_(&system) {}
  ~CounterGroup() { close(); }
  CounterGroup(const CounterGroup&) = delete;
  CounterGroup& operator=(const CounterGroup&) = delete;

  // All return 0 or an errno. A group opens whole or not at all, and is stopped at first.
  int open(std::span<const Counter> counters);
  int start();
  int stop();
  int read(CounterSample& sample) const;
  void close();

 private:
  int control(unsigned long request) const;

  const PerfSystem* system_;
  std::array<int, kMaxGroup> fds_{};
  std::size_t size_ = 0;
};

struct CounterProbe {
  const char* name;
  int error;     // 0: it counts. ENODATA: it opens, but does not count. Otherwise the kernel's errno
  double count;  // over a short loop; 0 unless it counts
};

// Tries each counter by itself on a short loop.
std::vector<CounterProbe> probe_counters(std::span<const Counter> counters, const PerfSystem& system = linux_perf());

}  // namespace tierup
