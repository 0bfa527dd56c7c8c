// Sleeping until a word changes, at once. std::atomic::wait yields the core a few times before it sleeps, and Linux takes
// a yield as giving up a whole turn: a thread that shares its core is then away for milliseconds, and misses the next
// jobs although it is awake.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

namespace tierup {

#if defined(__linux__)

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

// Returns when `word` is no longer `seen`. Whoever changes it calls unpark_all() afterwards.
inline void park(const std::atomic<uint32_t>& word, uint32_t seen) noexcept {
  while (word.load(std::memory_order_acquire) == seen) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }
}

inline void unpark_all(std::atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// The core that this thread has; -1 where that is not known.
inline int current_core() noexcept { return sched_getcpu(); }

#else

inline int current_core() noexcept { return -1; }

inline void park(const std::atomic<uint32_t>& word, uint32_t seen) noexcept { word.wait(seen); }

inline void unpark_all(std::atomic<uint32_t>& word) noexcept { word.notify_all(); }

#endif

}  // namespace tierup
