// The slot table: where kernels go live. A call takes one snapshot and keeps to it.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace tierup {

using KernelFn = int32_t (*)(void* const* buffers, const int64_t* sizes, void* scratch, int64_t begin, int64_t end);

constexpr size_t kMostVariants = 32;  // of one slot: four signatures in eight places with sizes of their own

// A kernel whose sizes are numbers in its code, and what a call gives it instead of what the step says. Its key is what
// the step would have passed to the open kernel: with the same numbers and the same buffers the work is the same. Behind
// that is a bit for every fact of the program that it relies on.
struct Variant {
  std::vector<int64_t> key;
  KernelFn kernel = nullptr;
  std::shared_ptr<void> code;  // keeps the machine code loaded
  int64_t range = 0, grain = 1, scratch_bytes = 0;
  std::shared_ptr<std::atomic<uint64_t>> uses = std::make_shared<std::atomic<uint64_t>>(0);

  int64_t needs() const { return key.empty() ? 0 : key.back(); }

  // Calls that use it at the same moment may count as one: it only decides who goes when the table is full.
  void count() const { uses->store(uses->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
};

// The open kernel, which can answer everything, and variants before it.
struct Slot {
  KernelFn kernel = nullptr;
  std::shared_ptr<void> code;  // keeps the machine code loaded
  int32_t first = 0;           // as many of a step's sizes are no part of the keys: they count rounds
  std::vector<Variant> variants = {};
  std::vector<int64_t> keys = {};  // of all variants, side by side
  int64_t asks = 0;                // the facts that any of them relies on

  // The variant for the sizes and the range of a step, in this order, and the facts that hold in its call; null if the
  // open kernel has to do. It is looked for at the position `hint` first, which is set to where it is: variants of one
  // signature mostly have one position in all slots, so that a call looks at one key in each step, however many there
  // are. Those that rely on facts stand first, and are preferred.
  const Variant* find(std::span<const int64_t> numbers, int64_t holds, size_t& hint) const {
    const std::span<const int64_t> wanted = numbers.subspan(static_cast<size_t>(first));
    if (hint < variants.size() && fits(wanted, holds, hint)) {
      const bool plain = keys[(hint + 1) * (wanted.size() + 1) - 1] == 0;
      if (!plain || (holds & asks) == 0) return &variants[hint];  // otherwise a better one may stand before it
    }
    for (size_t i = 0; i < variants.size(); ++i) {
      if (!fits(wanted, holds, i)) continue;
      hint = i;
      return &variants[i];
    }
    return nullptr;
  }

  // A few numbers: a call of memcmp would take longer.
  bool fits(std::span<const int64_t> wanted, int64_t holds, size_t position) const {
    const int64_t* const key = keys.data() + position * (wanted.size() + 1);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (key[i] != wanted[i]) return false;
    }
    return (key[wanted.size()] & ~holds) == 0;
  }

  // Returns what has to go for it: a variant with the same key, or the one that was used least, the older one first.
  std::vector<Variant> add(Variant variant) {
    std::vector<Variant> gone;
    auto old = std::ranges::find(variants, variant.key, &Variant::key);
    if (old == variants.end() && variants.size() >= kMostVariants) {
      old = std::ranges::min_element(variants, {}, [](const Variant& v) { return v.uses->load(std::memory_order_relaxed); });
    }
    if (old != variants.end()) {
      gone.push_back(std::move(*old));
      variants.erase(old);
    }
    const auto facts = [](const Variant& v) { return std::popcount(static_cast<uint64_t>(v.needs())); };
    variants.insert(std::ranges::upper_bound(variants, facts(variant), std::ranges::greater{}, facts), std::move(variant));
    list_keys();
    return gone;
  }

  // Takes the variant with this key out; whether there was one.
  bool remove(std::span<const int64_t> key) {
    const auto old = std::ranges::find_if(variants, [&](const Variant& v) { return std::ranges::equal(v.key, key); });
    if (old == variants.end()) return false;
    variants.erase(old);
    list_keys();
    return true;
  }

  void list_keys() {
    keys.clear();
    asks = 0;
    for (const Variant& kept : variants) {
      keys.insert(keys.end(), kept.key.begin(), kept.key.end());
      asks |= kept.needs();
    }
  }

  // Exchanges the variants for others, and returns those that were there.
  std::vector<Variant> exchange(std::vector<Variant> others) {
    std::vector<Variant> before = std::exchange(variants, {});
    list_keys();
    for (Variant& variant : others) add(std::move(variant));
    return before;
  }
};

struct SlotTable : std::vector<Slot> {
  using std::vector<Slot>::vector;
  int64_t asks = 0;  // the facts that a variant in any slot relies on: no others need to be looked at

  void note_asks() {
    asks = 0;
    for (const Slot& slot : *this) asks |= slot.asks;
  }
};

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
    update([&](SlotTable& table) {
      for (const auto& [slot, entry] : changes) table[slot] = entry;
    });
  }

  // Changes a copy of the table, and publishes that.
  template <typename Change>
  void update(const Change& change) {
    std::shared_ptr<const SlotTable> old;  // dies after the locks are open: its end may run code of the host
    const std::lock_guard one_publisher(publish_mutex_);
    old = snapshot();
    auto next = std::make_shared<SlotTable>(*old);
    change(*next);
    next->note_asks();
    const std::lock_guard hold(mutex_);
    table_ = std::move(next);
  }

 private:
  mutable std::mutex mutex_;
  std::mutex publish_mutex_;
  std::shared_ptr<const SlotTable> table_;
};

}  // namespace tierup
