// The thread pool: one fork-join at a time, workers that spin for a while (`Patience`) and then park.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#include "patience.hpp"

namespace tierup {

// A pool of `threads - 1` workers; the caller is the remaining thread. The number never changes, so whoever holds a
// pool may size its per-thread scratch by threads(). Pools are never destroyed: a worker may still be looking at its
// pool while the process exits.
class Pool {
 public:
  // Work on [begin, end). `thread` is below threads() and unique among the pieces that run at the same time.
  using RangeFn = void (*)(void* context, int64_t begin, int64_t end, int thread) noexcept;

  explicit Pool(int threads);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Runs `fn` over [0, range) in pieces of at least `grain` and returns when all are done. The pieces depend on range,
  // grain and threads() only, so a result that depends on the cut is the same in every run. If another call holds the
  // pool (or this is a call from inside a piece), the pieces run here, one after the other.
  void parallel_for(int64_t range, int64_t grain, RangeFn fn, void* context) noexcept;

  template <typename F>
  void parallel_for(int64_t range, int64_t grain, F&& body) noexcept {
    using Body = std::remove_reference_t<F>;
    parallel_for(
        range, grain,
        [](void* context, int64_t begin, int64_t end, int thread) noexcept {
          (*static_cast<Body*>(context))(begin, end, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Keeps the pool as a call would, until it is let go: other calls run their pieces one after the other meanwhile. For
  // trials, which see that way what calls of several threads take.
  void hold() noexcept;
  void let_go() noexcept { busy_.store(false, std::memory_order_release); }

  // Ends the workers and waits until they are gone; later calls run inline. For set_threads() and tests.
  void shutdown() noexcept;

 private:
  struct Job {
    RangeFn fn = nullptr;
    void* context = nullptr;
    int64_t range = 0;
    uint32_t pieces = 0;
    uint32_t fp_control = 0;
  };

  // What is left of one thread's share of a job: epoch << 32 | first piece << 16 | end; the core that the thread was last
  // seen on, -1 while it is parked; and how long it may spin, which it alone asks. A line of its own.
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};
    std::atomic<int> core{-1};
    Patience patience;
  };

  uint32_t count_pieces(int64_t range, int64_t grain) const;
  int64_t claim(uint32_t epoch, int thread) noexcept;
  bool steal(uint32_t epoch, int thread) noexcept;
  void start_workers() noexcept;
  void work(int thread) noexcept;
  uint32_t wait_for_job(uint32_t seen, int thread) noexcept;
  bool works_here(int thread) const noexcept;
  bool worker_is_here() const noexcept;
  bool is_crowded() const noexcept;
  void run_pieces(uint32_t epoch, int thread) noexcept;
  void run_alone(const Job& job) noexcept;
  void share(const Job& job) noexcept;
  void wait_until_done(uint32_t pieces) noexcept;

  const int threads_;
  bool started_ = false;              // guarded by busy_
  std::vector<std::thread> workers_;  // guarded by busy_
  Job job_;                           // written by the holder of busy_ while no piece of the job can be claimed
  Pool* previous_ = nullptr;          // keeps replaced pools reachable, for leak checkers
  friend void set_threads(int threads);

  // Each on a cache line of its own: workers spin on epoch_, claim from shares_ and report to done_.
  alignas(64) std::atomic<bool> busy_{false};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<uint32_t> parked_{0};
  std::atomic<uint32_t> taken_at_{0x80000000};  // the epoch in which another call last found the pool taken
  std::atomic<bool> stop_{false};
  std::vector<Share> shares_;  // of each thread
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<bool> caller_parked_{false};
};

// The process's pool: made on first use, and afresh in a forked child (which has none of its parent's threads).
Pool& pool();

// Replaces the process's pool with one of `threads` threads (at least 1), unless it has as many already. Calls that run
// keep the pool they have.
void set_threads(int threads);

// The number of threads that pool() has or will have.
int threads();

}  // namespace tierup
