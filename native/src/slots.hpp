// The slot table: where kernels go live. A call takes one snapshot and keeps to it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace tierup {

using KernelFn = int32_t (*)(void* const* buffers, const int64_t* sizes, void* scratch, int64_t begin, int64_t end);

struct Slot {
  KernelFn kernel = nullptr;
  std::shared_ptr<void> code;  // keeps the machine code loaded
};

using SlotTable = std::vector<Slot>;

// A published table never changes: publishing replaces it as a whole, and a call that runs keeps the one it started
// with, together with the machine code in it. The lock is held for a pointer's copy.
class Slots {
 public:
  explicit Slots(size_t count) : table_(std::make_shared<const SlotTable>(count)) {}

  std::shared_ptr<const SlotTable> snapshot() const {
    const std::lock_guard hold(mutex_);
    return table_;
  }

  // Replaces the named slots together: a snapshot has all of them or none. Indices must be in range.
  void publish(std::span<const std::pair<size_t, Slot>> changes) {
    std::shared_ptr<const SlotTable> old;  // dies after the locks are open: its end may run code of the host
    const std::lock_guard one_publisher(publish_mutex_);
    old = snapshot();
    auto next = std::make_shared<SlotTable>(*old);
    for (const auto& [slot, entry] : changes) (*next)[slot] = entry;
    const std::lock_guard hold(mutex_);
    table_ = std::move(next);
  }

 private:
  mutable std::mutex mutex_;
  std::mutex publish_mutex_;
  std::shared_ptr<const SlotTable> table_;
};

}  // namespace tierup
