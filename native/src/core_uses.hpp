// Which cores calls run on: counted as calls begin and as threads of the pool take jobs. Whoever wants to keep out of
// their way looks now and then.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "park.hpp"

namespace tierup {

class CoreUses {
 public:
  static constexpr size_t kMost = 1024;  // uses of later cores are not counted

  // On a line that no other core writes. Two threads that take turns on a core may lose one of their uses.
  void note(int core = current_core()) noexcept {
    if (static_cast<size_t>(core) >= kMost) return;  // -1 too
    std::atomic<uint64_t>& count = lines_[static_cast<size_t>(core)].count;
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  uint64_t of(size_t core) const noexcept { return lines_[core].count.load(std::memory_order_relaxed); }

 private:
  struct alignas(64) Line {
    std::atomic<uint64_t> count{0};
  };
  std::array<Line, kMost> lines_{};
};

inline CoreUses core_uses;  // those of this process

}  // namespace tierup
