// The thread pool: coverage, nesting, contention, fork, exit.
#include "pool.hpp"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "check.hpp"
#include "fp_control.hpp"

namespace tierup::test {
namespace {

struct Covered {
  bool once;
  int64_t smallest;
};

Covered cover(Pool& workers, int64_t range, int64_t grain) {
  std::vector<std::atomic<int>> hits(static_cast<size_t>(range));
  std::atomic<int64_t> smallest{range};
  workers.parallel_for(range, grain, [&](int64_t begin, int64_t end, int thread) {
    if (thread < 0 || thread >= workers.threads()) std::abort();
    for (int64_t size = end - begin, seen = smallest; size < seen;) {
      if (smallest.compare_exchange_weak(seen, size)) break;
    }
    for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
  });
  bool once = true;
  for (const auto& hit : hits) once &= hit == 1;
  return {once, smallest};
}

TEST(covers_every_range_once) {
  for (const int threads : {1, 2, 3, 8}) {
    Pool workers(threads);
    for (const int64_t range : {0, 1, 2, 3, 17, 1000}) {
      for (const int64_t grain : {1, 2, 7, 100, 5000}) {
        const Covered covered = cover(workers, range, grain);
        CHECK(covered.once);
        CHECK(covered.smallest >= std::min(range, grain));
      }
    }
    workers.shutdown();
    CHECK(cover(workers, 100, 1).once);  // inline from now on
    workers.shutdown();                  // twice does no harm
  }
}

TEST(an_extreme_range_is_cut_without_overflow) {
  Pool workers(2);
  std::atomic<uint64_t> total{0};
  workers.parallel_for(INT64_MAX, 1,
                       [&](int64_t begin, int64_t end, int) { total += static_cast<uint64_t>(end - begin); });
  CHECK_EQUAL(total.load(), static_cast<uint64_t>(INT64_MAX));
  workers.parallel_for(-5, 1, [&](int64_t, int64_t, int) { total = 0; });
  CHECK(total != 0);
  workers.shutdown();
}

TEST(the_cut_does_not_depend_on_who_runs_it) {
  Pool workers(4);
  const auto cuts = [&] {
    std::vector<std::atomic<int>> starts(1000);
    workers.parallel_for(1000, 10, [&](int64_t begin, int64_t, int) { ++starts[static_cast<size_t>(begin)]; });
    std::vector<int> plain(starts.begin(), starts.end());
    return plain;
  };
  const std::vector<int> parallel = cuts();
  workers.shutdown();
  CHECK(cuts() == parallel);
}

TEST(shares_are_the_same_parts_of_every_range) {
  Pool workers(2);
  for (const int64_t range : {2, 56, 84, 98, 392}) {  // 84 = 32 · 2 + 20: longer pieces in front would be 48 and 36
    std::atomic<int> halves{0};
    workers.parallel_for(range, 1, [&](int64_t begin, int64_t, int) { halves += begin == range / 2; });
    CHECK_EQUAL(halves.load(), 1);
  }
  workers.shutdown();
}

TEST(nested_use_runs_inline) {
  Pool workers(3);
  std::atomic<int> count{0};
  workers.parallel_for(8, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      workers.parallel_for(10, 1, [&](int64_t from, int64_t to, int thread) {
        if (thread != 0) std::abort();
        count += static_cast<int>(to - from);
      });
    }
  });
  CHECK_EQUAL(count.load(), 80);
  workers.shutdown();
}

TEST(many_callers_share_one_pool) {
  Pool workers(3);
  std::atomic<int64_t> wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        std::atomic<int64_t> sum{0};
        workers.parallel_for(100, 3, [&](int64_t begin, int64_t end, int) {
          for (int64_t k = begin; k < end; ++k) sum += k;
        });
        wrong += sum != 4950;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_EQUAL(wrong.load(), 0);
  workers.shutdown();
}

