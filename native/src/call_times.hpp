// How long the last calls took: which program answered, for which signature. A ring that is written by every call that
// is timed and read now and then.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tierup {

struct CallTime {
  uint64_t signature = 0;  // as Signatures::note() gave it
  uint64_t program = 0;
  uint64_t nanoseconds = 0;
};

class CallTimes {
 public:
  static constexpr size_t kKept = 512;
  static constexpr uint64_t kLongNs = 10'000'000;  // of a call, beside which watching it takes no time
  using Clock = std::chrono::steady_clock;

  // Whether to time the next call. Reading the clock twice takes some 50 ns, so of short calls only a few are timed:
  // at most about 0.25% of any call's time is spent on it.
  bool due(bool every) {
    if (every) return true;
    if (skip_ > 0) {
      --skip_;
      return false;
    }
    return true;
  }

  // Not for several threads at once.
  void note(const CallTime& time) {
    ring_[written_++ % kKept] = time;
    skip_ = time.nanoseconds >= 20'000 ? 0 : time.nanoseconds >= 5'000 ? 3 : 31;
  }

  // Of what is kept, the oldest first.
  size_t size() const { return written_ < kKept ? static_cast<size_t>(written_) : kKept; }
  const CallTime& at(size_t index) const { return ring_[(written_ - size() + index) % kKept]; }
  uint64_t written() const { return written_; }

 private:
  std::array<CallTime, kKept> ring_{};
  uint64_t written_ = 0;
  uint32_t skip_ = 0;
};

// A stream of numbers that a seed decides: splitmix64.
class Draw {
 public:
  explicit Draw(uint64_t seed = 0) : state_(seed) {}
  // True with this probability.
  bool operator()(double share) {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53 < share;
  }

 private:
  uint64_t state_;
};

}  // namespace tierup
