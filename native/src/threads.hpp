// Threads beside those of the host.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <new>
#include <system_error>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <sched.h>
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

// From now on this thread runs only where nobody else wants to. It must hold nothing that others wait for: on a machine
// whose cores are all taken, it may not get one for a second.
inline void step_back() noexcept {
#if defined(__linux__)
  constexpr int kIdleNiceness = 19;
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kIdleNiceness);
  const sched_param none{};
  sched_setscheduler(0, SCHED_IDLE, &none);  // some containers forbid it; niceness is most of it
#endif
}

}  // namespace tierup
