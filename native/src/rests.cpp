#include "rests.hpp"

#if defined(__linux__)
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
#endif

namespace tierup {

#if defined(__linux__)
namespace {

constexpr int64_t kTurnNs = 2'000'000;
constexpr int64_t kRestNs = 100'000;
// A thread that waited for a core has likely put a call off the one that it got: until it had this much of one without
// waiting, its turns are short. That a quarter of a look's time was missing is no interrupt of the system's.
constexpr int64_t kShortTurnNs = 500'000;
constexpr int64_t kCrowdedNs = 8'000'000;
constexpr int64_t kWaitedNs = kShortTurnNs / 4;

int64_t now_ns(clockid_t clock) noexcept {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// What the handler reads is written before its timer starts, on the same thread.
struct {
  timer_t timer;
  bool running;
  double least_share;
  int64_t began_ns, began_core_ns;
  int64_t looked_ns, looked_core_ns, waited_core_ns, rested_core_ns;
} state;

void look() noexcept {
  state.looked_ns = now_ns(CLOCK_MONOTONIC);
  state.looked_core_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
}

// A timer by the clock also goes off while the thread waits for a core: only what it got counts.
void rest_if_due(int) {
  const int error = errno;
  const int64_t before_ns = state.looked_ns, before_core_ns = state.looked_core_ns;
  look();
  const int64_t core_ns = state.looked_core_ns;
  if (state.looked_ns - before_ns - (core_ns - before_core_ns) > kWaitedNs) state.waited_core_ns = core_ns;
  const int64_t turn_ns = core_ns - state.waited_core_ns < kCrowdedNs ? kShortTurnNs : kTurnNs;
  const auto since_ns = static_cast<double>(state.looked_ns - state.began_ns);
  const auto got_ns = static_cast<double>(core_ns - state.began_core_ns);
  if (core_ns - state.rested_core_ns >= turn_ns && got_ns >= state.least_share * since_ns) {
    state.rested_core_ns = core_ns;
    const timespec rest{0, kRestNs};
    nanosleep(&rest, nullptr);
    look();
  }
  errno = error;
}

}  // namespace

void begin_rests(double least_share) noexcept {
  if (state.running) return;
  struct sigaction action {};
  action.sa_handler = rest_if_due;
  action.sa_flags = SA_RESTART;
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGALRM;
  event.sigev_notify_thread_id = static_cast<pid_t>(syscall(SYS_gettid));
  state.least_share = least_share;
  look();
  state.began_ns = state.looked_ns;
  state.began_core_ns = state.rested_core_ns = state.looked_core_ns;
  state.waited_core_ns = state.looked_core_ns - kCrowdedNs;
  if (sigaction(SIGALRM, &action, nullptr) != 0 || timer_create(CLOCK_MONOTONIC, &event, &state.timer) != 0) return;
  const itimerspec every{{0, kShortTurnNs}, {0, kShortTurnNs}};
  state.running = timer_settime(state.timer, 0, &every, nullptr) == 0;
  if (!state.running) timer_delete(state.timer);
}

void end_rests() noexcept {
  if (!state.running) return;
  state.running = false;
  timer_delete(state.timer);  // a signal that is still on its way finds the handler, and a rest less than is due
}

#else

void begin_rests(double) noexcept {}

void end_rests() noexcept {}

#endif

}  // namespace tierup
