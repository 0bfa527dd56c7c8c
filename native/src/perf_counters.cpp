#include "perf_counters.hpp"

#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tierup {
namespace {

constexpr std::uint64_t cache_event(std::uint64_t cache, std::uint64_t op, std::uint64_t result) {
  return cache | op << 8 | result << 16;  // the encoding of perf_event_open(2)
}

constexpr Counter kHardware[] = {
    {"cycles", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES, true},
    {"instructions", PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS, true},
    {"cache references", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_REFERENCES, false},
    {"cache misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES, false},
    {"last-level loads", PERF_TYPE_HW_CACHE,
     cache_event(PERF_COUNT_HW_CACHE_LL, PERF_COUNT_HW_CACHE_OP_READ, PERF_COUNT_HW_CACHE_RESULT_ACCESS), false},
    {"last-level load misses", PERF_TYPE_HW_CACHE,
     cache_event(PERF_COUNT_HW_CACHE_LL, PERF_COUNT_HW_CACHE_OP_READ, PERF_COUNT_HW_CACHE_RESULT_MISS), false},
    {"branch misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_BRANCH_MISSES, false},
    {"stalled cycles, front end", PERF_TYPE_HARDWARE, PERF_COUNT_HW_STALLED_CYCLES_FRONTEND, false},
    {"stalled cycles, back end", PERF_TYPE_HARDWARE, PERF_COUNT_HW_STALLED_CYCLES_BACKEND, false},
};

perf_event_attr attributes(const Counter& counter, bool leads) {
  perf_event_attr attr;
  std::memset(&attr, 0, sizeof(attr));  // the kernel refuses stray bits in the fields it does not know
  attr.size = sizeof(attr);
  attr.type = counter.type;
  attr.config = counter.config;
  attr.disabled = leads;  // the others follow their leader
  attr.exclude_kernel = 1;
  attr.exclude_hv = 1;
  attr.read_format = PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  return attr;
}

// Long enough for a counter to tick, short enough to try all of them in well under a millisecond.
void short_work() {
  for (int i = 0; i < 20'000; ++i) __asm__ volatile("" ::: "memory");
}

CounterProbe probe(const Counter& counter, const PerfSystem& system) {
  CounterGroup group(system);
  CounterSample before, after;
  int error = group.open({&counter, 1});
  if (error == 0) error = group.start();
  if (error == 0) error = group.read(before);
  short_work();
  if (error == 0) error = group.stop();
  if (error == 0) error = group.read(after);
  double count = 0;
  if (error == 0 && (!counts_between(before, after, {&count, 1}) || (count == 0 && counter.always_counts))) {
    error = ENODATA;
  }
  return {counter.name, error, count};
}

}  // namespace

const PerfSystem& linux_perf() {
  static constexpr PerfSystem system{
      [](perf_event_attr* attr, pid_t pid, int cpu, int group_fd, unsigned long flags) {
        return static_cast<int>(::syscall(SYS_perf_event_open, attr, pid, cpu, group_fd, flags));
      },
      [](int fd, unsigned long request, unsigned long argument) { return ::ioctl(fd, request, argument); },
      [](int fd, void* buffer, std::size_t bytes) { return ::read(fd, buffer, bytes); },
      [](int fd) { return ::close(fd); },
  };
  return system;
}

std::span<const Counter> hardware_counters() { return kHardware; }

bool counts_between(const CounterSample& before, const CounterSample& after, std::span<double> counts) {
  if (after.running_ns <= before.running_ns) return false;
  const double scale = static_cast<double>(after.enabled_ns - before.enabled_ns) /
                       static_cast<double>(after.running_ns - before.running_ns);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    counts[i] = scale * static_cast<double>(after.counts[i] - before.counts[i]);
  }
  return true;
}

int CounterGroup::open(std::span<const Counter> counters) {
  if (size_ != 0) return EBUSY;
  if (counters.empty() || counters.size() > kMaxGroup) return EINVAL;
  for (const Counter& counter : counters) {
    const bool leads = size_ == 0;
    perf_event_attr attr = attributes(counter, leads);
    const int fd = system_->open(&attr, 0, -1, leads ? -1 : fds_[0], PERF_FLAG_FD_CLOEXEC);
    if (fd < 0) {
      const int error = errno;
      close();
      return error;
    }
    fds_[size_++] = fd;
  }
  return 0;
}

int CounterGroup::start() { return control(PERF_EVENT_IOC_ENABLE); }
int CounterGroup::stop() { return control(PERF_EVENT_IOC_DISABLE); }

int CounterGroup::control(unsigned long request) const {
  if (size_ == 0) return EBADF;
  return system_->control(fds_[0], request, PERF_IOC_FLAG_GROUP) < 0 ? errno : 0;
}

int CounterGroup::read(CounterSample& sample) const {
  if (size_ == 0) return EBADF;
  struct {  // the kernel's layout for this read_format
    std::uint64_t counters, enabled_ns, running_ns, counts[kMaxGroup];
  } answer;
  const std::size_t bytes = (3 + size_) * sizeof(std::uint64_t);
  ssize_t got;
  do {
    got = system_->read(fds_[0], &answer, bytes);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno;
  if (static_cast<std::size_t>(got) != bytes || answer.counters != size_) return EIO;
  sample.enabled_ns = answer.enabled_ns;
  sample.running_ns = answer.running_ns;
  for (std::size_t i = 0; i < size_; ++i) sample.counts[i] = answer.counts[i];
  return 0;
}

void CounterGroup::close() {
  while (size_ != 0) system_->close(fds_[--size_]);  // the leader last: its end would set the others free
}

std::vector<CounterProbe> probe_counters(std::span<const Counter> counters, const PerfSystem& system) {
  std::vector<CounterProbe> probes;
  for (const Counter& counter : counters) probes.push_back(probe(counter, system));
  return probes;
}

}  // namespace tierup
