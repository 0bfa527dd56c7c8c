// Runs programs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "arena.hpp"
#include "call_times.hpp"
#include "host.hpp"
#include "pool.hpp"
#include "program.hpp"
#include "slots.hpp"
#include "watching.hpp"

namespace tierup {

constexpr size_t kMaxDepth = 128;  // of function calls; control flow that nests deeper is no model

// The registers and the arena of one running function. Kept and reused.
struct Frame {
  std::vector<Value> values;
  std::vector<int64_t> dims;
  Arena arena;
};

// All that one call needs besides the program: a frame per depth, and room for its arguments.
struct CallState {
  std::vector<Value> inputs, outputs;
  std::vector<std::unique_ptr<Frame>> frames;
  std::vector<void*> buffers;
  std::vector<int64_t> sizes;
  std::vector<Object*> arguments;
  std::vector<Value*> results;
  Ref<Block> scratch;
  int64_t scratch_bytes = 0;
  uint32_t rounds = 0;  // backward jumps and calls of functions
  size_t hint = 0;      // where the last variant was found in its table
  int64_t holds = 0;    // a bit for each fact that holds in this call, of those that were looked at
  Draw miss;            // which guards fail for no reason, where that is asked for
};

// Call states that wait for the next call. A few are kept: as many as ran at the same time, within reason.
class CallStates {
 public:
  std::unique_ptr<CallState> take();
  void give_back(std::unique_ptr<CallState> state);
  // States that are made from now on draw from this seed on.
  void reseed(uint64_t seed);

 private:
  static constexpr size_t kKept = 16;
  std::mutex mutex_;
  std::vector<std::unique_ptr<CallState>> idle_;
  uint64_t seed_ = 0;
};

// How long each step took, all calls together; for those who ask. Steps of all functions are numbered through.
class StepTimes {
 public:
  struct Entry {
    std::atomic<uint64_t> calls{0}, nanoseconds{0};
  };

  explicit StepTimes(const Program& program);
  Entry& at(size_t function, size_t step) { return entries_[first_[function] + step]; }

 private:
  std::vector<size_t> first_;  // the number of each function's first step
  std::vector<Entry> entries_;
};

struct CallContext {
  const Program& program;
  const SlotTable& slots;
  Pool& pool;
  Host& host;
  CallState& state;
  std::shared_ptr<StepTimes> times = nullptr;  // null: nothing is timed
  WatchedCall* watched = nullptr;              // null: nobody looks at this call
  double miss_share = 0;                       // of the variants that fit and are passed over, for tests
};

// Runs function 0 on `inputs` (taken over; as many as the function has, empty where one is left out) and fills
// `outputs`. No output lies in an arena. Throws CallError, std::bad_alloc, or what the host throws; all registers are
// empty afterwards in any case.
void run(const CallContext& call, std::span<Value> inputs, std::span<Value> outputs);

}  // namespace tierup
