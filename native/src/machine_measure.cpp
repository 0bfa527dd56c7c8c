// Runs the measuring kernels on pinned threads that start together, and keeps the best of several short runs.
// A short run mostly escapes interruptions; the best one is the machine's, the others are its neighbours'.
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>

#include "machine.hpp"

namespace tierup {
namespace {

constexpr double kRunSeconds = 0.008;
constexpr int kRuns = 8;
constexpr int kMaxRuns = 32;           // as long as every run so far was disturbed
constexpr double kUndisturbed = 0.97;  // of the cores
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

double seconds_on(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void pin_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  // A CPU that was taken away meanwhile is no error: the kernel places the thread then.
  (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

// Spins, because threads woken by the kernel would start tens of µs apart.
class SpinBarrier {
 public:
  explicit SpinBarrier(std::size_t threads) : threads_(threads) {}

  void wait() {
    const std::size_t round = round_.load();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      arrived_.store(0);
      round_.fetch_add(1);
      return;
    }
    while (round_.load(std::memory_order_acquire) == round) std::this_thread::yield();
  }

 private:
  const std::size_t threads_;
  std::atomic<std::size_t> arrived_{0}, round_{0};
};

// Calls body(i) on thread i of cpus.size(). If the system refuses a thread, none of them runs its body.
template <class Body>
void on_threads(const std::vector<int>& cpus, const Body& body) {
  enum Gate { closed, open, cancelled };
  std::atomic<Gate> gate{closed};
  std::vector<std::thread> threads;
  threads.reserve(cpus.size());
  const auto release = [&](Gate state) {
    gate.store(state);
    gate.notify_all();
  };
  try {
    for (std::size_t i = 0; i < cpus.size(); ++i) {
      threads.emplace_back([&, i] {
        gate.wait(closed);
        if (gate.load() == cancelled) return;
        pin_this_thread(cpus[i]);
        body(i);
      });
    }
    release(open);
  } catch (...) {
    release(cancelled);
    for (std::thread& thread : threads) thread.join();
    throw;
  }
  for (std::thread& thread : threads) thread.join();
}

// How often to repeat so that one run takes kRunSeconds.
template <class Repeat>
std::int64_t calibrate(const Repeat& repeat) {
  for (std::int64_t count = 1;; count *= 2) {
    const double begin = seconds_on(CLOCK_MONOTONIC);
    repeat(count);
    const double took = seconds_on(CLOCK_MONOTONIC) - begin;
    const double wanted = static_cast<double>(count) * kRunSeconds / took;
    if (took >= kRunSeconds / 4) return std::max<std::int64_t>(1, static_cast<std::int64_t>(wanted));
  }
}

struct Timing {
  double begin, end, cpu;
};

// One run: all work over the time from the first start to the last finish.
Rate rate_of(const std::vector<Timing>& timings, double work) {
  double begin = timings[0].begin, end = timings[0].end, cpu = 0, wall = 0;
  for (const Timing& timing : timings) {
    begin = std::min(begin, timing.begin);
    end = std::max(end, timing.end);
    cpu += timing.cpu;
    wall += timing.end - timing.begin;
  }
  return {work / (end - begin), std::min(1.0, cpu / wall)};
}

// prepare(i) runs once on thread i, then repeat(i, count) in each run; `work` is what one repetition is worth.
template <class Prepare, class Repeat>
Rate best_rate(const std::vector<int>& cpus, double work, const Prepare& prepare, const Repeat& repeat) {
  if (cpus.empty()) throw std::invalid_argument("a measurement needs at least one CPU");
  SpinBarrier barrier(cpus.size());
  std::vector<Timing> timings(cpus.size());
  std::int64_t count = 0;
  bool enough = false;  // like count and best, written by thread 0 between two barriers
  Rate best{0, 1};
  on_threads(cpus, [&](std::size_t me) {
    prepare(me);
    if (me == 0) count = calibrate([&](std::int64_t trial) { repeat(me, trial); });
    for (int run = 1;; ++run) {
      barrier.wait();
      if (enough) return;
      const double cpu = seconds_on(CLOCK_THREAD_CPUTIME_ID);
      timings[me].begin = seconds_on(CLOCK_MONOTONIC);
      repeat(me, count);
      timings[me].end = seconds_on(CLOCK_MONOTONIC);
      timings[me].cpu = seconds_on(CLOCK_THREAD_CPUTIME_ID) - cpu;
      barrier.wait();
      if (me != 0) continue;
      const Rate rate = rate_of(timings, work * static_cast<double>(count) * static_cast<double>(cpus.size()));
      if (rate.per_s > best.per_s) best = rate;
      enough = run >= (best.quiet_share >= kUndisturbed ? kRuns : kMaxRuns);
    }
  });
  return best;
}

struct Free {
  void operator()(std::byte* data) const { std::free(data); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

// Not touched yet: the thread that reads it does so first, so that it lies on that thread's NUMA node.
Buffer allocate(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : 4096;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
  if (!buffer) throw std::bad_alloc();
  // Without huge pages the walk through the page tables would be measured, not the memory.
  if (bytes >= kHugePageBytes) (void)madvise(buffer.get(), rounded, MADV_HUGEPAGE);
  return buffer;
}

template <class T>
void keep(T value) {  // the result is used, as far as the compiler can tell
  __asm__ volatile("" : : "m"(value));
}

}  // namespace

Rate measure_fma_flops(const std::vector<int>& cpus) {
  constexpr std::int64_t kSteps = 1024;
  const MachineKernels& kernels = machine_kernels();
  return best_rate(
      cpus, static_cast<double>(kSteps * kernels.flops_per_step), [](std::size_t) {},
      [&](std::size_t, std::int64_t count) { keep(kernels.fma_steps(kSteps * count)); });
}

Rate measure_read_bytes(const std::vector<int>& cpus, std::size_t bytes_each) {
  const std::size_t bytes = std::max(kReadBlockBytes, bytes_each / kReadBlockBytes * kReadBlockBytes);
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < cpus.size(); ++i) buffers.push_back(allocate(bytes));
  const MachineKernels& kernels = machine_kernels();
  return best_rate(
      cpus, static_cast<double>(bytes),
      // Pages that were never written all map to one page of zeros, which would be read from L1.
      [&](std::size_t me) { std::memset(buffers[me].get(), 1, bytes); },
      [&](std::size_t me, std::int64_t count) { keep(kernels.read_passes(buffers[me].get(), bytes, count)); });
}

}  // namespace tierup
