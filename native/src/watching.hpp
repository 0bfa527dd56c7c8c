// Watching: now and then one call is looked at closely. How long each of its kernels took, by the time-stamp counter,
// with hardware counters where there are any, and what its inputs are like. How often is decided by what it costs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "object.hpp"
#include "statistics.hpp"
#include "thread_counters.hpp"
#include "ticks.hpp"

namespace tierup {

// All runs of one slot's kernel in a call.
struct RegionSpan {
  uint64_t ticks = 0;
  uint64_t runs = 0;
  uint64_t counted = 0;  // of the runs: those with counts
  std::array<double, kRegionCounters> counts{};  // of the calling thread
};

struct InputLook {
  bool tensor = false;
  bool same = false;  // as in the call that was watched before
  Statistics statistics;
};

// One call that is watched. Made where the call begins, on its thread; `clock()` is asked by the interpreter.
class WatchedCall {
 public:
  static constexpr size_t kMaxRegions = 4096;  // those in later slots are not watched
  static constexpr size_t kMaxInputs = 64;

  WatchedCall() = default;  // of no call
  // `counters` may be null. The statistics of the inputs are taken at once.
  WatchedCall(size_t slots, std::span<const Value> inputs, ThreadCounters* counters);

  void enter();
  void leave(size_t slot);
  // The call is over: stop to count.
  void end();

  uint64_t signature = 0;
  uint64_t program = 0;
  uint64_t taken = 0;     // ticks of the call itself
  uint64_t overhead = 0;  // ticks for watching it
  size_t counters = 0;    // how many are counted
  std::vector<RegionSpan> regions;  // by slot
  std::vector<InputLook> inputs;

 private:
  ThreadCounters* group_ = nullptr;
  CounterSample before_;
  uint64_t before_call_ = 0, began_ = 0, entered_ = 0;
};

// Times one kernel step of a call that is watched.
class RegionClock {
 public:
  RegionClock(WatchedCall* call, int32_t slot) : call_(call), slot_(static_cast<size_t>(slot)) {
    if (call_ != nullptr) call_->enter();
  }
  RegionClock(const RegionClock&) = delete;
  RegionClock& operator=(const RegionClock&) = delete;
  ~RegionClock() {
    if (call_ != nullptr) call_->leave(slot_);
  }

 private:
  WatchedCall* const call_;
  const size_t slot_;
};

// Decides which calls are watched, and keeps what was seen until somebody takes it. Any thread may call; none waits: what
// comes while another one is at it is dropped and counted.
class Watching {
 public:
  static constexpr size_t kKept = 32;
  static constexpr size_t kEnough = 16;  // for somebody to come and take them
  static constexpr double kShare = 0.002;  // of the time of calls that watching them, and looking into it, may take

  void set_on(bool on);

  // Whether to watch the call that begins now. Then `keep` or `give_up` has to follow.
  bool due() {
    const uint64_t left = left_.load(std::memory_order_relaxed);
    if (left == 0) return false;
    left_.store(left - 1, std::memory_order_relaxed);
    if (left != 1) return false;
    busy_.store(true, std::memory_order_relaxed);
    return true;
  }

  // Watch the next calls one after the other, whatever that costs.
  void watch_closely(uint64_t calls);

  void keep(WatchedCall&& call);
  void give_up() { again(gap()); }

  // What one call costs whoever takes it: it counts as part of the cost of watching. May wait 2 ms at first.
  void set_analysis_ns(double nanoseconds);

  // Whether enough is there to take; true once until it is taken, or so many came again that nobody seems to come.
  bool ask();
  // The calls that wait, oldest first; none if a call is being kept just now.
  std::vector<WatchedCall> take();
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  uint64_t gap() const { return gap_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kFirst = 2;  // the first call meets cold caches
  static constexpr size_t kCompared = 4;

  void again(uint64_t calls);
  uint64_t next_gap(const WatchedCall& call);

  std::atomic<uint64_t> left_{0};  // calls until the next one that is watched; 0: none, or one is being watched
  std::atomic<bool> busy_{false};
  std::atomic<uint64_t> closely_{0};  // so many more after the next one, whatever they cost
  std::atomic<uint64_t> gap_{kFirst}, dropped_{0};
  std::atomic<uint64_t> analysis_{600'000};  // ticks; until it is known some 200 µs
  std::atomic<uint64_t> ask_at_{0};  // how many have to be written before it is asked again
  std::atomic<size_t> waiting_{0};
  std::mutex mutex_;  // only ever tried
  std::array<WatchedCall, kKept> ring_;
  std::atomic<uint64_t> written_{0};
  std::vector<uint64_t> hashes_;  // of the inputs of the last call
  std::array<uint64_t, kCompared> lately_{};  // ticks of the last calls that were watched
  uint64_t seen_ = 0;
};

}  // namespace tierup