TEST(wakes_parked_workers) {
  Pool workers(2);
  for (int i = 0; i < 5; ++i) {
    CHECK(cover(workers, 100, 1).once);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // well past the spin
  }
  workers.shutdown();
}

// A worker that has the last piece may take long: the caller parks and is woken.
TEST(waits_for_a_slow_worker) {
  Pool workers(2);
  std::atomic<int> slow{0};
  for (int i = 0; i < 20; ++i) {
    workers.parallel_for(2, 1, [&](int64_t, int64_t, int thread) {
      if (thread == 0) return std::this_thread::sleep_for(std::chrono::microseconds(200));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++slow;
    });
  }
  CHECK(slow > 0);
  workers.shutdown();
}

#if defined(__x86_64__)
TEST(workers_take_on_the_callers_denormal_mode) {
  Pool workers(4);
  constexpr uint32_t kFlush = 0x8040;  // flush to zero, denormals are zero
  const uint32_t before = fp_control();
  for (const uint32_t mode : {before | kFlush, before & ~kFlush}) {
    set_fp_control(mode);
    std::atomic<int> other{0};
    for (int i = 0; i < 50; ++i) {
      workers.parallel_for(64, 1, [&](int64_t, int64_t, int) { other += (fp_control() & kFlush) != (mode & kFlush); });
    }
    CHECK_EQUAL(other.load(), 0);
  }
  set_fp_control(before);
  workers.shutdown();
}
#endif

#if defined(__linux__)
// Whoever waits must sleep at once there, and be woken every time: nobody else has the core that would go on.
TEST(threads_of_one_core_wait_for_each_other) {
  cpu_set_t before, one;
  CHECK_EQUAL(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
  CHECK_EQUAL(sched_setaffinity(0, sizeof one, &one), 0);  // workers have what their first caller has
  Pool workers(3);
  bool once = true;
  for (int i = 0; i < 2000; ++i) once &= cover(workers, 12, 1).once;
  CHECK(once);
  workers.shutdown();
  CHECK_EQUAL(sched_setaffinity(0, sizeof before, &before), 0);
}
#endif

TEST(set_threads_replaces_the_pool_under_load) {
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::thread caller([&] {
    while (!stop) wrong += !cover(pool(), 64, 1).once;
  });
  for (const int count : {1, 4, 2, 3, 2}) {
    set_threads(count);
    CHECK_EQUAL(pool().threads(), count);
    CHECK_EQUAL(threads(), count);
    CHECK(cover(pool(), 100, 1).once);
  }
  stop = true;
  caller.join();
  CHECK_EQUAL(wrong.load(), 0);
}

// The exit status of a child that runs `body`, and -1 if it does not end by itself.
template <typename Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    body();
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// ThreadSanitizer lets no threads start in a child of a process that has some.
#if !defined(__SANITIZE_THREAD__)
TEST(a_forked_child_answers) {
  set_threads(3);
  cover(pool(), 100, 1);
  std::atomic<bool> stop{false};
  std::thread busy([&] {  // without allocating: AddressSanitizer's own locks do not survive a fork
    while (!stop) pool().parallel_for(1000, 1, [](int64_t, int64_t, int) {});
  });
  for (int i = 0; i < 10; ++i) {
    const int status = in_child([] {
      const bool fresh = pool().threads() == 3 && cover(pool(), 1000, 1).once && cover(pool(), 1000, 1).once;
      _exit(fresh ? 0 : 2);
    });
    CHECK_EQUAL(status, 0);
  }
  stop = true;
  busy.join();
  CHECK(cover(pool(), 100, 1).once);  // and so does the parent, still
}

#if !defined(__SANITIZE_ADDRESS__)  // its leak check would look at the parent's threads
TEST(exit_while_workers_spin) {
  for (int i = 0; i < 5; ++i) {
    const int status = in_child([] {
      cover(pool(), 1000, 1);
      std::exit(7);  // runs static destructors while the workers still spin
    });
    CHECK_EQUAL(status, 7);
  }
}
#endif
#endif

}  // namespace
}  // namespace tierup::test
