// Threads beside those of the host.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tierup {

// A thread that takes no signals, which belong to the threads of the host; none where it cannot be started.
template <typename Work>
std::thread start_thread(Work&& work) noexcept {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread started;
  try {
    started = std::thread(std::forward<Work>(work));
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

// From now on others of this process come first: it gets a tenth of what a thread of theirs gets, which is enough never
// to be away for long. Idle priority is not: a thread that is filling a page then, with all cores taken by others, let
// forks wait for a second, and the end of the process for five.
inline void step_back() noexcept {
#if defined(__linux__)
  constexpr int kSteps = 10, kMost = 19;
  const auto me = static_cast<id_t>(syscall(SYS_gettid));
  setpriority(PRIO_PROCESS, me, std::min(getpriority(PRIO_PROCESS, me) + kSteps, kMost));
#endif
}

}  // namespace tierup
